// The values that what was received is applied to: in the host's memory, or on a device.
#ifndef KERAS_STROM_CORE_STEP_RECEIVED_VALUES_H_
#define KERAS_STROM_CORE_STEP_RECEIVED_VALUES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/exchange.h"
#include "core/base/parallel.h"
#include "core/base/types.h"
#include "core/codec/message.h"
#include "core/step/device_residual.h"
#include "core/step/residual_store.h"
#include "core/step/step_values.h"

namespace strom {

class ReceivedValues {
 public:
  virtual ~ReceivedValues() = default;

  // These parameters take the place of the values, but for the residual in them. The flat space may
  // have grown since: its other elements stay.
  virtual Status Install(std::span<const float> parameters) = 0;

  // Adds a sum of updates over the flat space. `added`: how many of its first elements are in the
  // values; all of them, or where it fails fewer. Adds to `skipped` how many of its elements that
  // are not zero lie in no segment.
  virtual Status AddSum(std::span<const float> sum, size_t* added, int64_t* skipped) = 0;

  // Adds updates in their order; `added`: how many of the first ones, likewise. `skipped` counts
  // entries, of raw spans as in AddSum. `own_origin` is that of the worker's own updates.
  virtual Status Add(std::span<const ReceivedUpdate> updates, uint64_t own_origin, size_t* added,
                     int64_t* skipped) = 0;
};

class ValuesOnHost : public ReceivedValues {
 public:
  std::span<const strom_segment> segments;
  const ResidualStore* residuals = nullptr;
  float* const* own_models = nullptr;          // as in strom_replica_apply
  bool full = false;                           // the segments' values include the residual,
  const int32_t* includes_residual = nullptr;  // of these segments; null = of all
  Parallel parallel;

  Status Install(std::span<const float> parameters) override;
  Status AddSum(std::span<const float> sum, size_t* added, int64_t* skipped) override;
  Status Add(std::span<const ReceivedUpdate> updates, uint64_t own_origin, size_t* added,
             int64_t* skipped) override;
};

// Values of `full` steps, and the residual lies there too.
class ValuesOnDevice : public ReceivedValues {
 public:
  const strom_step_device* device = nullptr;
  const DeviceResidual* residual = nullptr;
  std::span<const strom_segment> segments;
  const int32_t* includes_residual = nullptr;  // of these segments; null = of all
  int64_t flat_size = 0;

  Status Install(std::span<const float> parameters) override;
  Status AddSum(std::span<const float> sum, size_t* added, int64_t* skipped) override;
  Status Add(std::span<const ReceivedUpdate> updates, uint64_t own_origin, size_t* added,
             int64_t* skipped) override;

 protected:
  Status AddMessage(Bytes message, int64_t* skipped);
};

// A worker's own models on a device, beside what all workers share on the host; values of which it
// has no model of its own lie on the device alone. Of modes in which nothing but updates comes.
class OwnModelsOnDevice : public ValuesOnDevice {
 public:
  ValuesOnHost shared;  // of the segments with an own model

  Status Install(std::span<const float> parameters) override;
  Status AddSum(std::span<const float> sum, size_t* added, int64_t* skipped) override;
  Status Add(std::span<const ReceivedUpdate> updates, uint64_t own_origin, size_t* added,
             int64_t* skipped) override;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_STEP_RECEIVED_VALUES_H_
