// The local model's functions of capi/strom.h.
#include "core/joint/local_model.h"

#include <algorithm>
#include <span>

#include "capi/handles.h"
#include "capi/lent_threads.h"
#include "core/base/subnormals.h"
#include "net/io_loop.h"

namespace strom {
namespace {

// core/joint/local_model.h is for one thread; its calls take turns here.
struct SharedLocalModel {
  std::mutex mutex;
  LocalModel model;
};

HandleTable<SharedLocalModel>& LocalModels() {
  static auto* const table = new HandleTable<SharedLocalModel>;  // outlives every thread
  return *table;
}

// Runs body(LocalModel&) alone with the model behind `handle`.
template <typename Body>
int WithLocalModel(const char* function, strom_handle handle, Body body) {
  return Guard([&]() -> Status {
    const std::shared_ptr<SharedLocalModel> shared = LocalModels().Find(handle);
    if (!shared) return ClosedHandle(function, "local model", handle);
    const std::lock_guard<std::mutex> lock(shared->mutex);
    const KeepSubnormals keep;
    return body(shared->model);
  });
}

// The segments as pieces of the joint model, once they are known to be usable.
Status ReadSegments(const char* function, const strom_segment* segments, int64_t count,
                    std::vector<LocalPiece>* pieces) {
  const auto refuse = [&](const char* why) -> Status {
    return {Code::kInvalidArgument, std::string(function) + ": " + why};
  };
  if (count < 0 || (segments == nullptr && count > 0)) return refuse("there are no segments");
  int64_t end = 0;
  for (int64_t i = 0; i < count; ++i) {
    const strom_segment& segment = segments[i];
    if (segment.size < 0 || (segment.value == nullptr && segment.size > 0)) {
      return refuse("a segment has no value");
    }
    if (segment.offset != end) return refuse("the segments leave a gap, or do not ascend");
    end += segment.size;
    pieces->push_back({{segment.value, static_cast<size_t>(segment.size)}, segment.name});
  }
  return {};
}

// Gradients, or what they are to become: `values` is what a segment has of them.
template <typename Values>
Status ReadGradients(const char* function, const strom_segment* segments, int64_t count,
                     Values* strom_segment::* values, std::vector<GradientPiece<Values>>* pieces) {
  for (int64_t i = 0; i < count; ++i) {
    const strom_segment& segment = segments[i];
    const auto size = static_cast<size_t>(std::max<int64_t>(0, segment.size));
    if (size > 0 && segment.*values == nullptr) {
      return {Code::kInvalidArgument, std::string(function) + ": a segment has no gradient"};
    }
    pieces->push_back({{segment.*values, size}, segment.offset, segment.name});
  }
  return {};
}

}  // namespace
}  // namespace strom

using namespace strom;  // the functions below are declared outside any namespace

int strom_local_model_create(strom_handle* model) {
  return Guard([&]() -> Status {
    *model = LocalModels().Add(std::make_shared<SharedLocalModel>());
    return {};
  });
}

int strom_local_model_close(strom_handle model) {
  return Guard([&]() -> Status {
    if (LocalModels().Remove(model)) return {};
    return ClosedHandle("strom_local_model_close", "local model", model);
  });
}

int strom_local_model_begin(strom_handle model, strom_handle worker, int64_t size,
                            const strom_method* method, int32_t rank, int32_t workers,
                            int32_t in_gradient) {
  return WithLocalModel(__func__, model, [&](LocalModel& m) -> Status {
    const JointPlan plan{*method, {{0, size}}};
    Status valid = CheckPlan(plan, size);
    if (!valid.ok()) return valid;
    if (!plan.IsJoint()) return {Code::kInvalidArgument, "update sharing has no local model"};
    std::shared_ptr<JointExchange> exchange;
    if (worker != 0) {
      exchange = FindJointExchange(worker);
      if (!exchange) return ClosedHandle("strom_local_model_begin", "worker", worker);
    }
    m.Begin(std::move(exchange), size, *method, rank, workers,
            in_gradient != 0 ? PullKind::kGradient : PullKind::kStep);
    return {};
  });
}

