#include "halflin/measure/harm.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>

#include "halflin/base/error.h"
#include "halflin/base/random.h"
#include "halflin/io/file.h"
#include "halflin/io/sha256.h"
#include "halflin/train/backward.h"
#include "halflin/train/checkpoint.h"

namespace halflin {

namespace fs = std::filesystem;

namespace {

constexpr size_t kDigits = 64;  // of a sha256

struct GradientFile {
  AtomicFile file;
  Sha256 sha256;
  explicit GradientFile(const fs::path& path) : file(path) {}
};

}  // namespace

SampledGradients::SampledGradients(fs::path directory, std::span<const Sample> samples,
                                   size_t d_model)
    : directory_(std::move(directory)), samples_(samples), d_model_(d_model), first_row_{0} {
  for (const Sample& sample : samples)
    first_row_.push_back(first_row_.back() + sample.batch.rows());
}

fs::path SampledGradients::path(size_t layer) const {
  return directory_ / fmt::format("{:03}.bf16", layer);
}

bool SampledGradients::has(size_t layer) const {
  std::error_code none;
  const size_t bytes = first_row_.back() * d_model_ * sizeof(bf16);
  if (fs::file_size(path(layer), none) != bytes + kDigits || none) return false;
  const std::string file = read_file(path(layer));
  return sha256_hex(std::as_bytes(std::span(file).first(bytes))) == file.substr(bytes);
}

void SampledGradients::read(size_t layer, size_t sample, MatView<float> gradients) const {
  std::ifstream file(path(layer), std::ios::binary);
  file.seekg(static_cast<std::streamoff>(first_row_[sample] * d_model_ * sizeof(bf16)));
  std::vector<bf16> row(d_model_);
  for (size_t t = 0; t < gradients.rows; ++t) {
    file.read(reinterpret_cast<char*>(row.data()),
              static_cast<std::streamsize>(d_model_ * sizeof(bf16)));
    if (!file) fail("{}: cannot read the gradients of row {}", path(layer).string(), t);
    std::transform(row.begin(), row.end(), gradients.row(t), [](bf16 v) { return to_float(v); });
  }
}

void SampledGradients::remove(size_t layer) const {
  std::error_code gone;
  fs::remove(path(layer), gone);
}

void SampledGradients::remove() const {
  std::error_code gone;
  fs::remove_all(directory_, gone);
}

void sample_gradients(ThreadPool& pool, TrainModel& model, Precision precision,
                      std::span<const size_t> layers, uint64_t seed,
                      const SampledGradients& gradients, const std::atomic<bool>& stop,
                      bool quiet) {
  gradients.remove();  // what a killed run left
  ensure_writable_directory(gradients.directory());
  std::map<size_t, GradientFile> files;
  for (const size_t layer : layers) files.try_emplace(layer, gradients.path(layer));
  Progress progress("gradients", static_cast<double>(count_rows(gradients.samples())), quiet);
  TrainWorkspace workspace;
  workspace.precision = precision;
  workspace.recompute = true;  // memory of one layer's activations
  Objective objective;
  objective.kind = Objective::Kind::kSampled;
  objective.scale = 1.f;
  std::vector<bf16> rounded;
  for (size_t s = 0; s < gradients.samples().size(); ++s) {
    const Batch& batch = gradients.samples()[s].batch;
    objective.seed = Random(seed, fmt::format("harm, sample {}", s)).next();
    backward(pool, model, batch, objective, workspace,
             [&](size_t layer, Operand, MatView<const float> gradient) {
               if (stop) throw Interrupted("interrupted");
               const auto file = files.find(layer);
               if (file == files.end()) return;
               rounded.resize(gradient.rows * gradient.cols);
               for (size_t t = 0; t < gradient.rows; ++t) {
                 std::transform(gradient.row(t), gradient.row(t) + gradient.cols,
                                rounded.begin() + static_cast<std::ptrdiff_t>(t * gradient.cols),
                                to_bf16);
               }
               file->second.file.write(std::as_bytes(std::span(rounded)));
               file->second.sha256.update(std::as_bytes(std::span(rounded)));
             });
    progress.advance(static_cast<double>(batch.rows()));
  }
  for (auto& [layer, part] : files) {
    part.file.write(part.sha256.hex());
    part.file.commit();
  }
}

void prepare_gradients(ThreadPool& pool, const Checkpoint& checkpoint, size_t max_window,
                       Precision precision, std::span<const size_t> layers, uint64_t seed,
                       const SampledGradients& gradients, const std::atomic<bool>& stop,
                       bool quiet) {
  const auto there = [&](size_t layer) { return gradients.has(layer); };
  if (std::all_of(layers.begin(), layers.end(), there)) return;
  TrainModel model = load_train_model(pool, checkpoint, max_window);
  sample_gradients(pool, model, precision, layers, seed, gradients, stop, quiet);
}

std::vector<double> token_harm(MatView<const float> gradients, MatView<const float> full,
                               MatView<const float> replaced) {
  std::vector<double> harm(gradients.rows);
  for (size_t t = 0; t < gradients.rows; ++t) {
    double product = 0;
    for (size_t i = 0; i < gradients.cols; ++i) {
      product += static_cast<double>(gradients(t, i)) *
                 (static_cast<double>(replaced(t, i)) - static_cast<double>(full(t, i)));
    }
    harm[t] = 0.5 * product * product;
  }
  return harm;
}

double LayerHarm::scale() const {
  const double error = std::accumulate(energy.begin(), energy.end(), 0.0);
  return error > 0 ? std::accumulate(harm.begin(), harm.end(), 0.0) / error : 0;
}

LayerHarm layer_harm(WalkContext& c, std::span<Stream> streams, size_t layer, const CheapPath& path,
                     double sink_norm, const SampledGradients& gradients) {
  std::vector<size_t> first(streams.size() + 1, 0);  // sequences before each batch
  for (size_t b = 0; b < streams.size(); ++b) {
    first[b + 1] = first[b] + streams[b].sample->batch.sequences();
  }
  LayerHarm out;
  out.harm.assign(first.back(), 0.0);
  out.energy.assign(first.back(), 0.0);
  out.predictions.assign(first.back(), 0.0);
  std::vector<size_t> sinks(streams.size(), 0);
  each_batch(
      c, streams, layer, [&](size_t b, Stream& stream, WalkWorker& worker, const BatchView& view) {
        apply_cheap(c.pool, path, view.x, false, view.cheap, worker.workspace.mlp);
        gradients.read(layer, b, view.other);
        const std::vector<double> harm = token_harm(view.other, view.full, view.cheap);
        const std::vector<size_t>& offsets = stream.sample->batch.offsets;
        for (size_t s = 0; s + 1 < offsets.size(); ++s) {
          out.predictions[first[b] + s] = static_cast<double>(offsets[s + 1] - offsets[s] - 1);
          for (size_t t = offsets[s]; t < offsets[s + 1]; ++t) {
            if (squared_norm(view.full.row_span(t)) > sink_norm * sink_norm) {
              ++sinks[b];
              continue;
            }
            out.harm[first[b] + s] += harm[t];
            out.energy[first[b] + s] +=
                squared_distance(view.cheap.row_span(t), view.full.row_span(t));
          }
        }
      });
  out.sinks = std::accumulate(sinks.begin(), sinks.end(), size_t{0});
  return out;
}

}  // namespace halflin
