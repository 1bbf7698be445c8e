// One worker's compression state: residuals over the flat space, and what has been applied.
//
// A training step calls Step once: r += s (after - before), what reaches tau leaves as a message
// and is subtracted, the variable gets every message received since (asynchronous modes). The own
// progress stays in it as a whole (strom_step_options, `full`), or as far as it has been sent. An
// update beyond the limit on its norm is scaled down first, and the momentum of what was sent is
// cleared. A worker that leaves calls HandOverResidual last. Not thread-safe; the C ABI serialises
// calls.
#ifndef KERAS_STROM_CORE_STEP_COMPRESSION_STATE_H_
#define KERAS_STROM_CORE_STEP_COMPRESSION_STATE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/exchange.h"
#include "core/base/parallel.h"
#include "core/base/types.h"
#include "core/step/step_values.h"

namespace strom {

class CompressionState {
 public:
  // An update longer than `max_message_bytes`, its header included, is split by span range, and so
  // is one that would leave no room to merge it (kMergedRoomBytes). At least kMinMessageBytes
  // (core/codec/message_writer.h) and room for the header.
  explicit CompressionState(int64_t max_message_bytes);
  ~CompressionState();

  // Grows the flat space; residuals of the new elements are zero.
  Status Extend(int64_t size);
  int64_t size() const;

  // What a message of a step may have at most, without the update's header.
  int64_t max_message_bytes() const;

  // `exchange` outlives the binding; null = messages go nowhere. Another exchange starts with an
  // empty applied vector; the first update seen of an origin says where that origin stands.
  void Bind(std::shared_ptr<Exchange> exchange);
  const std::shared_ptr<Exchange>& exchange() const;

  // In this order: encode, hand the message over, apply what was received. Where no segment changed
  // nothing is done, and a segment that did not change sends nothing: its residual waits. Fails
  // without sending when the update is not finite (kNotFinite), the exchange refuses it or memory
  // runs out (std::bad_alloc): residual and values then are as if the update had only been added to
  // the residual (elements that are not finite are left out), within rounding; values that include
  // the residual include it, but after kNotFinite they and the residual are as before. What is
  // refused for its arguments, or finds no memory to begin with, has not been: values are `before`,
  // and the residual stays. The number of threads shows in no bit of the result.
  Status Step(std::span<const strom_segment> segments, const strom_step_options& options,
              strom_step_result* result, const Parallel& parallel = {});
  // The same step where values and residual lie on `device`. Segments say which elements are meant,
  // and bear no addresses; the device knows which of them have changed. `options` are `full`, with
  // one threshold and none of norm_limit, momenta and send_mean.
  Status StepOnDevice(const strom_step_device& device, std::span<const strom_segment> segments,
                      const strom_step_options& options, strom_step_result* result);
  // Fails, after the rest has been applied, when received entries lie in no segment; fails before
  // an update of a flat space larger than this one, which then waits. `own_models` as in
  // strom_replica_apply.
  Status Apply(std::span<const strom_segment> segments, strom_step_result* result,
               const Parallel& parallel = {}, float* const* own_models = nullptr);

  // The same where replicas agree in every bit and values of `full` steps lie on `device`: a
  // segment's `value` is what all workers share, on the host, while the device has the worker's own
  // model, or null where the device has what all share.
  Status ApplyOnDevice(const strom_step_device& device, std::span<const strom_segment> segments,
                       strom_step_result* result, const Parallel& parallel = {});

  // value = before + sign * r, see strom_replica_add_residual.
  Status AddResidual(std::span<const strom_segment> segments, int32_t sign,
                     const Parallel& parallel = {});

  // Residuals of flat elements [offset, offset + size); elements of no segment so far read zero.
  Status ReadResidual(int64_t offset, std::span<float> out) const;
  Status WriteResidual(int64_t offset, std::span<const float> in);

  // Hands the whole residual over to all others, to the bit: as it is, in raw spans of one or more
  // updates that bear `iteration`, at least one, empty where nothing was left. What has been handed
  // over is no residual any more; where it fails, what was not stays. Values that include the
  // residual (`full`) hold it as a part of what all share from then on, others lack it: it is the
  // last thing that a worker does which leaves.
  Status HandOverResidual(int64_t iteration, strom_residual_result* result);

  // Messages (without update header) of the last Step, kept when asked.
  void KeepMessages(bool keep);
  const std::vector<std::vector<uint8_t>>& kept_messages() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_STEP_COMPRESSION_STATE_H_
