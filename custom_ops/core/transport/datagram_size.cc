#include "core/transport/datagram_size.h"

#include <algorithm>

namespace strom {
namespace {

constexpr size_t kEthernetBytes = 1500, kJumboBytes = 9000;
constexpr int kAttempts = 3;
constexpr int64_t kNarrowPauseNs = 1'000'000'000;
constexpr int64_t kSearchAgainNs = 600'000'000'000;  // paths change

}  // namespace

DatagramSize::DatagramSize(size_t least, size_t most, size_t header_bytes)
    : least_(least),
      most_(std::max(least, most)),
      rungs_{std::min(most_, kEthernetBytes - header_bytes),
             std::min(most_, kJumboBytes - header_bytes)},
      passed_(least),
      too_long_(most_ + 1) {}

void DatagramSize::Start(int64_t now_ns) {
  if (most_ > least_) due_ns_ = now_ns;
}

size_t DatagramSize::NextChallenge(int64_t now_ns, int64_t patience_ns) {
  if (now_ns < due_ns_) return 0;
  if (challenge_ != 0 && attempts_ == kAttempts) {
    too_long_ = challenge_;
    challenge_ = 0;
  }
  if (challenge_ == 0) {
    challenge_ = Candidate();
    attempts_ = 0;
  }
  if (challenge_ == 0) {
    too_long_ = most_ + 1;
    due_ns_ = passed_ == most_ ? kNever : now_ns + kSearchAgainNs;
    return 0;
  }
  ++attempts_;
  due_ns_ = now_ns + patience_ns;
  return challenge_;
}

void DatagramSize::HandleAnswer(int64_t now_ns, size_t bytes) {
  if (bytes <= passed_) return;
  passed_ = bytes;
  if (too_long_ <= passed_) too_long_ = most_ + 1;
  challenge_ = 0;
  due_ns_ = now_ns;
}

void DatagramSize::Narrow(int64_t now_ns) {
  too_long_ = passed_;
  passed_ = least_;
  challenge_ = 0;
  due_ns_ = now_ns + kNarrowPauseNs;
}

// The next rung, then what lies half-way, until more would gain little.
size_t DatagramSize::Candidate() const {
  for (const size_t rung : rungs_) {
    if (rung > passed_ && rung < too_long_) return rung;
  }
  const size_t gap = too_long_ - passed_;
  return gap > std::max<size_t>(passed_ / 16, 1) ? passed_ + gap / 2 : 0;
}

}  // namespace strom
