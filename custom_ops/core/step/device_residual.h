// Where a worker's residual is: in the host's memory, or as far as the segments of its last step go
// on the device on which that step ran.
//
// It has one home at a time. A step on a device brings it there, and whatever the host has to do
// with it brings it back, so that each of the two ways is as without the other.
#ifndef KERAS_STROM_CORE_STEP_DEVICE_RESIDUAL_H_
#define KERAS_STROM_CORE_STEP_DEVICE_RESIDUAL_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/types.h"
#include "core/step/residual_store.h"
#include "core/step/step_values.h"

namespace strom {

// What a call of a device's functions has returned, with its words.
Status StatusOf(const strom_step_device& device, int code);

class DeviceResidual {
 public:
  DeviceResidual() = default;
  // Lets go of what is there.
  ~DeviceResidual();
  DeviceResidual(const DeviceResidual&) = delete;
  DeviceResidual& operator=(const DeviceResidual&) = delete;

  // From now on the residual of the segments, of a flat space of `flat_size`, lies on the device;
  // what lay on another one, or in other segments, comes back first. Where it fails everything is
  // in `host`, but for what a device that is lost does not give back.
  Status MoveTo(const strom_step_device& device, std::span<const strom_segment> segments,
                int64_t flat_size, ResidualStore* host);

  // Everything is in `host` then. Where it fails, as where the device is lost, the rest stays
  // there.
  Status BringBack(ResidualStore* host);

  // Puts in place of what the host holds of flat elements from `offset` on what lies on the device.
  Status Read(int64_t offset, std::span<float> out) const;

 private:
  struct Range {
    int64_t offset;
    int64_t size;
    friend bool operator==(const Range&, const Range&) = default;
  };

  void Release();

  std::optional<strom_step_device> device_;  // held
  std::vector<Range> ranges_;                // ascending
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_STEP_DEVICE_RESIDUAL_H_
