// Allocation files: what is written comes back, and what is not as it was written is refused in one
// line that says what differs.
#include "halflin/mlp/allocation.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "halflin/base/random.h"
#include "halflin/io/file.h"
#include "halflin/measure/paths.h"
#include "halflin/measure/perplexity.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

Matrix<float> random_matrix(Random& random, size_t rows, size_t cols) {
  Matrix<float> m(rows, cols);
  for (float& v : m.span()) v = 0.1f * static_cast<float>(random.normal());
  return m;
}

std::vector<float> random_vector(Random& random, size_t n) {
  std::vector<float> v(n);
  for (float& x : v) x = 0.1f * static_cast<float>(random.normal());
  return v;
}

// Every part of the format once, over the layers of a tiny model.
Allocation make_allocation(const AllocationModel& model) {
  Random random(3, "allocation");
  const size_t d = model.d_model;
  Allocation out;
  out.model = model;
  out.metadata = {{"price", 0.25}, {"note", "ä"}};
  out.layers.resize(model.layers);
  PlainOption affine;
  affine.path.kind = "linear";
  affine.path.affine = {random_matrix(random, d, d), random_vector(random, d)};
  affine.gate =
      Gate{.name = "harm", .weight = random_vector(random, d), .bias = 0.1f, .threshold = 0.2f};
  affine.gate->params = d + 1;
  PlainOption folded;
  folded.path.kind = "folded";
  folded.path.low_rank_in = {random_matrix(random, 3, d), {}};
  folded.path.low_rank_out = {random_matrix(random, d, 3), random_vector(random, d)};
  folded.path.neurons.kept = {0, 2, 5, static_cast<int32_t>(model.d_mlp) - 1};
  folded.path.neurons.down = {random_matrix(random, d, 4), {}};
  folded.gate = Gate{.name = "network",
                     .weight = random_vector(random, 5),
                     .bias = -0.1f,
                     .threshold = std::numeric_limits<float>::lowest(),
                     .params = 5 * d + 11,
                     .hidden = random_vector(random, 5 * d),
                     .hidden_bias = random_vector(random, 5)};
  PlainOption narrow;
  narrow.path.kind = "narrow";
  narrow.path.neurons.kept = {1, 3};
  narrow.path.neurons.up = {random_matrix(random, 2, d), random_vector(random, 2)};
  narrow.path.constant = random_vector(random, d);
  out.layers.front().push_back(std::move(affine));
  out.layers.front().push_back(std::move(folded));
  out.layers.back().push_back(std::move(narrow));
  return out;
}

void expect_equal(const PlainLinear& a, const PlainLinear& b) {
  ASSERT_EQ(a.weight.rows(), b.weight.rows());
  ASSERT_EQ(a.weight.cols(), b.weight.cols());
  EXPECT_TRUE(std::equal(a.weight.span().begin(), a.weight.span().end(), b.weight.span().begin()));
  EXPECT_EQ(a.bias, b.bias);
}

class AllocationTest : public testing::Test {
 protected:
  static constexpr const char* kModel = HALFLIN_FIXTURES "/models/llama_gqa";
  TemporaryFolder folder_;
  std::string path_ = (folder_.path / "a.safetensors").string();
  AllocationModel model_ = allocation_model("llama_gqa", read_checkpoint(kModel));

  std::string written(bool bf16 = false) {
    save_allocation(path_, make_allocation(model_), bf16);
    return read_file(path_);
  }
  // The file with `from` replaced, once, by the equally long `to`.
  void edit(const std::string& from, const std::string& to) {
    std::string bytes = written();
    const size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    bytes.replace(at, from.size(), to);
    write_file_atomically(path_, bytes);
  }
};

