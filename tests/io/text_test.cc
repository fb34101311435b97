#include "halflin/io/text.h"

#include "halflin/io/sha256.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

TEST(Text, ReadsUtf8) {
  const TemporaryFolder folder;
  const auto path = folder.write("t.txt", "Größe\n");
  const Text text = read_text(path);
  EXPECT_EQ(text.path, path.string());
  EXPECT_EQ(text.bytes, "Größe\n");
  EXPECT_EQ(text.sha256, sha256_hex(bytes_of("Größe\n")));
}

TEST(Text, RefusesWhatIsNoText) {
  const TemporaryFolder folder;
  EXPECT_CONTAINS(error_of([&] { read_text(folder.path / "none"); }), "No such file");
  const auto empty = folder.write("empty.txt", "");
  EXPECT_CONTAINS(error_of([&] { read_text(empty); }), "empty.txt: expected UTF-8 text, found an");
  const auto latin1 = folder.write("latin1.txt", "caf\xe9 au lait");
  EXPECT_CONTAINS(error_of([&] { read_text(latin1); }),
                  "latin1.txt: byte offset 3: expected UTF-8, found byte 0xe9");
}

}  // namespace
}  // namespace halflin