int strom_local_model_penalize(strom_handle model, const strom_segment* segments, int64_t count,
                               const strom_thread_pool* threads) {
  return WithLocalModel(__func__, model, [&](LocalModel& m) -> Status {
    std::vector<PenalizedPiece> pieces;
    for (int64_t i = 0; i < count; ++i) {
      const strom_segment& segment = segments[i];
      const auto size = static_cast<size_t>(std::max<int64_t>(0, segment.size));
      if (size > 0 && (segment.value == nullptr || segment.before == nullptr)) {
        return {Code::kInvalidArgument,
                "strom_local_model_penalize: a segment has no gradient, or no variable"};
      }
      pieces.push_back({{segment.value, size}, {segment.before, size}, segment.offset});
    }
    return m.Penalize(pieces, LentThreads(threads).parallel());
  });
}

int strom_local_model_give_early(strom_handle model, const strom_segment* segments, int64_t count,
                                 float rate, int64_t iteration, const strom_thread_pool* threads) {
  return WithLocalModel(__func__, model, [&](LocalModel& m) -> Status {
    std::vector<GradientPiece<const float>> pieces;
    Status usable = ReadGradients("strom_local_model_give_early", segments, count,
                                  &strom_segment::before, &pieces);
    if (!usable.ok()) return usable;
    return m.GiveEarly(pieces, rate, iteration, LentThreads(threads).parallel());
  });
}

int strom_local_model_give_gradient(strom_handle model, const strom_segment* segments,
                                    int64_t count, float rate, int64_t iteration,
                                    const strom_thread_pool* threads) {
  return WithLocalModel(__func__, model, [&](LocalModel& m) -> Status {
    std::vector<GradientPiece<const float>> pieces;
    Status usable = ReadGradients("strom_local_model_give_gradient", segments, count,
                                  &strom_segment::before, &pieces);
    if (!usable.ok()) return usable;
    return m.GiveGradient(pieces, rate, iteration, MonotonicNanoseconds(),
                          LentThreads(threads).parallel());
  });
}

int strom_local_model_take_gradient(strom_handle model, const strom_segment* segments,
                                    int64_t count, int32_t may_overflow,
                                    const strom_thread_pool* threads, float* rate) {
  return WithLocalModel(__func__, model, [&](LocalModel& m) -> Status {
    std::vector<GradientPiece<float>> pieces;
    Status usable = ReadGradients("strom_local_model_take_gradient", segments, count,
                                  &strom_segment::value, &pieces);
    if (!usable.ok()) return usable;
    return m.TakeGradient(pieces, may_overflow != 0, MonotonicNanoseconds(),
                          LentThreads(threads).parallel(), rate);
  });
}

int strom_local_model_step(strom_handle model, const strom_segment* segments, int64_t count,
                           int64_t iteration, const strom_thread_pool* threads,
                           strom_pull_result* result) {
  return WithLocalModel(__func__, model, [&](LocalModel& m) -> Status {
    std::vector<LocalPiece> pieces;
    Status usable = ReadSegments("strom_local_model_step", segments, count, &pieces);
    if (!usable.ok()) return usable;
    return m.Step(pieces, iteration, MonotonicNanoseconds(), LentThreads(threads).parallel(),
                  result);
  });
}

int strom_local_model_install(strom_handle model, const strom_segment* segments, int64_t count,
                              const strom_thread_pool* threads, strom_pull_result* result) {
  return WithLocalModel(__func__, model, [&](LocalModel& m) -> Status {
    std::vector<LocalPiece> pieces;
    Status usable = ReadSegments("strom_local_model_install", segments, count, &pieces);
    if (!usable.ok()) return usable;
    return m.Install(pieces, MonotonicNanoseconds(), LentThreads(threads).parallel(), result);
  });
}

int strom_local_model_await(strom_handle model, int64_t timeout_ns, strom_callback done,
                            void* context) {
  std::shared_ptr<JointExchange> exchange;
  const int code = WithLocalModel(__func__, model, [&](LocalModel& m) -> Status {
    exchange = m.exchange();
    if (exchange) return {};
    return {Code::kInvalidArgument, "strom_local_model_await: there is nobody to exchange with"};
  });
  if (code != STROM_OK) return code;
  // Not under the model's mutex: `done` may come at once and call the model.
  return Guard([&]() -> Status {
    exchange->AwaitJoint(timeout_ns, [done, context](Status status) {
      done(context, static_cast<int>(status.code), status.message.c_str());
    });
    return {};
  });
}

int strom_local_model_finish(strom_handle model, const float* values, int64_t size,
                             int64_t iteration) {
  return WithLocalModel(__func__, model, [&](LocalModel& m) -> Status {
    return m.Finish({values, static_cast<size_t>(size)}, iteration);
  });
}
