// The replica functions of capi/strom.h.
#include <cstring>

#include "capi/handles.h"
#include "capi/lent_threads.h"
#include "core/base/subnormals.h"
#include "core/codec/message_writer.h"
#include "core/step/compression_state.h"

namespace strom {
namespace {

// core/step/compression_state.h is for one thread; its calls take turns here.
struct SharedReplica {
  explicit SharedReplica(int64_t max_message_bytes) : replica(max_message_bytes) {}
  std::mutex mutex;
  CompressionState replica;
};

HandleTable<SharedReplica>& Replicas() {
  static auto* const table = new HandleTable<SharedReplica>;  // outlives every thread
  return *table;
}

// Runs body(CompressionState&) alone with the replica behind `handle`. TensorFlow's threads take
// subnormal numbers for zero and others do not: replicas that are to agree to the last bit all keep
// them.
template <typename Body>
int WithReplica(const char* function, strom_handle handle, Body body) {
  return Guard([&]() -> Status {
    const std::shared_ptr<SharedReplica> shared = Replicas().Find(handle);
    if (!shared) return ClosedHandle(function, "replica", handle);
    const std::lock_guard<std::mutex> lock(shared->mutex);
    const KeepSubnormals keep;
    return body(shared->replica);
  });
}

Status NullArgument(const char* function, const char* argument) {
  return {Code::kInvalidArgument, std::string(function) + ": " + argument + " is null"};
}

Status CheckCount(const char* function, const strom_segment* segments, int64_t count) {
  if (count < 0) return {Code::kInvalidArgument, std::string(function) + ": count is negative"};
  if (segments == nullptr && count > 0) return NullArgument(function, "segments");
  return {};
}

Status CheckOnDevice(const char* function, const strom_step_device* device,
                     const strom_segment* segments, int64_t count,
                     const strom_step_result* result) {
  if (Status status = CheckCount(function, segments, count); !status.ok()) return status;
  if (device == nullptr) return NullArgument(function, "device");
  if (result == nullptr) return NullArgument(function, "result");
  return {};
}

// The segments as a span, once they are known to be usable.
Status CheckSegments(const char* function, const strom_segment* segments, int64_t count,
                     bool with_update) {
  if (Status status = CheckCount(function, segments, count); !status.ok()) return status;
  for (int64_t i = 0; i < count; ++i) {
    const strom_segment& segment = segments[i];
    if (segment.size == 0) continue;
    if (segment.value == nullptr) return NullArgument(function, "a segment's value");
    if (!with_update || segment.before == segment.after) continue;  // Both null: it only receives.
    if (segment.before == nullptr) return NullArgument(function, "a segment's before");
    if (segment.after == nullptr) return NullArgument(function, "a segment's after");
  }
  return {};
}

std::span<const strom_segment> Segments(const strom_segment* segments, int64_t count) {
  return {segments, static_cast<size_t>(count)};
}

}  // namespace
}  // namespace strom

using strom::Code;
using strom::CompressionState;
using strom::Replicas;
using strom::Status;

int strom_replica_create(int64_t max_message_bytes, strom_handle* replica) {
  return strom::Guard([&]() -> Status {
    if (replica == nullptr) return strom::NullArgument("strom_replica_create", "replica");
    constexpr int64_t kLeast = strom::kMinMessageBytes + strom::kUpdateHeaderBytes;
    if (max_message_bytes < kLeast || max_message_bytes > strom::kMaxMessageBytes) {
      return {Code::kInvalidArgument, "max_message_bytes must lie in [" + std::to_string(kLeast) +
                                          ", " + std::to_string(strom::kMaxMessageBytes) +
                                          "], it is " + std::to_string(max_message_bytes)};
    }
    *replica = Replicas().Add(std::make_shared<strom::SharedReplica>(max_message_bytes));
    return {};
  });
}

