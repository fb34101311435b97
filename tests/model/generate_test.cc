#include "halflin/model/generate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "halflin/io/file.h"
#include "halflin/model/model.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

using Ids = std::vector<int32_t>;

Tokenizer tiny(const std::string& name) {
  return Tokenizer::from_json(
      read_file(std::string(HALFLIN_FIXTURES) + "/tokenizers/" + name + ".json"), name);
}

// A model that says the next token of its script, whatever it is told.
struct Fake {
  size_t context;
  size_t vocab;
  Ids script;
  size_t said = 0;
  Ids cache;
  std::vector<std::string> calls;
  std::vector<float> logits;
  Matrix<uint8_t> routes;

  std::span<const float> next(size_t tokens) {
    EXPECT_LE(cache.size(), context);
    logits.assign(vocab, 0.f);
    if (said < script.size()) logits[static_cast<size_t>(script[said++])] = 1;
    routes = Matrix<uint8_t>(tokens, 2);
    return logits;
  }

  TokenModel model() {
    return {context,
            [&](std::span<const int32_t> ids) {
              calls.push_back(fmt::format("prefill {}", ids.size()));
              cache.insert(cache.end(), ids.begin(), ids.end());
              return next(ids.size());
            },
            [&](int32_t id) {
              calls.push_back("step");
              cache.push_back(id);
              return next(1);
            },
            [&](size_t position) {
              calls.push_back(fmt::format("rewind {}", position));
              EXPECT_LE(position, cache.size());
              cache.resize(position);
            },
            [&] { return routes.view(); }};
  }
};

struct Generation : testing::Test {
  Tokenizer tokenizer = tiny("gpt2");
  std::atomic<bool> interrupted{false};
  Fake fake{100, tokenizer.size(), {}, 0, {}, {}, {}, {}};
  std::string shown;
  GenerateOptions options;

  void script(const std::string& text) { fake.script = tokenizer.encode(text); }
  Session session() { return {fake.model(), tokenizer, {}, interrupted}; }
  Generated generate(Session& session) {
    return session.generate(options, [&](std::string_view text) {
      EXPECT_EQ(find_invalid_utf8(text), std::string::npos);
      shown += text;
    });
  }
  Generated generate() {
    Session one = session();
    one.read(tokenizer.encode("The kettle"));
    const Generated out = generate(one);
    EXPECT_EQ(shown, out.text);
    return out;
  }
};

TEST_F(Generation, GivesTheScriptUpToTheLength) {
  script(" sings caf\xc3\xa9 \xf0\x9f\x98\x80");
  options.max_tokens = fake.script.size();
  const Generated out = generate();
  EXPECT_EQ(out.text, " sings caf\xc3\xa9 \xf0\x9f\x98\x80");
  EXPECT_EQ(out.ids, fake.script);
  EXPECT_EQ(out.reason, StopReason::kLength);
}

TEST_F(Generation, EndsAtAnEndToken) {
  script(" ab");
  const auto given = static_cast<std::ptrdiff_t>(fake.script.size());
  fake.script.push_back(7);
  fake.script.push_back(8);
  options.end = {9, 7};
  const Generated out = generate();
  EXPECT_EQ(out.reason, StopReason::kEnd);
  EXPECT_EQ(out.ids, Ids(fake.script.begin(), fake.script.begin() + given));
  EXPECT_EQ(out.text, " ab");
}

TEST_F(Generation, EndsBeforeAStopString) {
  script("one two\n\nthree");
  options.stop = {"\n\nth", "zzz"};
  const Generated out = generate();
  EXPECT_EQ(out.reason, StopReason::kStopString);
  EXPECT_EQ(out.stop, "\n\nth");
  EXPECT_EQ(out.text, "one two");
}

TEST_F(Generation, ShowsWhatWasHeldBackForAStopStringThatDidNotCome) {
  script("one two\n\nthr");
  options.stop = {"\n\nthree"};
  options.max_tokens = fake.script.size();
  EXPECT_EQ(generate().text, "one two\n\nthr");
}

TEST_F(Generation, ReplacesACharacterThatWasNotFinished) {
  script("x\xf0\x9f\x98\x80");
  options.max_tokens = fake.script.size() - 1;
  EXPECT_EQ(generate().text, "x\xef\xbf\xbd");
}

TEST_F(Generation, StopsWhereTheContextIsFull) {
  script("abcdefghijklmnopqrstuvwxyz");
  const size_t prompt = tokenizer.encode("The kettle").size();
  fake.context = prompt + 3;
  const Generated out = generate();
  EXPECT_EQ(out.reason, StopReason::kContext);
  EXPECT_EQ(out.ids.size(), 4u);  // the last one need not go through the model
  EXPECT_EQ(fake.cache.size(), fake.context);
}

TEST_F(Generation, ShiftsWhereTheContextIsFull) {
  fake.script = Ids(40, 5);
  for (size_t i = 0; i < fake.script.size(); ++i) fake.script[i] = static_cast<int32_t>(20 + i);
  fake.context = 12;
  options.shift = true;
  options.max_tokens = 30;
  Session one = session();
  one.read(Ids{1, 2, 3, 4, 5, 6});
  const Generated out = generate(one);
  EXPECT_EQ(out.reason, StopReason::kLength);
  EXPECT_EQ(out.ids, Ids(fake.script.begin(), fake.script.begin() + 30));
  EXPECT_GE(out.shifts, 4u);
  // The first tokens are still there, and the rest is what came last, but for the newest.
  EXPECT_EQ(Ids(fake.cache.begin(), fake.cache.begin() + 4), (Ids{1, 2, 3, 4}));
  EXPECT_EQ(fake.cache.back(), out.ids[28]);
  for (size_t i = 5; i < fake.cache.size(); ++i) EXPECT_EQ(fake.cache[i], fake.cache[i - 1] + 1);
  // The first shift: of 13 tokens the first 4 stay, and the newer 5 of the others.
  EXPECT_EQ(fake.calls[8], "rewind 4");
  EXPECT_EQ(fake.calls[9], "prefill 5");
}

