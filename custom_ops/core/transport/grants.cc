#include "core/transport/grants.h"

#include <algorithm>

namespace strom {
namespace {

constexpr int64_t kHeavyLoss = 64;   // part of the packets
constexpr int64_t kLeastBudget = 4;  // part of the whole
constexpr int64_t kBudgetStep = 64;  // part of the whole

}  // namespace

bool Grants::NoteArrival(int64_t now_ns, int64_t bytes, Sender* sender) {
  const int64_t period = now_ns / kPeriodNs;
  if (period != period_) EndPeriod(period);
  ++arrived_packets_;
  const bool was_idle = sender->period_ < period - 1;
  if (sender->period_ != period) {
    ++heard_;
    if (was_idle) ++newly_heard_;
    sender->period_ = period;
  }
  lone_bytes_ = ActiveSenders(now_ns) > 1 ? 0 : std::min(lone_bytes_ + bytes, options_.lone_bytes);
  return was_idle;
}

int64_t Grants::ShareBytes(int64_t now_ns) const {
  const int64_t active = ActiveSenders(now_ns);
  if (active > 1) {
    // Where much is lost, less of that, too.
    const int64_t own_bytes = own_bytes_ * budget_bytes_ / options_.shared_bytes;
    return std::min(budget_bytes_ + own_bytes, options_.lone_bytes) / active;
  }
  return std::min(budget_bytes_ + lone_bytes_, options_.lone_bytes);
}

int64_t Grants::ActiveSenders(int64_t now_ns) const {
  const int64_t period = now_ns / kPeriodNs;
  if (period == period_) return heard_before_ + newly_heard_;
  return period == period_ + 1 ? heard_ : 0;
}

void Grants::EndPeriod(int64_t next_period) {
  const bool shared = heard_ > 1;
  if (shared && lost_packets_ * kHeavyLoss > arrived_packets_) {
    budget_bytes_ = std::max(budget_bytes_ / 4 * 3, options_.shared_bytes / kLeastBudget);
  } else {
    const int64_t larger = budget_bytes_ + options_.shared_bytes / kBudgetStep;
    budget_bytes_ = std::min(larger, options_.shared_bytes);
  }
  arrived_packets_ = lost_packets_ = 0;
  heard_before_ = next_period == period_ + 1 ? heard_ : 0;
  heard_ = newly_heard_ = 0;
  period_ = next_period;
}

}  // namespace strom
