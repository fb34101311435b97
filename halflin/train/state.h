// The state of a training run on disk, and its log.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "halflin/train/optimizer.h"

namespace halflin {

// Writes the trainable weights, their moments and the number of steps: whole or not at all, the
// file that was there before stays until the new one is on disk. Throws Error, too, where a weight
// is not finite.
void save_state(ThreadPool& pool, const Optimizer& optimizer, const std::string& identity,
                const std::filesystem::path& path);

// Reads it back; frozen parameters are left as they are. Throws Error naming what differs where the
// file is of another identity or of other parameters.
void load_state(const std::filesystem::path& path, const std::string& identity,
                Optimizer& optimizer);

// The number of steps that a state holds.
size_t state_steps(const std::filesystem::path& path);

// A log of JSON lines, each with a "step". What a killed run wrote beyond `steps`, or wrote in
// part, is dropped when it is opened.
class TrainLog {
 public:
  TrainLog(std::filesystem::path path, size_t steps);
  // Appends a line and hands it to the system. Throws Error where that fails.
  void append(const nlohmann::json& line);
  // Makes what was written so far last.
  void sync();
  TrainLog(const TrainLog&) = delete;
  TrainLog& operator=(const TrainLog&) = delete;
  ~TrainLog();

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace halflin