TEST_F(AllocationTest, ComesBackAsWritten) {
  written();
  const Allocation a = make_allocation(model_);
  const Allocation b = load_allocation(path_);
  EXPECT_EQ(a.metadata, b.metadata);
  EXPECT_EQ(a.model.sha256, b.model.sha256);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t l = 0; l < a.layers.size(); ++l) {
    ASSERT_EQ(a.layers[l].size(), b.layers[l].size());
    for (size_t i = 0; i < a.layers[l].size(); ++i) {
      const PlainOption& x = a.layers[l][i];
      const PlainOption& y = b.layers[l][i];
      EXPECT_EQ(x.path.kind, y.path.kind);
      expect_equal(x.path.affine, y.path.affine);
      expect_equal(x.path.low_rank_in, y.path.low_rank_in);
      expect_equal(x.path.low_rank_out, y.path.low_rank_out);
      expect_equal(x.path.neurons.gate, y.path.neurons.gate);
      expect_equal(x.path.neurons.up, y.path.neurons.up);
      expect_equal(x.path.neurons.down, y.path.neurons.down);
      EXPECT_EQ(x.path.neurons.kept, y.path.neurons.kept);
      EXPECT_EQ(x.path.constant, y.path.constant);
      ASSERT_EQ(x.gate.has_value(), y.gate.has_value());
      if (!x.gate) continue;
      EXPECT_EQ(x.gate->name, y.gate->name);
      EXPECT_EQ(x.gate->params, y.gate->params);
      EXPECT_EQ(x.gate->weight, y.gate->weight);
      EXPECT_EQ(x.gate->bias, y.gate->bias);
      EXPECT_EQ(x.gate->threshold, y.gate->threshold);
      EXPECT_EQ(x.gate->hidden, y.gate->hidden);
      EXPECT_EQ(x.gate->hidden_bias, y.gate->hidden_bias);
    }
  }
}

TEST_F(AllocationTest, SavingWhatWasLoadedGivesTheSameBytes) {
  for (const bool bf16 : {false, true}) {
    const std::string bytes = written(bf16);
    const std::string again = (folder_.path / "again").string();
    save_allocation(again, load_allocation(path_), bf16);
    EXPECT_EQ(read_file(again), bytes);
  }
}

TEST_F(AllocationTest, Bfloat16RoundsMatricesAndNothingElse) {
  written(true);
  const Allocation a = make_allocation(model_);
  const Allocation b = load_allocation(path_);
  const PlainLinear& exact = a.layers[0][0].path.affine;
  const PlainLinear& rounded = b.layers[0][0].path.affine;
  for (size_t i = 0; i < exact.weight.size(); ++i) {
    ASSERT_EQ(rounded.weight.data()[i], to_float(to_bf16(exact.weight.data()[i])));
  }
  EXPECT_EQ(rounded.bias, exact.bias);
  EXPECT_EQ(b.layers[0][0].gate->weight, a.layers[0][0].gate->weight);
  EXPECT_EQ(b.layers[0][1].gate->hidden, a.layers[0][1].gate->hidden);
}

TEST_F(AllocationTest, RefusesWhatWasEdited) {
  edit(R"(\"price\":0.25)", R"(\"price\":0.75)");
  EXPECT_NE(error_of([&] { load_allocation(path_); }).find("edited or damaged"), std::string::npos);

  std::string bytes = written();
  bytes[bytes.size() - 7] = static_cast<char>(bytes[bytes.size() - 7] ^ 1);
  write_file_atomically(path_, bytes);
  EXPECT_NE(error_of([&] { load_allocation(path_); }).find("edited or damaged"), std::string::npos);
}

TEST_F(AllocationTest, RefusesWhatWasTruncated) {
  const std::string bytes = written();
  for (const size_t length : {size_t{0}, size_t{5}, size_t{200}, bytes.size() - 1}) {
    write_file_atomically(path_, bytes.substr(0, length));
    EXPECT_NE(error_of([&] { load_allocation(path_); }).find(path_), std::string::npos) << length;
  }
}

TEST_F(AllocationTest, RefusesAnotherSchemaByNumber) {
  edit(R"("schema":"1")", R"("schema":"7")");
  EXPECT_NE(error_of([&] { load_allocation(path_); }).find("schema '7'"), std::string::npos);
}

