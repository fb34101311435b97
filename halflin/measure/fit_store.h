// A directory that keeps what an allocation has fitted and measured, so that it can go on after it
// was stopped: layers fitted, prices tried. Each file is there whole or not at all.
//   run.json                 the header: what identifies the run
//   <fit>/012.allocation     a fitted layer, as an allocation of one layer
//   <fit>/price-0.5.json     a price and what it gave on calibration text
//   times.json               of paths, by the clock
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "halflin/measure/fitted_layer.h"
#include "halflin/measure/price.h"

namespace halflin {

class FitStore {
 public:
  // As claim_directory (run.h) does.
  FitStore(std::filesystem::path directory, const nlohmann::json& header);

  const std::filesystem::path& directory() const { return directory_; }

  // A layer fitted before, its paths packed for the model and without the gates' scores; none where
  // there is none. Throws Error where the file is not as it was written.
  std::optional<FittedLayer> layer(const Model& model, const std::string& fit, size_t layer) const;
  void save_layer(const Model& model, const std::string& fit, size_t layer,
                  const FittedLayer& fitted) const;

  std::optional<PricePoint> point(const std::string& fit, double price) const;
  void save_point(const std::string& fit, const PricePoint& point) const;

  std::optional<std::vector<PathTime>> times() const;
  void save_times(const std::vector<PathTime>& times) const;

 private:
  std::filesystem::path directory_;
};

}  // namespace halflin
