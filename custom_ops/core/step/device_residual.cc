#include "core/step/device_residual.h"

#include <algorithm>
#include <string>
#include <utility>

namespace strom {

Status StatusOf(const strom_step_device& device, int code) {
  if (code == static_cast<int>(Code::kOk)) return {};
  return {static_cast<Code>(code), device.last_error(device.context)};
}

DeviceResidual::~DeviceResidual() { Release(); }

Status DeviceResidual::MoveTo(const strom_step_device& device,
                              std::span<const strom_segment> segments, int64_t flat_size,
                              ResidualStore* host) {
  std::vector<Range> ranges;
  for (const strom_segment& segment : segments) {
    if (segment.size > 0) ranges.push_back({segment.offset, segment.size});
  }
  if (device_ && device_->context == device.context && ranges == ranges_) return {};
  if (Status status = BringBack(host); !status.ok()) return status;
  const std::vector<float> zeros(static_cast<size_t>(kChunk));
  int code = 0;
  for (const Range& range : ranges) {
    ForEachChunk(range.offset, range.size,
                 [&](int64_t chunk, int64_t index, int64_t start, int64_t elements) {
                   if (code != 0) return;
                   const float* const held = host->Find(chunk);
                   const float* const values = held == nullptr ? zeros.data() : held + index;
                   code = device.write_residual(device.context, range.offset + start, elements,
                                                values);
                 });
  }
  if (Status status = StatusOf(device, code); !status.ok()) return status;
  device.hold(device.context);
  device_ = device;
  ranges_ = std::move(ranges);
  // The memory of gaps between segments is kept, and with it that of the rest.
  int64_t moved = 0;
  for (const Range& range : ranges_) moved += range.size;
  if (moved == flat_size) host->Clear();
  return {};
}

Status DeviceResidual::BringBack(ResidualStore* host) {
  if (!device_) return {};
  int code = 0;
  for (const Range& range : ranges_) {
    ForEachChunk(range.offset, range.size,
                 [&](int64_t chunk, int64_t index, int64_t start, int64_t elements) {
                   if (code != 0) return;
                   code = device_->read_residual(device_->context, range.offset + start, elements,
                                                 host->Touch(chunk) + index);
                 });
  }
  if (Status status = StatusOf(*device_, code); !status.ok()) return status;
  Release();
  return {};
}

Status DeviceResidual::Read(int64_t offset, std::span<float> out) const {
  const int64_t end = offset + static_cast<int64_t>(out.size());
  for (const Range& range : ranges_) {
    const int64_t first = std::max(offset, range.offset);
    const int64_t last = std::min(end, range.offset + range.size);
    if (first >= last) continue;
    const int code = device_->read_residual(device_->context, first, last - first,
                                            out.data() + (first - offset));
    if (Status status = StatusOf(*device_, code); !status.ok()) return status;
  }
  return {};
}

void DeviceResidual::Release() {
  if (device_) device_->release(device_->context);
  device_.reset();
  ranges_.clear();
}

}  // namespace strom