TEST_F(Generation, ReadsOnlyWhatTheCacheLacks) {
  Session one = session();
  one.read(Ids{1, 2, 3});
  one.read(Ids{1, 2, 3, 4, 5});
  one.read(Ids{1, 2, 9});
  one.read(Ids{1, 2, 9});
  one.read(Ids{1});
  EXPECT_EQ(fake.calls, (std::vector<std::string>{"rewind 0", "prefill 3", "rewind 3", "prefill 2",
                                                  "rewind 2", "prefill 1", "rewind 2", "prefill 1",
                                                  "rewind 0", "prefill 1"}));
  EXPECT_EQ(one.prompt_passed().tokens, 8u);
}

TEST_F(Generation, KeepsAReplyInTheCacheForTheNextTurn) {
  fake.script = {30, 31, 32, 33};
  options.max_tokens = 3;
  Session one = session();
  one.read(Ids{1, 2});
  EXPECT_EQ(generate(one).ids, (Ids{30, 31, 32}));
  fake.calls.clear();
  one.read(Ids{1, 2, 30, 31, 32, 3, 4});
  EXPECT_EQ(fake.calls, (std::vector<std::string>{"rewind 4", "prefill 3"}));
}

TEST_F(Generation, RefusesPromptsThatDoNotFit) {
  fake.context = 3;
  Session one = session();
  EXPECT_CONTAINS(error_of([&] { one.read(Ids{1, 2, 3, 4}); }), "4 tokens do not fit");
  EXPECT_CONTAINS(error_of([&] { one.read(Ids{1, 2, 3, 4}); }), "context of 3");
  EXPECT_CONTAINS(error_of([&] { one.read(Ids{}); }), "no token to go on from");
  one.read(Ids{1, 2, 3});  // exactly full: one token comes
  EXPECT_EQ(generate(one).ids.size(), 1u);
}

TEST_F(Generation, EndsWhenInterrupted) {
  script("abcdefghijkl");
  Session one = session();
  one.read(tokenizer.encode("The kettle"));
  const Generated out = one.generate(options, [&](std::string_view text) {
    shown += text;
    if (shown.size() >= 3) interrupted = true;
  });
  EXPECT_EQ(out.reason, StopReason::kInterrupted);
  EXPECT_EQ(out.text, shown);
  EXPECT_GE(shown.size(), 3u);
  EXPECT_LT(out.ids.size(), fake.script.size());
  // And nothing is read or said from then on.
  fake.calls.clear();
  Session other = session();
  other.read(Ids{1, 2});
  EXPECT_EQ(other.generate(options, {}).ids.size(), 0u);
  EXPECT_EQ(fake.calls, (std::vector<std::string>{"rewind 0"}));
}

TEST_F(Generation, ReportsRoutesOfEachTokenThatPassed) {
  fake.script = {30, 31, 32};
  options.max_tokens = 3;
  Session one = session();
  Ids passed;
  const auto on_routes = [&](std::span<const int32_t> ids, MatView<const uint8_t> routes) {
    EXPECT_EQ(routes.rows, ids.size());
    passed.insert(passed.end(), ids.begin(), ids.end());
  };
  one.read(Ids{1, 2}, on_routes);
  one.generate(options, {}, on_routes);
  EXPECT_EQ(passed, (Ids{1, 2, 30, 31}));
}

TEST_F(Generation, NamesTheLogitThatIsNone) {
  TokenModel model = fake.model();
  model.step = [&](int32_t) {
    fake.logits.assign(fake.vocab, NAN);
    return std::span<const float>(fake.logits);
  };
  script("ab");
  Session one(model, tokenizer, {}, interrupted);
  one.read(Ids{1});
  EXPECT_CONTAINS(error_of([&] { generate(one); }), "logit of token 0 is nan");
  EXPECT_EQ(shown.size(), 1u);  // what came before is shown
}

TEST_F(Generation, IsTheSameForTheSameSeed) {
  const auto text = [&](uint64_t seed) {
    ThreadPool pool(2);
    Checkpoint checkpoint =
        read_checkpoint(std::string(HALFLIN_FIXTURES) + "/models/gpt2_gguf/model.gguf");
    const Tokenizer own = Tokenizer::from_gguf(checkpoint.file.metadata, "gguf");
    Decoder decoder(pool, load_model(pool, std::move(checkpoint), Precision::kF32, 37));
    SamplingOptions sampling;
    sampling.temperature = 1;
    sampling.seed = seed;
    Session one(token_model(decoder), own, sampling, interrupted);
    one.read(own.encode("the ants"));
    options.max_tokens = 20;
    return one.generate(options, {}).ids;
  };
  const Ids first = text(1);
  EXPECT_EQ(first.size(), 20u);
  EXPECT_EQ(text(1), first);
  EXPECT_NE(text(2), first);
}

}  // namespace
}  // namespace halflin
