#include "core/link_receiver.h"

#include <algorithm>
#include <limits>

#include "core/counters.h"

namespace strom {
namespace {

constexpr int kPacketsPerStatus = 16;
constexpr int64_t kStatusDelayNs = 200'000;
constexpr uint32_t kReorderPackets = 3;    // later packets that make a hole a gap
constexpr int64_t kReorderNs = 500'000;    // ... or so much time
constexpr int64_t kRecheckNs = 2'000'000;  // a reported gap is reported again
constexpr int64_t kLongAgo = std::numeric_limits<int64_t>::min() / 2;

}  // namespace

LinkReceiver::LinkReceiver(uint32_t first_sequence, LinkCounters* counters)
    : counters_(counters),
      cumulative_(first_sequence),
      end_(first_sequence),
      grant_edge_(first_sequence + kWindowPackets),
      noticed_ns_(kWindowPackets),
      reassembly_(counters) {}

bool LinkReceiver::HandleData(int64_t now_ns, const DataPacket& packet) {
  NoteArrival(now_ns, packet.timestamp_us);
  const uint32_t sequence = packet.sequence;
  if (Before(sequence, cumulative_)) return true;  // a duplicate
  if (!Advance(now_ns, sequence + 1)) return false;
  if (arrived_.Contains(sequence)) return true;

  switch (reassembly_.Take(packet)) {
    case Reassembly::Verdict::kBroken:
      return false;
    case Reassembly::Verdict::kOverLimit:
      ++counters_->drop_over_limit;
      return true;
    case Reassembly::Verdict::kEnded:
      status_due_ = true;  // the sender waits for the end of its message
      break;
    case Reassembly::Verdict::kTaken:
      break;
  }
  arrived_.Insert(sequence);
  const uint32_t hole = arrived_.NextHole(cumulative_, end_);
  for (; cumulative_ != hole; ++cumulative_) arrived_.Erase(cumulative_);
  return true;
}

bool LinkReceiver::HandleProbe(int64_t now_ns, const ProbePacket& packet) {
  NoteArrival(now_ns, packet.timestamp_us);
  status_due_ = true;
  // What is missing now was sent before the probe: no patience with it.
  return Before(packet.next_sequence, end_) || Advance(kLongAgo, packet.next_sequence);
}

void LinkReceiver::HoldBack(bool hold) {
  if (held_back_ && !hold) status_due_ = true;
  held_back_ = hold;
}

void LinkReceiver::TakeStatus(int64_t now_ns, StatusPacket* status) {
  status->cumulative = cumulative_;
  status->complete_up_to = end_;
  if (!held_back_) grant_edge_ = cumulative_ + kWindowPackets;
  status->grant_edge = grant_edge_;
  status->gap_count = 0;
  bool young = false;
  for (uint32_t hole = arrived_.NextHole(cumulative_, end_); hole != end_;) {
    const uint32_t hole_end = arrived_.NextMember(hole, end_);
    const int64_t noticed_ns = noticed_ns_[hole % kWindowPackets];
    young = end_ - hole_end < kReorderPackets && now_ns - noticed_ns < kReorderNs;
    if (young || status->gap_count == StatusPacket::kMaxGaps) {
      status->complete_up_to = hole;
      young_gap_end_ = hole_end;
      break;
    }
    status->gaps[status->gap_count++] =
        Gap{hole - cumulative_, static_cast<uint16_t>(hole_end - hole)};
    hole = arrived_.NextHole(hole_end, end_);
  }

  status->echo_timestamp_us = echo_timestamp_us_;
  status->echo_delay_us = StatusPacket::kNoEcho;
  if (echo_ns_ != kNever) {
    status->echo_delay_us =
        static_cast<uint16_t>(std::min<int64_t>((now_ns - echo_ns_) / 1000, StatusPacket::kNoEcho));
    echo_ns_ = kNever;
  }
  young_gap_ = young;
  status_due_ = false;
  unreported_ = 0;
  status_ns_ = cumulative_ == end_ ? kNever : now_ns + (young ? kReorderNs : kRecheckNs);
}

void LinkReceiver::HandleTimeout(int64_t now_ns) {
  if (now_ns < status_ns_) return;
  status_due_ = true;
  status_ns_ = kNever;
}

int64_t LinkReceiver::NextTimeout() const { return status_ns_; }

void LinkReceiver::NoteArrival(int64_t now_ns, uint32_t timestamp_us) {
  echo_timestamp_us_ = timestamp_us;
  echo_ns_ = now_ns;
  status_ns_ = std::min(status_ns_, now_ns + kStatusDelayNs);
  if (++unreported_ >= kPacketsPerStatus) status_due_ = true;
}

// Sequences before `end` are known to have been sent. False: beyond what was granted.
bool LinkReceiver::Advance(int64_t now_ns, uint32_t end) {
  if (Before(end_, end)) {
    if (end - cumulative_ > kWindowPackets) return false;
    for (uint32_t s = end_; s != end; ++s) noticed_ns_[s % kWindowPackets] = now_ns;
    if (end - end_ > 1 && !young_gap_) {
      young_gap_ = true;
      young_gap_end_ = end - 1;
    }
    end_ = end;
  }
  if (young_gap_ && end_ - young_gap_end_ >= kReorderPackets) {
    young_gap_ = false;
    status_due_ = status_due_ || cumulative_ != end_;
  }
  return true;
}

}  // namespace strom
