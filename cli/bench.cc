// halflin bench: tokens a second, beside what the machine can do at most.
#include <algorithm>
#include <cmath>
#include <memory>

#include "cli/cli.h"
#include "halflin/base/error.h"
#include "halflin/io/text.h"
#include "halflin/measure/paths.h"
#include "halflin/measure/speed.h"

namespace halflin::cli {

namespace {

struct Options {
  Common common;
  DecodeChoice decode;
  std::string allocation;
  std::string text;
  SpeedOptions speed;
  std::optional<size_t> depth;
  bool force_linear = false;
  double random_route = 0;
  uint64_t seed = 0;
};

// Tokens to feed: of the text, or else any.
std::vector<int32_t> ids_of(const Options& options, const Checkpoint& checkpoint, size_t count) {
  if (options.text.empty()) {
    const size_t vocab = checkpoint.architecture.config.vocab;
    std::vector<int32_t> ids(count);
    for (size_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>((i * 7919 + 10) % vocab);
    return ids;
  }
  std::vector<int32_t> ids = read_tokenizer(checkpoint).encode(read_text(options.text).bytes);
  if (ids.size() < count) {
    fail("{}: {} tokens, but {} are needed", options.text, ids.size(), count);
  }
  ids.resize(count);
  return ids;
}

// Rates of the repetitions: median, least, most.
nlohmann::json spread(const std::vector<double>& seconds, double work) {
  if (seconds.empty()) return nullptr;
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  return {{"median", work / median_of(seconds)}, {"low", work / *most}, {"high", work / *least}};
}

nlohmann::json describe(const Speed& speed, const SpeedResult& result,
                        const SpeedOptions& options) {
  const double prefill = median_of(speed.prefill_seconds);
  const double decode = median_of(speed.decode_seconds);
  const double reads = median_of(result.read_rates);
  const double products = median_of(result.product_rates);
  const auto tokens = static_cast<double>(options.generate);
  nlohmann::json out;
  out["prefill"] = {
      {"tokens_per_s", spread(speed.prefill_seconds, static_cast<double>(options.prompt))},
      {"gflop", speed.prefill_flops / 1e9},
      {"gflop_per_s", speed.prefill_flops / prefill / 1e9},
      {"share_of_products", speed.prefill_flops / prefill / products},
      {"cheap_pct", 100 * speed.prefill_routed}};
  out["decode"] = {{"tokens_per_s", spread(speed.decode_seconds, tokens)},
                   {"megabytes_per_token", speed.decode_bytes / tokens / 1e6},
                   {"gigabytes_per_s", speed.decode_bytes / decode / 1e9},
                   {"gflop_per_s", speed.decode_flops / decode / 1e9},
                   {"share_of_reads", speed.decode_bytes / decode / reads},
                   {"cheap_pct", 100 * speed.decode_routed}};
  return out;
}

// How much faster than the dense model, and how that compares with what was counted.
nlohmann::json compare(const SpeedResult& result, uint64_t seed) {
  const BootstrapDraws draws = draw_windows(result.speed.decode_seconds.size(), 2000, seed);
  const auto gain = [&](const std::vector<double>& dense, const std::vector<double>& speed,
                        double counted) {
    const Interval times = ratio(draws, dense, speed);
    const double saved = 1 - median_of(speed) / median_of(dense);
    return nlohmann::json{{"times", times.estimate},
                          {"ci_lo", times.lo},
                          {"ci_hi", times.hi},
                          {"too_few_repetitions", times.too_few},
                          {"time_saved_pct", 100 * saved},
                          {"counted_saved_pct", 100 * counted},
                          {"time_saved_over_counted", counted != 0 ? saved / counted : 0}};
  };
  return {{"prefill", gain(result.dense.prefill_seconds, result.speed.prefill_seconds,
                           1 - result.speed.prefill_flops / result.dense.prefill_flops)},
          {"decode", gain(result.dense.decode_seconds, result.speed.decode_seconds,
                          1 - result.speed.decode_bytes / result.dense.decode_bytes)}};
}

void print_rates(const char* name, const nlohmann::json& side) {
  const auto line = [&](const char* what, const nlohmann::json& part, const std::string& rest) {
    const nlohmann::json& rate = part.at("tokens_per_s");
    if (rate.is_null()) return;
    fmt::print("{:<9}{:<8}{:8.1f} tokens/s  [{:.1f}, {:.1f}]  {}\n", name, what,
               rate.at("median").get<double>(), rate.at("low").get<double>(),
               rate.at("high").get<double>(), rest);
  };
  const nlohmann::json& prefill = side.at("prefill");
  const nlohmann::json& decode = side.at("decode");
  line("prefill", prefill,
       fmt::format("{:.0f} GFLOP/s, {:.0f} % of the machine's products",
                   prefill.at("gflop_per_s").get<double>(),
                   100 * prefill.at("share_of_products").get<double>()));
  line("decode", decode,
       fmt::format("{:.1f} MB a token, {:.1f} GB/s, {:.0f} % of the machine's reads",
                   decode.at("megabytes_per_token").get<double>(),
                   decode.at("gigabytes_per_s").get<double>(),
                   100 * decode.at("share_of_reads").get<double>()));
}

void print_gain(const char* what, const char* counted, const nlohmann::json& gain) {
  fmt::print(
      "{:<9}{:<8}{:8.3f} times the dense speed  [{:.3f}, {:.3f}]  {:.1f} % less time, {:.1f} % "
      "fewer {}{}\n",
      "", what, gain.at("times").get<double>(), gain.at("ci_lo").get<double>(),
      gain.at("ci_hi").get<double>(), gain.at("time_saved_pct").get<double>(),
      gain.at("counted_saved_pct").get<double>(), counted,
      gain.at("too_few_repetitions").get<bool>() ? " (too few repetitions for an interval)" : "");
}

void run(Options options) {
  SpeedOptions& speed = options.speed;
  speed.depth = options.depth.value_or(speed.prompt);
  if (speed.depth > speed.prompt) {
    throw UsageError(fmt::format("--depth: at most the {} tokens of the prompt", speed.prompt));
  }
  const int ways = (options.allocation.empty() ? 0 : 1) + (options.force_linear ? 1 : 0) +
                   (options.random_route > 0 ? 1 : 0);
  if (ways > 1) {
    throw UsageError("--allocation, --force-linear and --random-route: one of them at most");
  }
  refuse_nan("--random-route", options.random_route);
  Checkpoint checkpoint = read_checkpoint(options.common.model);
  const size_t context = std::max(speed.prompt, speed.depth + speed.generate);
  check_window(checkpoint, context);
  const std::vector<int32_t> ids = ids_of(options, checkpoint, context);
  std::optional<Allocation> allocation;
  if (!options.allocation.empty()) {
    allocation = load_allocation_for(options.allocation, options.common.model, checkpoint);
  }
  ThreadPool pool(options.common.threads);
  const Precision precision = prefill_precision(options.decode, checkpoint);
  Model model = load_model(pool, std::move(checkpoint), precision, context);
  std::vector<MlpPath> paths;
  if (allocation) paths = pack_allocation(pool, model, *allocation);
  if (options.force_linear || options.random_route > 0) {
    paths = stand_in_paths(pool, model, std::span(ids).first(speed.prompt),
                           options.force_linear ? 1.0 : options.random_route, options.seed);
  }
  speed.compare = !paths.empty();
  Decoder decoder(pool, std::move(model), std::move(paths), decode_options(options.decode));
  Progress progress("bench", static_cast<double>(speed.repetitions + 1), options.common.quiet);
  const SpeedResult result = measure_speed(pool, decoder, ids, speed, progress);
  progress.clear();

  const DecodeMemory memory = decoder.memory();
  nlohmann::json out = describe(result.speed, result, speed);
  out["model"] = options.common.model;
  out["halflin"] = HALFLIN_VERSION;
  out["threads"] = pool.size();
  out["prefill_dtype"] = precision == Precision::kBF16 ? "bf16" : "f32";
  out["decode_formats"] = decoder.formats();
  out["prompt_tokens"] = speed.prompt;
  out["generated"] = speed.generate;
  out["depth"] = speed.depth;
  out["repetitions"] = speed.repetitions;
  out["prefill_tokens_per_s"] = out["prefill"]["tokens_per_s"]["median"];
  out["decode_tokens_per_s"] = out["decode"]["tokens_per_s"]["median"];
  out["machine"] = {{"read_gigabytes_per_s", median_of(result.read_rates) / 1e9},
                    {"product_gflop_per_s", median_of(result.product_rates) / 1e9}};
  out["megabytes"] = {{"mapped", static_cast<double>(memory.mapped) / 1e6},
                      {"packed", static_cast<double>(memory.packed) / 1e6},
                      {"converted", static_cast<double>(memory.converted) / 1e6},
                      {"cache", static_cast<double>(memory.cache) / 1e6}};
  if (speed.compare) {
    out["dense"] = describe(result.dense, result, speed);
    out["speedup"] = compare(result, options.seed);
  }
  if (options.common.json) {
    fmt::print("{}\n", out.dump(2));
    return;
  }
  print_rates(speed.compare ? "routed" : "", out);
  if (speed.compare) {
    print_rates("dense", out["dense"]);
    print_gain("prefill", "FLOPs", out["speedup"]["prefill"]);
    print_gain("decode", "bytes", out["speedup"]["decode"]);
    fmt::print("{:<9}cheap ways: {:.1f} % of a prompt's tokens and layers, {:.1f} % in decoding\n",
               "", out["prefill"]["cheap_pct"].get<double>(),
               out["decode"]["cheap_pct"].get<double>());
  }
  fmt::print("{:<9}reads {:.1f} GB/s, products {:.0f} GFLOP/s ({}), {} threads\n", "machine",
             median_of(result.read_rates) / 1e9, median_of(result.product_rates) / 1e9,
             out["prefill_dtype"].get<std::string>(), pool.size());
  fmt::print("{:<9}{:.0f} MB of files mapped, {:.0f} packed, {:.0f} converted, {:.0f} cache\n",
             "memory", static_cast<double>(memory.mapped) / 1e6,
             static_cast<double>(memory.packed) / 1e6, static_cast<double>(memory.converted) / 1e6,
             static_cast<double>(memory.cache) / 1e6);
  fmt::print("{:<9}{}\n", "weights", fmt::join(decoder.formats(), "; "));
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "Tokens a second, of prompts and one by one");
  const auto options = std::make_shared<Options>();
  add_common(*command, options->common, "halflin bench model.gguf --repetitions 9 --json");
  add_decode(*command, options->decode);
  command->add_option("--allocation", options->allocation,
                      "route tokens as this allocation file says, in turns with the "
                      "dense model");
  command->add_option("--text", options->text,
                      "feed this text's tokens (default: any tokens; gates need a text)");
  const auto count = CLI::Range(size_t{1}, size_t{1} << 20);
  command->add_option("--prompt-tokens", options->speed.prompt, "tokens of the prompt")
      ->capture_default_str()
      ->check(count);
  command->add_option("--generate", options->speed.generate, "tokens one by one")
      ->capture_default_str()
      ->check(count);
  command->add_option("--depth", options->depth,
                      "tokens in the cache when those begin (default: the prompt's)");
  command->add_option("--repetitions", options->speed.repetitions, "after one that warms up")
      ->capture_default_str()
      ->check(CLI::Range(size_t{1}, size_t{100000}));
  command->add_flag("--force-linear", options->force_linear,
                    "a surrogate of zeros at every layer, for every token: does the clock follow "
                    "the count?");
  command
      ->add_option("--random-route", options->random_route,
                   "the same for this share of the tokens, by random gates")
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("--seed", options->seed, "of random gates and the interval's draws")
      ->capture_default_str();
  command->final_callback([options] { run(*options); });
}

}  // namespace halflin::cli