TEST_F(AllocationTest, RefusesAFileThatIsNoAllocation) {
  const std::string weights = std::string(kModel) + "/model.safetensors";
  EXPECT_NE(error_of([&] { load_allocation(weights); }).find("expected an allocation"),
            std::string::npos);
}

TEST_F(AllocationTest, RefusesAnotherModelSayingWhatDiffers) {
  written();
  const auto refusal = [&](const char* name) {
    const std::string other = std::string(HALFLIN_FIXTURES "/models/") + name;
    return error_of([&] { load_allocation_for(path_, name, read_checkpoint(other)); });
  };
  EXPECT_NE(refusal("gpt2_base").find("whose family is gpt2"), std::string::npos);
  AllocationModel twin = model_;
  twin.sha256.front() = twin.sha256.front() == '0' ? '1' : '0';
  const Allocation loaded = load_allocation(path_);
  EXPECT_NE(error_of([&] { check_allocation_model(loaded, twin, path_); }).find("sha256"),
            std::string::npos);
}

TEST_F(AllocationTest, RefusesShapesThatContradictTheModel) {
  const auto refused = [&](const auto& change) {
    Allocation a = make_allocation(model_);
    change(a);
    return error_of([&] { save_allocation(path_, a, false); });
  };
  EXPECT_NE(refused([](Allocation& a) { a.layers.pop_back(); }).find("layers"), std::string::npos);
  EXPECT_NE(refused([](Allocation& a) { a.layers[0][0].gate.reset(); }).find("every token"),
            std::string::npos);
  EXPECT_NE(refused([](Allocation& a) {
              a.layers[0][0].path.affine.weight = Matrix<float>(2, 2);
            }).find("affine"),
            std::string::npos);
  EXPECT_NE(refused([](Allocation& a) { a.layers[0][1].path.neurons.kept[1] = 0; }).find("rising"),
            std::string::npos);
  EXPECT_NE(refused([](Allocation& a) { a.layers[0][0].gate->weight.pop_back(); }).find("gate"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(AllocationTest, PacksIntoPathsThatComputeWhatItSays) {
  ThreadPool pool(1);
  const Model model = load_model(pool, read_checkpoint(kModel), Precision::kF32, 16);
  const Allocation a = make_allocation(model_);
  const std::vector<MlpPath> paths = pack_allocation(pool, model, a);
  ASSERT_EQ(paths.size(), model.config.layers);
  ASSERT_EQ(paths.front().options.size(), 2u);

  const size_t d = model_.d_model;
  Random random(4, "x");
  const Matrix<float> x = random_matrix(random, 7, d);
  Matrix<float> y(7, d);
  MlpScratch scratch(model.precision, 7, d, model_.d_mlp, model_.gated_mlp);
  apply_cheap(pool, *paths[0].options[1].path, x.view(), false, y.view(), scratch);

  const PlainPath& path = a.layers[0][1].path;
  const MlpWeights weights = read_mlp_weights(model, 0);
  const auto row = [&](const Matrix<float>& m, size_t r, size_t t) {
    double sum = 0;
    for (size_t i = 0; i < d; ++i) sum += static_cast<double>(m(r, i)) * x(t, i);
    return sum;
  };
  for (size_t t = 0; t < 7; ++t) {
    for (size_t o = 0; o < d; ++o) {
      double expected = path.low_rank_out.bias[o];
      for (size_t r = 0; r < 3; ++r) {
        expected += path.low_rank_out.weight(o, r) * row(path.low_rank_in.weight, r, t);
      }
      for (size_t k = 0; k < path.neurons.kept.size(); ++k) {
        const auto j = static_cast<size_t>(path.neurons.kept[k]);
        const double gate =
            row(weights.gate, j, t) + (weights.gate_bias.empty() ? 0.0 : weights.gate_bias[j]);
        const double up =
            row(weights.up, j, t) + (weights.up_bias.empty() ? 0.0 : weights.up_bias[j]);
        expected += path.neurons.down.weight(o, k) * gate / (1 + std::exp(-gate)) * up;
      }
      EXPECT_NEAR(y(t, o), expected, 1e-5);
    }
  }
}

}  // namespace
}  // namespace halflin
