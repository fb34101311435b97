// Architectures from files: what stands in each place, how it starts, saving and loading it.
#include "halflin/train/architecture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "halflin/io/file.h"
#include "halflin/train/backward.h"
#include "halflin/train/checkpoint.h"
#include "halflin/train/places.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

using nlohmann::json;

json architecture(const std::string& family) {
  json out = json::parse(R"({"layers": 6, "d_model": 32, "heads": 4, "positions": 32, "d_mlp": 40,
    "tokenizer": "t", "init": {"seed": 5}, "mlp": {"layers": {
      "0": {"kind": "full", "width": 56},
      "1": {"kind": "linear"},
      "2": {"kind": "hybrid", "width": 8},
      "3": {"kind": "gated", "gate_hidden": 3, "gate_bias": 0.5,
            "cheap": {"kind": "low_rank", "rank": 2}},
      "4": {"kind": "skip"}}}})");
  out["family"] = family;
  return out;
}

std::string message_of(json change) {
  json changed = architecture("llama");
  changed.merge_patch(change);
  return error_of([&] { parse_architecture(changed, "a.json"); });
}

double deviation(const Parameter& p) {
  double sum = 0;
  for (const float v : p.value.span()) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum / static_cast<double>(p.value.size()));
}

class Families : public testing::TestWithParam<std::string> {};

TEST_P(Families, EveryPlaceIsWhatTheFileSays) {
  const ArchitectureSpec spec = parse_architecture(architecture(GetParam()), "folder/a.json");
  EXPECT_EQ(spec.tokenizer, "folder/t");
  const TrainModel model = make_new_model(spec, 31, 32);
  EXPECT_EQ(model.config.family, GetParam());
  EXPECT_EQ(model.config.vocab, 31u);
  EXPECT_FALSE(model.layers[0].mlp.full);
  EXPECT_EQ(model.layers[0].mlp.cheap.narrow->up.out(), 56u);
  EXPECT_EQ(model.layers[1].mlp.cheap.affine.out(), 32u);
  EXPECT_FALSE(model.layers[1].mlp.cheap.narrow);
  EXPECT_TRUE(model.layers[2].mlp.cheap.affine.exists());
  EXPECT_EQ(model.layers[2].mlp.cheap.narrow->down.in(), 8u);
  EXPECT_EQ(model.layers[3].mlp.route, Route::kHard);
  EXPECT_EQ(model.layers[3].mlp.cheap.low_rank_in.out(), 2u);
  EXPECT_EQ(model.layers[3].mlp.gate.out.bias.value(0, 0), 0.5f);
  EXPECT_FALSE(model.layers[4].mlp.cheap.affine.exists());
  EXPECT_EQ(model.layers[5].mlp.route, Route::kFull);
  EXPECT_TRUE(has_places(model));
  const double projections = GetParam() == "llama" ? 3 : 2;
  const FlopCount flops = model_flops(model, 32, std::vector<double>(6, 0.25));
  const double per_neuron = projections * 2 * 32;
  EXPECT_DOUBLE_EQ(flops.mlp, per_neuron * (56 + 8 + 40 + 0.25 * 40) + 2 * (2 * 32 * 32) +
                                  2 * (3 * 32 + 3) + 0.75 * 2 * (2 * 2 * 32));
}

