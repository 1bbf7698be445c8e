// The functions of capi/strom_cuda.h. In libstrom_cuda.so only, never in libstrom.so.
#include "capi/strom_cuda.h"

#include <cstring>
#include <mutex>
#include <string>

#include "capi/handles.h"
#include "core/base/subnormals.h"
#include "core/codec/message_layout.h"
#include "core/codec/message_writer.h"
#include "cuda/codec.h"
#include "cuda/device_error.h"

namespace strom {
namespace {

struct SharedCodec {
  SharedCodec(int64_t max_message_bytes, const strom_cuda_memory* memory)
      : codec(max_message_bytes, memory) {}

  std::mutex mutex;  // one call at a time
  cuda::Codec codec;
};

HandleTable<SharedCodec>& Codecs() {
  static auto* const table = new HandleTable<SharedCodec>;  // outlives every thread
  return *table;
}

// What `body` returns, or what the device says in its place.
template <typename Body>
Status OrWhyNot(Body body) {
  try {
    return body();
  } catch (const cuda::DeviceError& error) {
    return {error.code(), error.what()};
  }
}

template <typename Body>
int WithCodec(const char* function, strom_handle handle, Body body) {
  return Guard([&]() -> Status {
    const std::shared_ptr<SharedCodec> shared = Codecs().Find(handle);
    if (!shared) return ClosedHandle(function, "codec", handle);
    const std::lock_guard<std::mutex> lock(shared->mutex);
    const KeepSubnormals keep;
    return OrWhyNot([&]() -> Status { return body(shared->codec); });
  });
}

Status Invalid(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

// Null, or what is wrong with the arguments that several functions take.
const char* CheckSegments(const strom_cuda_segment* segments, int64_t count) {
  if (count < 0) return "the number of segments is negative";
  if (segments == nullptr && count > 0) return "segments is null";
  return nullptr;
}

cuda::Codec::Segments Segments(const strom_cuda_segment* segments, int64_t count) {
  return {segments, static_cast<size_t>(count)};
}

// Runs Codec::Step or Codec::FindEntries once the arguments are known to be usable.
Status Run(decltype(&cuda::Codec::Step) function, cuda::Codec& codec, int64_t elements,
           const strom_cuda_segment* segments, int64_t count, const strom_step_options* options,
           void* stream, strom_step_result* result) {
  if (const char* wrong = CheckSegments(segments, count)) return Invalid(wrong);
  if (options == nullptr || result == nullptr) return Invalid("options or result is null");
  return (codec.*function)(elements, Segments(segments, count), *options, stream, result);
}

}  // namespace
}  // namespace strom

using strom::Invalid;
using strom::Status;
using strom::cuda::Codec;

int32_t strom_cuda_abi_version(void) { return STROM_CUDA_ABI_VERSION; }

const char* strom_cuda_last_error(void) { return strom_last_error(); }

int strom_cuda_device_count(int32_t* count) {
  return strom::Guard([&]() -> Status {
    if (count == nullptr) return Invalid("count is null");
    std::string why;
    *count = strom::cuda::CountDevices(&why);
    return {};
  });
}

int strom_cuda_codec_create(int64_t max_message_bytes, const strom_cuda_memory* memory,
                            strom_handle* codec) {
  return strom::Guard([&]() -> Status {
    if (codec == nullptr) return Invalid("codec is null");
    if (max_message_bytes < strom::kMinMessageBytes ||
        max_message_bytes > strom::kMaxPayloadBytes) {
      return Invalid("max_message_bytes must lie in [16 KiB, 4 GiB - 1]");
    }
    std::string why;
    if (strom::cuda::CountDevices(&why) == 0) {
      return {strom::Code::kUnreachable, "there is no CUDA device for this library: " + why};
    }
    if (memory != nullptr && (memory->allocate == nullptr || memory->release == nullptr)) {
      return Invalid("memory has no allocate or no release");
    }
    return strom::OrWhyNot([&]() -> Status {
      *codec = strom::Codecs().Add(std::make_shared<strom::SharedCodec>(max_message_bytes, memory));
      return {};
    });
  });
}

int strom_cuda_codec_close(strom_handle codec) {
  return strom::Guard([&]() -> Status {
    if (strom::Codecs().Remove(codec)) return {};
    return strom::ClosedHandle("strom_cuda_codec_close", "codec", codec);
  });
}

int strom_cuda_reserve(strom_handle codec, const strom_cuda_segment* segments, int64_t count) {
  return strom::WithCodec(__func__, codec, [&](Codec& c) -> Status {
    if (const char* wrong = strom::CheckSegments(segments, count)) return Invalid(wrong);
    return c.Reserve(strom::Segments(segments, count));
  });
}

int strom_cuda_step(strom_handle codec, int64_t elements, const strom_cuda_segment* segments,
                    int64_t count, const strom_step_options* options, void* stream,
                    strom_step_result* result) {
  return strom::WithCodec(__func__, codec, [&](Codec& c) -> Status {
    return strom::Run(&Codec::Step, c, elements, segments, count, options, stream, result);
  });
}

int strom_cuda_find_entries(strom_handle codec, int64_t elements,
                            const strom_cuda_segment* segments, int64_t count,
                            const strom_step_options* options, void* stream,
                            strom_step_result* result) {
  return strom::WithCodec(__func__, codec, [&](Codec& c) -> Status {
    return strom::Run(&Codec::FindEntries, c, elements, segments, count, options, stream, result);
  });
}

int strom_cuda_write_messages(strom_handle codec, int32_t coding, int32_t prefer, void* stream,
                              int64_t* message_bytes) {
  return strom::WithCodec(__func__, codec, [&](Codec& c) -> Status {
    if (message_bytes == nullptr) return Invalid("message_bytes is null");
    if (coding == STROM_CODING_BITMAP4) {
      return Invalid(
          "a device does not encode with coding bitmap4, whose halves are found in another pass: "
          "encode on the CPU, or take coding bitmap; a device applies messages of any coding");
    }
    if (coding < STROM_CODING_AUTO || coding > STROM_CODING_BITMAP || prefer < STROM_PREFER_SIZE ||
        prefer > STROM_PREFER_SPEED) {
      return Invalid("there is no such coding or preference");
    }
    const strom::CodingOptions options{static_cast<strom::Coding>(coding),
                                       static_cast<strom::Prefer>(prefer)};
    return c.WriteMessages(options, stream, message_bytes);
  });
}

int strom_cuda_take_back(strom_handle codec, void* stream) {
  return strom::WithCodec(__func__, codec, [&](Codec& c) { return c.TakeBack(stream); });
}

int strom_cuda_entries(strom_handle codec, const uint32_t** codes, int64_t* count) {
  return strom::WithCodec(__func__, codec, [&](Codec& c) -> Status {
    if (codes == nullptr || count == nullptr) return Invalid("codes or count is null");
    *codes = c.codes().data();
    *count = static_cast<int64_t>(c.codes().size());
    return {};
  });
}

int strom_cuda_messages(strom_handle codec, int64_t* count) {
  return strom::WithCodec(__func__, codec, [&](Codec& c) -> Status {
    if (count == nullptr) return Invalid("count is null");
    *count = static_cast<int64_t>(c.messages().size());
    return {};
  });
}

int strom_cuda_message(strom_handle codec, int64_t index, uint8_t* out, int64_t capacity,
                       int64_t* size) {
  return strom::WithCodec(__func__, codec, [&](Codec& c) -> Status {
    if (size == nullptr) return Invalid("size is null");
    const auto messages = static_cast<int64_t>(c.messages().size());
    if (index < 0 || index >= messages) {
      return Invalid("the last step made " + std::to_string(messages) + " messages, there is no " +
                     std::to_string(index));
    }
    const std::vector<uint8_t>& message = c.messages()[static_cast<size_t>(index)];
    *size = static_cast<int64_t>(message.size());
    if (out == nullptr) return {};
    if (capacity < *size) {
      return Invalid("the message needs " + std::to_string(*size) + " bytes, there is room for " +
                     std::to_string(capacity));
    }
    std::memcpy(out, message.data(), message.size());
    return {};
  });
}

int strom_cuda_apply(strom_handle codec, const uint8_t* message, int64_t bytes, int64_t elements,
                     const strom_cuda_segment* segments, int64_t count, void* stream,
                     int64_t* skipped) {
  return strom::WithCodec(__func__, codec, [&](Codec& c) -> Status {
    if (const char* wrong = strom::CheckSegments(segments, count)) return Invalid(wrong);
    if (bytes < 0 || (message == nullptr && bytes > 0) || skipped == nullptr) {
      return Invalid("message or skipped is null, or bytes is negative");
    }
    return c.Apply({message, static_cast<size_t>(bytes)}, elements,
                   strom::Segments(segments, count), stream, skipped);
  });
}

int strom_cuda_compare(strom_handle codec, const strom_cuda_segment* segments, int64_t count,
                       void* stream, int32_t* differ) {
  return strom::WithCodec(__func__, codec, [&](Codec& c) -> Status {
    if (const char* wrong = strom::CheckSegments(segments, count)) return Invalid(wrong);
    if (differ == nullptr && count > 0) return Invalid("differ is null");
    return c.Compare(strom::Segments(segments, count), stream, differ);
  });
}

int strom_cuda_copy(strom_handle codec, void* to, const void* from, int64_t bytes, void* stream) {
  return strom::WithCodec(__func__, codec, [&](Codec& c) -> Status {
    if (bytes > 0 && (to == nullptr || from == nullptr)) return Invalid("to or from is null");
    return c.Copy(to, from, bytes, stream);
  });
}
