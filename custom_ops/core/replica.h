// One worker's compression state: residuals over the flat space, and what has been applied.
//
// A training step calls Step once: r += s (after - before), what reaches tau leaves as a message
// and is subtracted, the variable gets `before` plus the own message (asynchronous modes) and every
// message received since. Not thread-safe; the C ABI serialises calls.
#ifndef KERAS_STROM_CORE_REPLICA_H_
#define KERAS_STROM_CORE_REPLICA_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "capi/strom.h"
#include "core/exchange.h"
#include "core/types.h"

namespace strom {

class Replica {
 public:
  // A message longer than `max_message_bytes` is split by span range.
  explicit Replica(int64_t max_message_bytes);
  ~Replica();

  // Grows the flat space; residuals of the new elements are zero.
  Status Extend(int64_t size, uint64_t hash);
  int64_t size() const;

  // `exchange` outlives the binding; null = messages go nowhere.
  void Bind(std::shared_ptr<Exchange> exchange);
  const std::shared_ptr<Exchange>& exchange() const;

  Status Step(std::span<const strom_segment> segments, const strom_step_options& options,
              strom_step_result* result);
  Status Flush(std::span<const strom_segment> segments, int64_t iteration, bool apply_own,
               strom_step_result* result);
  Status Apply(std::span<const strom_segment> segments, strom_step_result* result);

  // Residuals of flat elements [offset, offset + size); elements of no segment so far read zero.
  Status ReadResidual(int64_t offset, std::span<float> out) const;
  Status WriteResidual(int64_t offset, std::span<const float> in);

  // Messages (without update header) of the last Step or Flush, kept when asked.
  void KeepMessages(bool keep);
  const std::vector<std::vector<uint8_t>>& kept_messages() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICA_H_
