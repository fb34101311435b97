// Packing, escaping, tables, and what the report refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "halflin/base/dtype.h"
#include "halflin/io/tensor_file.h"
#include "halflin/report/analysis_tables.h"
#include "halflin/report/encode.h"
#include "halflin/report/page.h"
#include "halflin/report/run.h"
#include "halflin/report/summary.h"
#include "halflin/report/sweep_tables.h"
#include "halflin/report/table.h"
#include "halflin/report/token_map.h"
#include "halflin/report/token_text.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

using nlohmann::json;

TEST(ReportEncode, Base64AsInRfc4648) {
  const auto encoded = [](std::string_view text) { return base64(bytes_of(text)); };
  EXPECT_EQ(encoded(""), "");
  EXPECT_EQ(encoded("f"), "Zg==");
  EXPECT_EQ(encoded("fo"), "Zm8=");
  EXPECT_EQ(encoded("foo"), "Zm9v");
  EXPECT_EQ(encoded("foobar"), "Zm9vYmFy");
  EXPECT_EQ(encoded("\xff\xef\xbe"), "/+++");
}

TEST(ReportEncode, HalvesAreTheNearest) {
  // Every finite binary16 comes back; so does the point just beside it.
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float value = f16_to_float(static_cast<uint16_t>(h));
    if (!std::isfinite(value)) continue;
    ASSERT_EQ(to_f16(value), h);
    ASSERT_EQ(to_f16(value * (1 + 0x1p-14f)), h);
  }
  EXPECT_EQ(to_f16(1 + 0x1p-11f), 0x3c00);  // a tie goes to the even neighbour
  EXPECT_EQ(to_f16(1 + 3 * 0x1p-11f), 0x3c02);
  EXPECT_EQ(to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(to_f16(-1e9f), 0xfc00);
  EXPECT_EQ(to_f16(0x1p-26f), 0);
  EXPECT_TRUE(std::isnan(f16_to_float(to_f16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(ReportEncode, ScoresKeepTheirSideOfTheThreshold) {
  std::vector<float> scores;
  for (int i = 0; i < 2000; ++i) scores.push_back(std::sin(static_cast<float>(i)) * 3);
  scores[7] = 1e30f;
  scores[8] = -1e30f;
  const double threshold = static_cast<double>(scores[100]);  // exactly one of the scores
  const ScoreBytes packed = quantise_scores(scores, threshold);
  for (size_t t = 0; t < scores.size(); ++t) {
    ASSERT_EQ(packed.bytes[t] > 127, static_cast<double>(scores[t]) > threshold) << scores[t];
  }
  EXPECT_EQ(packed.bytes[7], 255);
  EXPECT_EQ(packed.bytes[8], 0);
  EXPECT_LT(packed.hi, 3.1f);  // outliers do not stretch the scale
  // Thresholds that let every token or none through; scores that are all the same; none at all.
  for (const uint8_t byte : quantise_scores(scores, std::numeric_limits<float>::lowest()).bytes) {
    EXPECT_GT(byte, 127);
  }
  for (const uint8_t byte : quantise_scores(scores, std::numeric_limits<float>::max()).bytes) {
    EXPECT_LE(byte, 127);
  }
  EXPECT_EQ(quantise_scores(std::vector<float>(3, 1.0f), 1.0).bytes[0], 127);
  EXPECT_EQ(quantise_scores(std::vector<float>(1, NAN), 0).bytes[0], 0);
}

TEST(ReportEncode, NothingInJsonCanEndTheScript) {
  const std::string evil = "</script><!--<script>&amp;\u2028\u2029\xff\"\\";
  const std::string text = script_json({{evil, evil}});
  EXPECT_EQ(text.find_first_of("<>&"), std::string::npos);
  for (const char c : text) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
  const json back = json::parse(text);
  EXPECT_EQ(back.begin().value().get<std::string>(),
            "</script><!--<script>&amp;\u2028\u2029\ufffd\"\\");
  EXPECT_EQ(escape_html("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
}

TEST(ReportTokens, CharactersOfSeveralTokensAreJoined) {
  const std::vector<std::string> bytes = {"a ", "\xe2", "\x82", "\xac!", "\xff", "\x01\n", ""};
  const auto of = [&](int32_t id) { return bytes[static_cast<size_t>(id)]; };
  const auto shown = [&](const std::vector<int32_t>& ids) {
    std::vector<std::string> out;
    const TokenText text = token_text(ids, of);
    for (const uint32_t piece : text.piece) out.push_back(text.pieces[piece]);
    return out;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(shown({0, 1, 2, 3, 0}), (Texts{"a ", "\u20ac", kContinued, "!", "a "}));
  EXPECT_EQ(shown({1, 0, 2}), (Texts{"\\xE2", "a ", "\\x82"}));  // never completed
  EXPECT_EQ(shown({4, 5, 6}), (Texts{"\\xFF", "\\x01\n", ""}));
  EXPECT_EQ(shown({1, 2}), (Texts{"\\xE2", "\\x82"}));  // cut by the end
  EXPECT_EQ(token_text(std::vector<int32_t>{0, 0, 0}, of).pieces.size(), 1u);
}

TEST(ReportTable, MarkdownAndCsvKeepTextInItsCell) {
  const Table table{"t",
                    "A | title",
                    "",
                    {{"name", "name"}, {"cost", "cost, %", 2, true}, {"n", "n"}},
                    {{std::string("<b>|x`"), Figure{1.234, -0.5, 2000}, 3.0},
                     {std::string("=1+1,\"q\""), Figure{}, std::nan("")}}};
  EXPECT_EQ(markdown(table),
            "## A \\| title\n\n| name | cost, % | n |\n| :-- | --: | --: |\n"
            "| &lt;b>\\|x\\` | +1.23 [-0.50, +2000] | 3 |\n"
            "| =1+1,\"q\" |  |  |\n\n");
  EXPECT_EQ(csv(table),
            "name,cost,cost_lo,cost_hi,n\r\n"
            "<b>|x`,1.234,-0.5,2000,3\r\n"
            "\"'=1+1,\"\"q\"\"\",,,,\r\n");
  EXPECT_EQ(to_json(table).at("rows").dump(),
            R"([["<b>|x`",[1.234,-0.5,2000.0],3.0],["=1+1,\"q\"",null,null]])");
}

TEST(ReportTable, RangesAndShares) {
  EXPECT_EQ(layer_ranges({0, 1, 2, 5, 7, 8}), "0\u20132, 5, 7\u20138");
  EXPECT_EQ(layer_ranges({}), "");
  std::vector<float> delta;
  for (int i = 0; i < 100; ++i) delta.push_back(i < 90 ? -1.0f : 1.0f);
  delta.push_back(std::numeric_limits<float>::quiet_NaN());
  const DeltaShape shape = delta_shape(delta);
  EXPECT_EQ(shape.tokens, 100u);
  EXPECT_EQ(shape.quantiles.at(3), -1);
  EXPECT_NEAR(shape.harm_pct.at(0), 10, 1e-9);
  EXPECT_NEAR(shape.harm_pct.at(1), 50, 1e-9);
  EXPECT_NEAR(shape.harm_pct.at(2), 100, 1e-9);
}

json figures(double value) {
  return {{"delta_ppl_pct", value}, {"ci_lo", value - 1},
          {"ci_hi", value + 1},     {"p", 0.01},
          {"p_holm", 0.02},         {"verdict", "costs"},
          {"flops_pct", 10.0},      {"too_few_windows", false}};
}

// A sweep of two of three layers; the second has no gates.
json sweep_result() {
  json gate = figures(0.5);
  gate.update({{"name", "linear"},
               {"params", 5},
               {"threshold", 0.0},
               {"pct_linear", 40.0},
               {"pct_linear_ci_lo", 39.0},
               {"pct_linear_ci_hi", 41.0},
               {"auc", 0.6},
               {"auc_ci_lo", 0.5},
               {"auc_ci_hi", 0.7},
               {"at", json::array()}});
  const auto layer = [&](size_t number, json gates) {
    return json{{"layer", number},
                {"r2", 0.5},
                {"r2_ci_lo", 0.4},
                {"r2_ci_hi", 0.6},
                {"r2_without_sinks", nullptr},
                {"sinks", 0},
                {"all_linear", figures(7)},
                {"delta",
                 {{"test",
                   {{"tokens", 4},
                    {"mean", 0.1},
                    {"median", 0.0},
                    {"sd", 1.0},
                    {"pct_beneficial", 50.0}}}}},
                {"gates", std::move(gates)}};
  };
  json result = {
      {"schema", 1},
      {"kind", "sweep"},
      {"halflin", "0.1.0"},
      {"command", "halflin sweep"},
      {"protocol", "halflin"},
      {"model",
       {{"name", "/m/tiny.gguf"},
        {"sha256", "aa"},
        {"family", "llama"},
        {"layers", 3},
        {"parameters", 1000}}},
      {"text", {{"path", "/t/<wiki>.raw"}, {"sha256", "bb"}}},
      {"splits", {{"test", {0, 2}}, {"unit", "window"}}},
      {"settings",
       {{"layers", {0, 1, 2}},
        {"dtype", "f32"},
        {"seed", 0},
        {"bootstrap",
         {{"confidence", 0.95}, {"draws", 100}, {"interval", "bca"}, {"unit", "window"}}}}},
      {"baseline_ppl", 30.0},
      {"baseline_ppl_ci_lo", 28.0},
      {"baseline_ppl_ci_hi", 32.0},
      {"test_predictions", 4.0},
      {"test_sequences", 2},
      {"complete", false}};
  result["layers"] = {layer(0, json::array({gate})), layer(1, json::array())};
  result["layers"][1]["gates_skipped"] = "too dear";
  return result;
}

struct Sweep : TemporaryFolder {
  explicit Sweep(const json& result = sweep_result()) { write("result.json", result.dump()); }

  void columns(const std::string& name, const std::map<std::string, std::vector<float>>& values) {
    std::filesystem::create_directories((path / name).parent_path());
    std::vector<TensorToWrite> tensors;
    for (const auto& [key, column] : values) {
      tensors.push_back({key, DType::kF32, {column.size()}, std::as_bytes(std::span(column))});
    }
    write_safetensors(path / name, tensors, {});
  }
  void tokens() {
    columns("tokens.safetensors",
            {{"id", {5, 6, 5, 7}}, {"sequence", {0, 0, 3, 3}}, {"loss", {1, 0, 2, 0}}});
    columns("layers/000.safetensors", {{"delta", {0.5f, NAN, -2, NAN}},
                                       {"error_energy", {10, 1e9f, 0, 1}},
                                       {"score.linear", {-1, 0, 1, 2}}});
  }
  std::vector<ReportRun> runs() const { return read_runs(std::vector{path}); }
};

TEST(ReportRun, APartialSweepIsShownAsSuch) {
  Sweep sweep;
  sweep.tokens();
  const std::vector<ReportRun> runs = sweep.runs();
  EXPECT_EQ(runs[0].label, "tiny");
  EXPECT_EQ(extent(runs[0].result), "partial: 2 of 3 layers");
  ASSERT_EQ(cautions(runs).size(), 1u);
  EXPECT_CONTAINS(cautions(runs)[0], "partial: 2 of 3 layers");
  const std::string text = report_markdown(runs, sweep_tables(runs));
  EXPECT_CONTAINS(text, "partial: 2 of 3 layers");
  EXPECT_CONTAINS(text, "too dear");
  EXPECT_CONTAINS(text, "/t/&lt;wiki>.raw");
  const json map = token_map(runs[0], 4, {});
  EXPECT_EQ(map.at("pieces"), json({" 5", " 6", " 7"}));
  EXPECT_FALSE(map.at("known").get<bool>());
  EXPECT_TRUE(map.at("delta").at(1).is_null());
  EXPECT_TRUE(map.at("gates").at(0).at("layers").at(1).is_null());
  // Cut to whole sequences, one at least.
  EXPECT_EQ(token_map(runs[0], 3, {}).at("tokens").get<size_t>(), 2u);
  EXPECT_EQ(token_map(runs[0], 1, {}).at("tokens").get<size_t>(), 2u);
}

TEST(ReportRun, ThePageHoldsWhatItIsGivenAsText) {
  if (!has_charts()) GTEST_SKIP() << "built without Chart.js";
  Sweep sweep;
  sweep.tokens();
  const std::vector<ReportRun> runs = sweep.runs();
  const std::vector<TokenBytes> bytes = {[](int32_t) { return "</script><script>alert(1)"; }};
  const std::string page = report_page(runs, sweep_tables(runs), bytes);
  EXPECT_EQ(page.find("alert(1)</"), std::string::npos);
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find("<wiki>"), std::string::npos);
  EXPECT_EQ(page.find("{{"), std::string::npos);
  EXPECT_CONTAINS(page, "default-src 'none'");
  EXPECT_CONTAINS(page, "Permission is hereby granted");
}

TEST(ReportRun, RunsAreToldApart) {
  json other_text = sweep_result();
  other_text["text"] = {{"path", "/t/b.raw"}, {"sha256", "cc"}};
  json other_model = sweep_result();
  other_model["model"]["name"] = "org/other";
  other_model["model"]["sha256"] = "dd";
  const Sweep a, b(other_text), c(other_model), d;
  const auto runs = read_runs(std::vector{a.path, b.path, c.path, d.path});
  EXPECT_EQ(runs[0].label, "tiny, <wiki>.raw, " + a.path.filename().string());
  EXPECT_EQ(runs[1].label, "tiny, b.raw");
  EXPECT_EQ(runs[2].label, "other");
  std::string all;
  for (const std::string& caution : cautions(runs)) all += caution;
  EXPECT_CONTAINS(all, "different models");
  EXPECT_CONTAINS(all, "different texts");
  EXPECT_CONTAINS(error_of([&] { read_runs(std::vector{a.path, a.path}); }), "twice");
}

TEST(ReportRun, AnAnalysisGivesItsTables) {
  const auto value = [](double v) {
    return json{{"value", v}, {"ci_lo", v - 0.1}, {"ci_hi", v + 0.1}};
  };
  json analysis = sweep_result();
  analysis["kind"] = "analysis";
  analysis["second_text"] = {{"path", "/t/b.txt"}, {"sha256", "ee"}};
  analysis["statements"] = {
      {{"statement", "it is so"},
       {"verdict", "holds"},
       {"value", 0.5},
       {"ci_lo", 0.4},
       {"ci_hi", nullptr},
       {"layers", 1},
       {"layers_hold", 1},
       {"layers_fail", 0},
       {"published", "0.4"},
       {"measured", "m"},
       {"rule", "r"},
       {"note", "n"}},
      {{"statement", "it is not"}, {"verdict", "undecided"}, {"value", nullptr}}};
  json few = value(0.9);
  few["too_few"] = 3;
  analysis["layers"] = {{{"layer", 0},
                         {"gates", {{"auc", {{"whole", value(0.6)}, {"raw_token", few}}}}},
                         {"explained", {{"both", value(0.02)}}}},
                        {{"layer", 1}, {"failed", "2 loss differences are not finite"}}};
  TemporaryFolder folder;
  folder.write("analysis.json", analysis.dump());
  const std::vector<ReportRun> runs = read_runs(std::vector{folder.path});
  const std::vector<Table> tables = analysis_tables(runs);
  ASSERT_EQ(tables.size(), 3u);  // what the analysis does not have leaves no table
  EXPECT_EQ(tables[0].id, "statements");
  EXPECT_EQ(tables[1].id, "probes");
  EXPECT_EQ(format_cell(tables[1].rows.at(0).at(3), tables[1].columns[3]), "too few (3)");
  EXPECT_EQ(std::get<std::string>(tables[1].rows.at(0).at(2)), "raw token");
  EXPECT_EQ(format_cell(tables[2].rows.at(0).at(3), tables[2].columns[3]), "+2.00 [-8.00, +12.00]");
  EXPECT_CONTAINS(summary(runs[0]).at(0), "1 hold on this text, 0 do not, and 1 are undecided");
  EXPECT_CONTAINS(cautions(runs).at(1), "not finite");
}

TEST(ReportRun, BadInputIsNamed) {
  const auto refused = [](const Sweep& sweep) { return error_of([&] { sweep.runs(); }); };
  TemporaryFolder empty;
  EXPECT_CONTAINS(error_of([&] { read_runs(std::vector{empty.path}); }), "holds no result.json");
  EXPECT_CONTAINS(error_of([&] { read_runs(std::vector{empty.path / "x"}); }), "no such directory");
  json schema = sweep_result();
  schema["schema"] = 7;
  EXPECT_CONTAINS(refused(Sweep(schema)), "expected schema 1, found 7");
  json kind = sweep_result();
  kind["kind"] = "allocation";
  EXPECT_CONTAINS(refused(Sweep(kind)), "found \"allocation\"");
  json nothing = sweep_result();
  nothing["layers"] = json::array();
  EXPECT_CONTAINS(refused(Sweep(nothing)), "holds no layer");
  json lacking = sweep_result();
  lacking["layers"][0].erase("gates");
  Sweep without(lacking);
  without.tokens();
  EXPECT_CONTAINS(refused(without), "gates");
  Sweep broken;
  broken.write("result.json", "{\"schema\": 1,");
  EXPECT_CONTAINS(refused(broken), "result.json");
  Sweep ids;
  ids.columns("tokens.safetensors", {{"id", {0.5f}}, {"sequence", {0}}, {"loss", {1}}});
  EXPECT_CONTAINS(refused(ids), "token 0");
  Sweep counts;
  counts.tokens();
  counts.columns("layers/000.safetensors", {{"delta", {1}}, {"error_energy", {1}}});
  EXPECT_CONTAINS(refused(counts), "expected 4 tokens, found 1");
}

}  // namespace
}  // namespace halflin