int strom_replica_close(strom_handle replica) {
  return strom::Guard([&]() -> Status {
    if (!Replicas().Remove(replica)) {
      return strom::ClosedHandle("strom_replica_close", "replica", replica);
    }
    return {};
  });
}

int strom_replica_extend(strom_handle replica, int64_t size) {
  return strom::WithReplica(__func__, replica,
                            [&](CompressionState& r) -> Status { return r.Extend(size); });
}

int strom_replica_max_message(strom_handle replica, int64_t* bytes) {
  return strom::WithReplica(__func__, replica, [&](CompressionState& r) -> Status {
    if (bytes == nullptr) return strom::NullArgument("strom_replica_max_message", "bytes");
    *bytes = r.max_message_bytes();
    return {};
  });
}

int strom_replica_bind(strom_handle replica, strom_handle worker) {
  return strom::WithReplica(__func__, replica, [&](CompressionState& r) -> Status {
    std::shared_ptr<strom::Exchange> exchange;
    if (worker != 0) {
      exchange = strom::FindExchange(worker);
      if (!exchange) return strom::ClosedHandle("strom_replica_bind", "worker", worker);
    }
    r.Bind(std::move(exchange));
    return {};
  });
}

int strom_replica_step(strom_handle replica, const strom_segment* segments, int64_t count,
                       const strom_step_options* options, const strom_thread_pool* threads,
                       strom_step_result* result) {
  return strom::WithReplica(__func__, replica, [&](CompressionState& r) -> Status {
    Status status = strom::CheckSegments("strom_replica_step", segments, count, true);
    if (!status.ok()) return status;
    if (options == nullptr) return strom::NullArgument("strom_replica_step", "options");
    if (result == nullptr) return strom::NullArgument("strom_replica_step", "result");
    return r.Step(strom::Segments(segments, count), *options, result,
                  strom::LentThreads(threads).parallel());
  });
}

int strom_replica_step_on_device(strom_handle replica, const strom_step_device* device,
                                 const strom_segment* segments, int64_t count,
                                 const strom_step_options* options, strom_step_result* result) {
  return strom::WithReplica(__func__, replica, [&](CompressionState& r) -> Status {
    const char* const function = "strom_replica_step_on_device";
    Status status = strom::CheckOnDevice(function, device, segments, count, result);
    if (!status.ok()) return status;
    if (options == nullptr) return strom::NullArgument(function, "options");
    return r.StepOnDevice(*device, strom::Segments(segments, count), *options, result);
  });
}

int strom_replica_apply(strom_handle replica, const strom_segment* segments, int64_t count,
                        float* const* own_models, const strom_thread_pool* threads,
                        strom_step_result* result) {
  return strom::WithReplica(__func__, replica, [&](CompressionState& r) -> Status {
    Status status = strom::CheckSegments("strom_replica_apply", segments, count, false);
    if (!status.ok()) return status;
    if (result == nullptr) return strom::NullArgument("strom_replica_apply", "result");
    return r.Apply(strom::Segments(segments, count), result, strom::LentThreads(threads).parallel(),
                   own_models);
  });
}

int strom_replica_apply_on_device(strom_handle replica, const strom_step_device* device,
                                  const strom_segment* segments, int64_t count,
                                  const strom_thread_pool* threads, strom_step_result* result) {
  return strom::WithReplica(__func__, replica, [&](CompressionState& r) -> Status {
    Status status =
        strom::CheckOnDevice("strom_replica_apply_on_device", device, segments, count, result);
    if (!status.ok()) return status;
    return r.ApplyOnDevice(*device, strom::Segments(segments, count), result,
                           strom::LentThreads(threads).parallel());
  });
}

