// AdamW against float64 and PyTorch's figures; schedules; who is trained, and who decays.
#include "halflin/train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "halflin/base/error.h"
#include "halflin/base/random.h"
#include "halflin/ops/adamw.h"

namespace halflin {
namespace {

Config small_config() {
  Config config;
  config.family = "gpt2";
  config.layers = 2;
  config.d_model = 8;
  config.d_mlp = 16;
  config.vocab = 11;
  config.max_positions = 8;
  config.learned_positions = true;
  config.tied_head = true;
  config.attention.heads = config.attention.kv_heads = 2;
  config.attention.head_dim = 4;
  return config;
}

struct Small {
  ThreadPool pool{2};
  TrainModel model = make_train_model(small_config(), 8, true, true);

  Small() {
    set_trainable(parameters(model), true);
    for (Parameter* p : parameters(model)) {
      Random random(1, p->name);
      for (float& v : p->value.span()) v = static_cast<float>(random.normal());
    }
  }
  void draw_gradients(size_t step) {
    for (Parameter* p : parameters(model)) {
      Random random(step, "gradient " + p->name);
      for (float& v : p->gradient.span()) v = static_cast<float>(0.1 * random.normal());
    }
  }
};

// torch 2.13.0: p = torch.tensor([1., -2., 3.], requires_grad=True);
// torch.optim.AdamW([p], lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1), gradients
// [0.5, -0.25, 0], then [-1, 2, 0.125], then [0.25, 0.25, 0.25].
TEST(AdamW, EqualsPyTorch) {
  ThreadPool pool(1);
  std::vector<float> value{1, -2, 3}, first(3), second(3);
  const std::vector<std::vector<float>> gradients{
      {0.5f, -0.25f, 0.f}, {-1.f, 2.f, 0.125f}, {0.25f, 0.25f, 0.25f}};
  const std::vector<std::vector<double>> want{
      {0.89, -1.88, 2.97}, {0.9174374, -1.925949, 2.866804}, {0.9219854, -1.964852, 2.756902}};
  for (size_t t = 1; t <= gradients.size(); ++t) {
    AdamWStep step;
    step.beta2 = 0.95f;
    step.first_weight = 0.1f;
    step.second_weight = 0.05f;
    step.shrink = static_cast<float>(1 - 0.1 * 0.1);
    step.step_size = static_cast<float>(0.1 / (1 - std::pow(0.9, t)));
    step.root_correction = static_cast<float>(std::sqrt(1 - std::pow(0.95, t)));
    adamw_update(pool, step, gradients[t - 1], value, first, second);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(value[i], want[t - 1][i], 2e-6) << "step " << t << " element " << i;
    }
  }
}

// The whole optimiser, clipping included, against float64, on lengths that are no multiple of a
// vector's.
TEST(AdamW, StepsEqualFloat64) {
  Small small;
  AdamWOptions options;
  options.beta2 = 0.98;
  options.weight_decay = 0.2;
  options.clip = 0.7;
  options.rules = {{"layers.1.*", false, 0.5, 0.0}};
  Optimizer optimizer = make_optimizer(small.model, options);
  struct Reference {
    std::vector<double> value, first, second;
  };
  std::vector<Reference> references;
  for (const ParameterMoments& m : optimizer.moments) {
    const std::span<const float> value = m.parameter->value.span();
    references.push_back({{value.begin(), value.end()},
                          std::vector<double>(value.size()),
                          std::vector<double>(value.size())});
  }
  for (size_t t = 1; t <= 5; ++t) {
    small.draw_gradients(t);
    double square = 0;
    for (const ParameterMoments& m : optimizer.moments) {
      for (const float g : m.parameter->gradient.span()) {
        square += static_cast<double>(g) * static_cast<double>(g);
      }
    }
    const double norm = gradient_norm(small.pool, optimizer);
    EXPECT_NEAR(norm, std::sqrt(square), 1e-9);
    EXPECT_GT(norm, options.clip);
    const double rate = 0.01 * static_cast<double>(t);
    optimizer_step(small.pool, optimizer, rate, norm);
    for (size_t k = 0; k < references.size(); ++k) {
      const Parameter& p = *optimizer.moments[k].parameter;
      Reference& r = references[k];
      const bool ruled = p.name.starts_with("layers.1.");
      const bool decayed = p.value.rows() > 1 && !ruled;
      const double own_rate = ruled ? 0.5 * rate : rate;
      for (size_t i = 0; i < r.value.size(); ++i) {
        const double g = static_cast<double>(p.gradient.span()[i]) * options.clip / (norm + 1e-6);
        r.first[i] = 0.9 * r.first[i] + 0.1 * g;
        r.second[i] = 0.98 * r.second[i] + 0.02 * g * g;
        const double n = static_cast<double>(t);
        r.value[i] *= 1 - own_rate * (decayed ? 0.2 : 0.0);
        r.value[i] -= own_rate * r.first[i] / (1 - std::pow(0.9, n)) /
                      (std::sqrt(r.second[i] / (1 - std::pow(0.98, n))) + 1e-8);
        ASSERT_NEAR(p.value.span()[i], r.value[i], 2e-6) << p.name << " " << i << " step " << t;
      }
    }
  }
}

TEST(AdamW, OneThreadOrFour) {
  std::vector<std::vector<float>> values;
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    std::vector<float> value(200003, 1.f), first(200003), second(200003), gradient(200003);
    Random random(3);
    for (float& g : gradient) g = static_cast<float>(random.normal());
    const double norm = sum_of_squares(pool, gradient);
    AdamWStep step;
    step.step_size = static_cast<float>(1 / norm);
    adamw_update(pool, step, gradient, value, first, second);
    value.push_back(static_cast<float>(norm));
    values.push_back(value);
  }
  EXPECT_EQ(values[0], values[1]);
}

TEST(Optimizer, FrozenParametersCostNothing) {
  Small small;
  AdamWOptions options;
  options.rules = {{"*", true, 1, {}}, {"layers.0.mlp.*", false, 1, {}}};
  const Optimizer optimizer = make_optimizer(small.model, options);
  EXPECT_EQ(optimizer.moments.size(), 4u);
  for (const Parameter* p : parameters(small.model)) {
    EXPECT_EQ(p->trainable(), p->name.starts_with("layers.0.mlp.full.")) << p->name;
  }
  options.rules = {{"*", true, 1, {}}};
  EXPECT_THROW(make_optimizer(small.model, options), Error);
  options.rules = {{"layer.0.*", true, 1, {}}};
  try {
    make_optimizer(small.model, options);
    FAIL() << "a pattern that matches nothing";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("layer.0.*"), std::string::npos) << error.what();
  }
}

TEST(Schedule, WarmsUpAndFalls) {
  Schedule schedule;
  schedule.peak = 2;
  schedule.warmup = 4;
  schedule.steps = 12;
  schedule.final_share = 0.1;
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 3), 1.5);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 4), 2);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 8), 2 * (0.1 + 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 12), 0.2);
  schedule.kind = Schedule::Kind::kConstant;
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 2), 1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 12), 2);
  schedule = {Schedule::Kind::kCosine, 3, 0, 1, 0};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1), 3);
}

}  // namespace
}  // namespace halflin
