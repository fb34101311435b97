#include "halflin/io/file.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "halflin/io/sha256.h"
#include "tests/io/testing.h"

namespace halflin {
namespace {

namespace fs = std::filesystem;

TEST(File, WhatIsWrittenIsRead) {
  const TemporaryFolder folder;
  const fs::path path = folder.path / "out";
  const std::string contents("a\0b\n", 4);
  write_file_atomically(path, "old");
  write_file_atomically(path, contents);
  EXPECT_EQ(read_file(path), contents);
  write_file_atomically(path, "");
  EXPECT_EQ(read_file(path), "");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()), 1);
}

TEST(File, LinksAndDevicesStayWhatTheyAre) {
  const TemporaryFolder folder;
  const fs::path link = folder.path / "link";
  write_file_atomically(folder.path / "file", "old");
  fs::create_symlink("file", link);
  write_file_atomically(link, "new");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read_file(folder.path / "file"), "new");

  fs::remove(link);
  fs::create_symlink("/dev/full", link);
  EXPECT_CONTAINS(error_of([&] { write_file_atomically(link, "x"); }),
                  "link: cannot write: No space left on device");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST(File, ReadsWhatHasNoSize) { EXPECT_GT(read_file("/proc/self/status").size(), 10u); }

TEST(File, NamesWhatCannotBeReadOrWritten) {
  const TemporaryFolder folder;
  EXPECT_CONTAINS(error_of([&] { read_file(folder.path / "none"); }),
                  "none: cannot open: No such file or directory");
  EXPECT_CONTAINS(error_of([&] { read_file(folder.path); }), "Is a directory");
  EXPECT_CONTAINS(error_of([&] { write_file_atomically(folder.path / "no" / "out", "x"); }),
                  "out: cannot write: No such file or directory");
  fs::create_directories(folder.path / "taken" / "in");
  EXPECT_CONTAINS(error_of([&] { write_file_atomically(folder.path / "taken", "x"); }),
                  "taken: cannot replace: ");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()), 1);
}

// A limit on file sizes stands in for a full disk: the write stops half-way with an error.
TEST(File, AFailedWriteLeavesTheOldFile) {
  const TemporaryFolder folder;
  const fs::path path = folder.path / "out";
  write_file_atomically(path, "old");
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = before;
  limit.rlim_cur = 1000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string message =
      error_of([&] { write_file_atomically(path, std::string(100'000, 'x')); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_CONTAINS(message, "out: cannot write: File too large");
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()), 1);
}

TEST(File, WhatAKilledWriterLeftIsUsedAgain) {
  const TemporaryFolder folder;
  // What the temporary file is called, and the whole of what a killed writer leaves.
  fs::path left;
  {
    AtomicFile file(folder.path / "out");
    left = fs::directory_iterator(folder.path)->path();
  }
  EXPECT_FALSE(fs::exists(left));
  folder.write(left.filename().string(), "half of a longer file");
  write_file_atomically(folder.path / "out", "new");
  EXPECT_EQ(read_file(folder.path / "out"), "new");
  EXPECT_FALSE(fs::exists(left));
}

// Each file is one writer's, whole: none is empty, mixed or cut.
TEST(File, WritersAtOnceWriteOneAfterTheOther) {
  const TemporaryFolder folder;
  const fs::path path = folder.path / "out";
  const auto contents = [](int writer) { return std::string(10'000 + writer, 'a' + writer); };
  write_file_atomically(path, contents(0));
  std::atomic<int> at_work{4};
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      for (int i = 0; i < 50; ++i) write_file_atomically(path, contents(writer));
      --at_work;
    });
  }
  int whole = 0, read = 0;
  while (at_work > 0 || read == 0) {
    const std::string found = read_file(path);
    whole += found == contents(found.front() - 'a');
    ++read;
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(whole, read);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()), 1);
}

TEST(File, WithoutCommitNothingHappens) {
  const TemporaryFolder folder;
  {
    AtomicFile file(folder.path / "out");
    file.write("x");
  }
  EXPECT_TRUE(fs::is_empty(folder.path));
}

TEST(File, AWritableDirectoryIsCreatedAndProved) {
  const TemporaryFolder folder;
  ensure_writable_directory(folder.path / "a" / "b");
  ensure_writable_directory(folder.path / "a" / "b");
  EXPECT_TRUE(fs::is_empty(folder.path / "a" / "b"));
  folder.write("file", "x");
  EXPECT_CONTAINS(error_of([&] { ensure_writable_directory(folder.path / "file"); }), "file: ");
  EXPECT_CONTAINS(error_of([&] { ensure_writable_directory(folder.path / "file" / "sub"); }),
                  "cannot create the directory");
  EXPECT_CONTAINS(error_of([&] { ensure_writable_directory("/proc/1/x"); }), "/proc/1/x: cannot");
  EXPECT_CONTAINS(error_of([&] { ensure_writable_directory("/proc"); }), "/proc: cannot write");
}

TEST(Sha256, EqualsThePublishedDigests) {
  EXPECT_EQ(sha256_hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(bytes_of("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 sha;
  sha.update(bytes_of("a"));
  sha.update(bytes_of("bc"));
  EXPECT_EQ(sha.hex(), sha256_hex(bytes_of("abc")));
}

}  // namespace
}  // namespace halflin
