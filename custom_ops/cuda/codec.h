// The codec on a device: steps over parameters and residuals in its memory, messages for and from
// the network. The kernels do all that grows with the parameters or the entries; the host finishes
// the header, the directory and the checksum with core's own writer, and checks what came in with
// core's own reader.
//
// Functions return when the device has done its work. Not thread-safe; the C ABI serialises calls.
// Throws DeviceError (cuda/device_error.h) when the CUDA runtime fails, as where memory runs out.
#ifndef KERAS_STROM_CUDA_CODEC_H_
#define KERAS_STROM_CUDA_CODEC_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/types.h"
#include "core/codec/message.h"
#include "core/codec/message_writer.h"
#include "core/step/step_values.h"
#include "cuda/device_segment.h"

namespace strom::cuda {

class Codec {
 public:
  using Segments = std::span<const strom_cuda_segment>;

  // Works on the device that is current now, with memory of the CUDA runtime or, where `memory` is
  // not null, of that.
  explicit Codec(int64_t max_message_bytes, const strom_cuda_memory* memory = nullptr);
  ~Codec();

  // See capi/strom_cuda.h, which these are. Where Step finds too little memory for what it has
  // found, it sends a message without entries. Where Step or FindEntries throws, nothing is lost:
  // the update is in the residuals, within rounding, or nothing has changed.
  Status Reserve(Segments segments);
  Status Step(int64_t elements, Segments segments, const strom_step_options& options, void* stream,
              strom_step_result* result);
  Status FindEntries(int64_t elements, Segments segments, const strom_step_options& options,
                     void* stream, strom_step_result* result);
  Status WriteMessages(const CodingOptions& options, void* stream, int64_t* message_bytes);
  Status TakeBack(void* stream);
  Status Apply(Bytes message, int64_t elements, Segments segments, void* stream, int64_t* skipped);

  // differ[i]: whether the contents of segment i's `after` are others than those of `before`.
  Status Compare(Segments segments, void* stream, int32_t* differ);

  // Between the host's memory and the device's, in any direction.
  Status Copy(void* to, const void* from, int64_t bytes, void* stream);

  // Of the last FindEntries; device memory.
  std::span<const uint32_t> codes() const;
  // Of the last WriteMessages.
  const std::vector<std::vector<uint8_t>>& messages() const;

 private:
  void SendNothing(strom_step_result* result);

  struct State;
  std::unique_ptr<State> state_;
};

// 0 where there is none that this library can use; `why` says what is missing then.
int32_t CountDevices(std::string* why);

}  // namespace strom::cuda

#endif  // KERAS_STROM_CUDA_CODEC_H_