int strom_replica_add_residual(strom_handle replica, const strom_segment* segments, int64_t count,
                               int32_t sign, const strom_thread_pool* threads) {
  return strom::WithReplica(__func__, replica, [&](CompressionState& r) -> Status {
    Status status = strom::CheckSegments("strom_replica_add_residual", segments, count, false);
    if (!status.ok()) return status;
    for (int64_t i = 0; i < count; ++i) {
      if (segments[i].size > 0 && segments[i].before == nullptr) {
        return strom::NullArgument("strom_replica_add_residual", "a segment's before");
      }
    }
    return r.AddResidual(strom::Segments(segments, count), sign,
                         strom::LentThreads(threads).parallel());
  });
}

int strom_replica_await_step(strom_handle replica, int64_t step, int64_t timeout_ns,
                             strom_callback done, void* context) {
  std::shared_ptr<strom::Exchange> exchange;
  const int code = strom::WithReplica(__func__, replica, [&](CompressionState& r) -> Status {
    if (done == nullptr) return strom::NullArgument("strom_replica_await_step", "done");
    if (!r.exchange()) {
      return {Code::kInvalidArgument,
              "strom_replica_await_step: the replica is bound to no worker"};
    }
    exchange = r.exchange();
    return {};
  });
  if (code != STROM_OK) return code;
  // Not under the replica's mutex: `done` may come at once and call the replica.
  return strom::Guard([&]() -> Status {
    exchange->AwaitStep(step, timeout_ns, [done, context](Status status) {
      done(context, static_cast<int>(status.code), status.message.c_str());
    });
    return {};
  });
}

int strom_replica_read_residual(strom_handle replica, int64_t offset, int64_t size, float* out) {
  return strom::WithReplica(__func__, replica, [&](CompressionState& r) -> Status {
    if (size < 0) return {Code::kInvalidArgument, "strom_replica_read_residual: size is negative"};
    if (out == nullptr && size > 0)
      return strom::NullArgument("strom_replica_read_residual", "out");
    return r.ReadResidual(offset, {out, static_cast<size_t>(size)});
  });
}

int strom_replica_write_residual(strom_handle replica, int64_t offset, int64_t size,
                                 const float* in) {
  return strom::WithReplica(__func__, replica, [&](CompressionState& r) -> Status {
    if (size < 0) return {Code::kInvalidArgument, "strom_replica_write_residual: size is negative"};
    if (in == nullptr && size > 0) return strom::NullArgument("strom_replica_write_residual", "in");
    return r.WriteResidual(offset, {in, static_cast<size_t>(size)});
  });
}

int strom_replica_hand_over(strom_handle replica, int64_t iteration,
                            strom_residual_result* result) {
  return strom::WithReplica(__func__, replica, [&](CompressionState& r) -> Status {
    if (result == nullptr) return strom::NullArgument("strom_replica_hand_over", "result");
    return r.HandOverResidual(iteration, result);
  });
}

int strom_replica_keep_messages(strom_handle replica, int32_t keep) {
  return strom::WithReplica(__func__, replica, [&](CompressionState& r) -> Status {
    r.KeepMessages(keep != 0);
    return {};
  });
}

int strom_replica_message(strom_handle replica, int64_t index, uint8_t* out, int64_t capacity,
                          int64_t* size) {
  return strom::WithReplica(__func__, replica, [&](CompressionState& r) -> Status {
    if (size == nullptr) return strom::NullArgument("strom_replica_message", "size");
    const auto kept = static_cast<int64_t>(r.kept_messages().size());
    if (index < 0 || index >= kept) {
      return {Code::kInvalidArgument, "strom_replica_message: the last step kept " +
                                          std::to_string(kept) + " messages, there is no " +
                                          std::to_string(index)};
    }
    const std::vector<uint8_t>& message = r.kept_messages()[static_cast<size_t>(index)];
    *size = static_cast<int64_t>(message.size());
    if (out == nullptr) return {};
    if (capacity < *size) {
      return {Code::kInvalidArgument, "strom_replica_message: the message needs " +
                                          std::to_string(*size) + " bytes, there is room for " +
                                          std::to_string(capacity)};
    }
    std::memcpy(out, message.data(), message.size());
    return {};
  });
}
