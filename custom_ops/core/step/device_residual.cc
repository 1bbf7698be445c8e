#include "core/step/device_residual.h"

#include <algorithm>
#include <string>
#include <utility>

namespace strom {
namespace {

// The pieces of flat elements [offset, offset + size) in the store's chunks: calls
// visit(chunk, index in the chunk, offset, elements) until one does not return OK.
template <typename Visit>
Status ForEachPiece(int64_t offset, int64_t size, Visit visit) {
  for (const int64_t end = offset + size; offset < end;) {
    const int64_t index = offset % kChunk;
    const int64_t elements = std::min(end - offset, kChunk - index);
    if (Status status = visit(offset / kChunk, index, offset, elements); !status.ok()) {
      return status;
    }
    offset += elements;
  }
  return {};
}

}  // namespace

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
  for (const Range& range : ranges) {
    Status status = ForEachPiece(
        range.offset, range.size,
        [&](int64_t chunk, int64_t index, int64_t offset, int64_t elements) -> Status {
          const float* const held = host->Find(chunk);
          const float* const values = held == nullptr ? zeros.data() : held + index;
          return StatusOf(device, device.write_residual(device.context, offset, elements, values));
        });
    if (!status.ok()) return status;
  }
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
  for (const Range& range : ranges_) {
    Status status = ForEachPiece(
        range.offset, range.size,
        [&](int64_t chunk, int64_t index, int64_t offset, int64_t elements) -> Status {
          float* const values = host->Touch(chunk) + index;
          return StatusOf(*device_,
                          device_->read_residual(device_->context, offset, elements, values));
        });
    if (!status.ok()) return status;
  }
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
