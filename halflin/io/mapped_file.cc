#include "halflin/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "halflin/base/error.h"

namespace halflin {

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path.string()) {
  // O_NONBLOCK: a pipe in a file's place is refused below, not waited for.
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail("{}: cannot open: {}", path_, std::strerror(errno));
  struct stat status = {};
  void* address = MAP_FAILED;
  int error = 0;
  if (::fstat(fd, &status) != 0) {
    error = errno;
  } else if (S_ISREG(status.st_mode) && status.st_size > 0) {
    address = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
    if (address == MAP_FAILED) error = errno;
  }
  ::close(fd);
  if (error != 0) fail("{}: cannot map: {}", path_, std::strerror(error));
  if (!S_ISREG(status.st_mode)) {
    fail("{}: expected a file, found {}", path_,
         S_ISDIR(status.st_mode) ? "a directory" : "something that is not a regular file");
  }
  if (status.st_size == 0) fail("{}: expected a checkpoint, found an empty file", path_);
  bytes_ = {static_cast<const std::byte*>(address), static_cast<size_t>(status.st_size)};
}

MappedFile::~MappedFile() {
  ::munmap(const_cast<void*>(static_cast<const void*>(bytes_.data())), bytes_.size());
}

}  // namespace halflin
