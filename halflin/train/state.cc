#include "halflin/train/state.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>

#include "halflin/base/error.h"
#include "halflin/io/file.h"
#include "halflin/io/tensor_file.h"
#include "halflin/ops/adamw.h"

namespace halflin {

namespace {

using nlohmann::json;

std::string entry(const TensorFile& file, const char* key) {
  if (!file.metadata.is_object() || !file.metadata.contains(key) ||
      !file.metadata.at(key).is_string()) {
    fail("{}: expected \"{}\" in its metadata, found none: no state of a training run", file.path,
         key);
  }
  return file.metadata.at(key).get<std::string>();
}

size_t steps_of(const TensorFile& file) {
  const std::string text = entry(file, "steps");
  size_t steps = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail("{}: \"steps\" should be a number, found \"{}\"", file.path, text);
  }
  return steps;
}

}  // namespace

void save_state(ThreadPool& pool, const Optimizer& optimizer, const std::string& identity,
                const std::filesystem::path& path) {
  std::vector<TensorToWrite> tensors;
  for (const ParameterMoments& m : optimizer.moments) {
    const Parameter& p = *m.parameter;
    if (!std::isfinite(sum_of_squares(pool, p.value.span()))) {
      fail("step {}: {} is no longer finite; the last state that was saved stays", optimizer.steps,
           p.name);
    }
    const std::vector<size_t> shape{p.value.rows(), p.value.cols()};
    tensors.push_back({p.name, DType::kF32, shape, std::as_bytes(p.value.span())});
    tensors.push_back({p.name + ":first", DType::kF32, shape, std::as_bytes(m.first.span())});
    tensors.push_back({p.name + ":second", DType::kF32, shape, std::as_bytes(m.second.span())});
  }
  write_safetensors(path, tensors,
                    {{"identity", identity}, {"steps", std::to_string(optimizer.steps)}});
}

void load_state(const std::filesystem::path& path, const std::string& identity,
                Optimizer& optimizer) {
  const TensorFile file = open_safetensors(path);
  const size_t steps = steps_of(file);
  if (entry(file, "identity") != identity) {
    fail("{}: the state of another run; choose another directory", path.string());
  }
  if (file.tensors.size() != 3 * optimizer.moments.size()) {
    fail("{}: expected {} tensors, found {}", path.string(), 3 * optimizer.moments.size(),
         file.tensors.size());
  }
  const auto read = [&](const std::string& name, Matrix<float>& into) {
    const TensorInfo& tensor = file.at(name);
    if (tensor.shape != std::vector<size_t>{into.rows(), into.cols()} ||
        tensor.dtype != DType::kF32) {
      fail("{}: tensor {}: expected float32 [{}, {}], found another", path.string(), name,
           into.rows(), into.cols());
    }
    read_f32(tensor, 0, into.span());
  };
  for (ParameterMoments& m : optimizer.moments) {
    read(m.parameter->name, m.parameter->value);
    read(m.parameter->name + ":first", m.first);
    read(m.parameter->name + ":second", m.second);
  }
  optimizer.steps = steps;
}

size_t state_steps(const std::filesystem::path& path) { return steps_of(open_safetensors(path)); }

TrainLog::TrainLog(std::filesystem::path path, size_t steps) : path_(std::move(path)) {
  if (std::filesystem::exists(path_)) {
    const std::string found = read_file(path_);
    std::string kept;
    for (size_t begin = 0; begin < found.size();) {
      const size_t end = found.find('\n', begin);
      if (end == std::string::npos) break;  // cut off while it was written
      const std::string line = found.substr(begin, end + 1 - begin);
      const json parsed = json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number_unsigned() ||
          parsed["step"] > steps) {
        break;
      }
      kept += line;
      begin = end + 1;
    }
    if (kept != found) write_file_atomically(path_, kept);
  }
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("{}: cannot write: {}", path_.string(), std::strerror(errno));
}

void TrainLog::append(const json& line) {
  const std::string text = line.dump() + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(fd_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("{}: cannot write: {}", path_.string(), std::strerror(errno));
    done += static_cast<size_t>(written);
  }
}

void TrainLog::sync() {
  if (::fsync(fd_) != 0) fail("{}: cannot write: {}", path_.string(), std::strerror(errno));
}

TrainLog::~TrainLog() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace halflin