TEST_P(Families, SavedAndLoadedItIsTheSame) {
  const ArchitectureSpec spec = parse_architecture(architecture(GetParam()), "a.json");
  ThreadPool pool(2);
  TrainModel model = make_new_model(spec, 31, 32);
  TemporaryFolder folder;
  save_places(model, folder.path / "places.safetensors", DType::kF32);
  save_new_model(model, folder.path, DType::kF32);
  const std::string message = error_of([&] { read_checkpoint(folder.path); });
  EXPECT_NE(message.find("places.safetensors"), std::string::npos) << message;
  const Checkpoint checkpoint = read_checkpoint(folder.path, /*with_places=*/true);
  EXPECT_EQ(checkpoint.without_mlp, (std::vector<size_t>{0, 1, 2, 4}));
  TrainModel loaded = load_train_model(pool, checkpoint, 32);
  load_places(checkpoint, loaded);
  const std::vector<Parameter*> want = parameters(model), found = parameters(loaded);
  ASSERT_EQ(want.size(), found.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(want[i]->name, found[i]->name);
    ASSERT_EQ(want[i]->value.size(), found[i]->value.size()) << want[i]->name;
    EXPECT_EQ(0, std::memcmp(want[i]->value.data(), found[i]->value.data(),
                             want[i]->value.size() * sizeof(float)))
        << want[i]->name;
  }
  Batch batch;
  batch.add(std::vector<int32_t>{1, 5, 2, 30, 7, 7, 0, 12});
  TrainWorkspace workspace;
  EXPECT_EQ(evaluate(pool, model, batch, {}, workspace).loss_sum,
            evaluate(pool, loaded, batch, {}, workspace).loss_sum);

  // A tensor that the model has no place for, and one that is missing.
  const std::string bytes = read_file(folder.path / "places.safetensors");
  for (const auto& [from, to] :
       {std::pair<std::string, std::string>{"layers.1.mlp", "layers.5.mlq"},
        {"gate.out.weight", "gate.oot.weight"}}) {
    std::string edited = bytes;
    for (size_t at = 0; (at = edited.find(from, at)) != std::string::npos;) {
      edited.replace(at, from.size(), to);
    }
    write_file_atomically(folder.path / "places.safetensors", edited);
    TrainModel again = load_train_model(pool, checkpoint, 32);
    EXPECT_NE(error_of([&] { load_places(checkpoint, again); }).find("places.safetensors"),
              std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(Train, Families, testing::Values("gpt2", "gpt_neox", "llama"),
                         [](const auto& info) { return info.param; });

// A standard model is a checkpoint like any other.
TEST(Architecture, StandardModelsNeedNoPlaces) {
  json plain = architecture("gpt_neox");
  plain["mlp"] = json::object();
  const ArchitectureSpec spec = parse_architecture(plain, "a.json");
  const TrainModel model = make_new_model(spec, 31, 32);
  EXPECT_FALSE(has_places(model));
  TemporaryFolder folder;
  save_new_model(model, folder.path, DType::kBF16);
  const Checkpoint checkpoint = read_checkpoint(folder.path);
  EXPECT_EQ(checkpoint.architecture.config.parallel_residual, true);
  EXPECT_EQ(model_flops(model, 32, {}).total(),
            flops_per_token(checkpoint.architecture.config, 32).total());
}

TEST(Architecture, StartsAsItsFamilyDoes) {
  json gpt2 = architecture("gpt2");
  gpt2["d_model"] = 128;
  const TrainModel model = make_new_model(parse_architecture(gpt2, "a.json"), 500, 32);
  const TrainLayer& layer = model.layers[5];
  EXPECT_NEAR(deviation(model.embedding), 0.02, 0.0005);
  EXPECT_NEAR(deviation(layer.qkv.weight), 0.02, 0.0005);
  EXPECT_NEAR(deviation(layer.mlp.full->down.weight), 0.02 / std::sqrt(12.0), 0.0005);
  EXPECT_EQ(deviation(layer.qkv.bias), 0);
  EXPECT_EQ(deviation(layer.mlp_norm.weight), 1);
  json neox = architecture("gpt_neox");
  neox["d_model"] = 128;
  const TrainModel other = make_new_model(parse_architecture(neox, "a.json"), 500, 32);
  EXPECT_NEAR(deviation(other.layers[5].qkv.weight), std::sqrt(2 / (5.0 * 128)), 0.002);
  EXPECT_NEAR(deviation(other.layers[5].attention_out.weight), 2 / (6 * std::sqrt(128.0)), 0.002);
  gpt2["init"]["seed"] = 6;
  const TrainModel reseeded = make_new_model(parse_architecture(gpt2, "a.json"), 500, 32);
  EXPECT_NE(reseeded.embedding.value(0, 0), model.embedding.value(0, 0));
}

TEST(Architecture, ErrorsNameTheKey) {
  const auto expect = [](const json& change, const std::string& part) {
    const std::string message = message_of(change);
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find("a.json"), std::string::npos) << message;
  };
  expect({{"heads", 5}}, "32 does not divide into 5 heads");
  expect({{"kv_heads", 3}}, "4 heads do not share 3");
  expect({{"family", "bert"}}, "bert");
  expect({{"layers", nullptr}}, "\"layers\" is missing");
  expect({{"d_mlp", 0}}, "d_mlp");
  expect({{"dmlp", 3}}, "\"dmlp\" is no key");
  expect({{"mlp", {{"layers", {{"1:3", {{"kind", "linear"}}}}}}}}, "layer 1 is in");
  expect({{"mlp", {{"layers", {{"1", {{"kind", "cubic"}}}}}}}}, "cubic");
  expect({{"mlp", {{"layers", {{"1", {{"kind", "linear"}, {"width", 3}}}}}}}},
         "\"width\" is no key");
  expect({{"mlp", {{"layers", {{"2", {{"kind", "hybrid"}, {"width", -3}}}}}}}}, "width");
  expect({{"mlp", {{"layers", {{"3", {{"route", "maybe"}}}}}}}}, "route");
  expect({{"init", {{"std", 0}}}}, "positive");
  expect({{"mlp",
           {{"layers",
             {{"3",
               {{"kind", "linear"},
                {"gate_hidden", nullptr},
                {"gate_bias", nullptr},
                {"cheap", nullptr}}}}}}},
          {"gate_penalty", {{"mean_weight", 0.1}}}},
         "no layer is gated");
  const json beyond = {{"mlp", {{"layers", {{"6", {{"kind", "linear"}}}}}}}};
  EXPECT_NE(message_of(beyond).find("layer 6"), std::string::npos);
  json small = architecture("gpt2");
  small["vocab"] = 7;
  const ArchitectureSpec spec = parse_architecture(small, "a.json");
  EXPECT_NE(error_of([&] { make_new_model(spec, 8, 16); }).find("8 ids"), std::string::npos);
}

}  // namespace
}  // namespace halflin
