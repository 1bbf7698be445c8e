#include "core/transport/link_receiver.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/transport/counters.h"
#include "core/transport/long_line.h"

namespace strom {
namespace {

constexpr uint32_t kPacketsPerStatus = 16;
constexpr int64_t kUsualPayloadBytes = 1144;  // what a datagram of 1200 bytes carries
constexpr int64_t kStatusDelayNs = 200'000;
constexpr int64_t kMostStatusDelayNs = 1'000'000;
constexpr int64_t kStatusesOfRound = 128;  // on a long line
constexpr uint32_t kReorderPackets = 3;    // later packets that make a hole a gap
constexpr int64_t kReorderNs = 500'000;    // ... or so much time
constexpr int64_t kRecheckNs = 2'000'000;  // a reported gap is reported again
constexpr int64_t kLongAgo = std::numeric_limits<int64_t>::min() / 2;

}  // namespace

LinkReceiver::LinkReceiver(uint32_t first_sequence, Grants* grants, LinkCounters* counters)
    : grants_(grants),
      counters_(counters),
      cumulative_(first_sequence),
      end_(first_sequence),
      lost_up_to_(first_sequence),
      untold_from_(first_sequence),
      grant_edge_(first_sequence + kIdleGrantPackets),
      packet_bytes_(kUsualPayloadBytes),
      reassembly_(grants, counters) {}

LinkReceiver::~LinkReceiver() { SetUnderWay(0); }

bool LinkReceiver::HandleData(int64_t now_ns, const DataPacket& packet) {
  NoteArrival(now_ns, packet.timestamp_us);
  const int64_t payload_bytes = static_cast<int64_t>(packet.payload.size());
  packet_bytes_ = std::max(packet_bytes_, payload_bytes);
  CountRound(now_ns, payload_bytes);
  if (grants_->NoteArrival(now_ns, payload_bytes, &sender_)) status_due_ = true;
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
  ++arrived_count_;
  const uint32_t hole = arrived_.NextHole(cumulative_, end_);
  arrived_count_ -= hole - cumulative_;
  for (; cumulative_ != hole; ++cumulative_) arrived_.Erase(cumulative_);
  return true;
}

bool LinkReceiver::HandleProbe(int64_t now_ns, const ProbePacket& packet) {
  NoteArrival(now_ns, packet.timestamp_us);
  status_due_ = true;
  // What is missing now was sent before the probe: no patience with it.
  return Before(packet.next_sequence, end_) || Advance(kLongAgo, packet.next_sequence);
}

void LinkReceiver::SetUnderWay(int64_t bytes) {
  if (round_trip_ns_ >= kLongLineNs) bytes = 0;
  grants_->NoteOwnUnderWay(bytes - std::exchange(under_way_bytes_, bytes));
}

void LinkReceiver::HoldBack(bool hold) {
  if (held_back_ && !hold) status_due_ = true;
  held_back_ = hold;
}

void LinkReceiver::TakeStatus(int64_t now_ns, StatusPacket* status) {
  status->cumulative = cumulative_;
  status->complete_up_to = end_;
  status->grant_edge = NextGrantEdge(now_ns);
  status->gap_count = 0;
  bool young = false;
  // Where the last one had no room for more gaps, this one goes on.
  const uint32_t from = Before(cumulative_, untold_from_) ? untold_from_ : cumulative_;
  status->untold = from - cumulative_;
  untold_from_ = cumulative_;
  for (uint32_t hole = arrived_.NextHole(from, end_); hole != end_;) {
    const uint32_t hole_end = arrived_.NextMember(hole, end_);
    const int64_t noticed_ns = noticed_ns_[hole];
    young = end_ - hole_end < kReorderPackets && now_ns - noticed_ns < kReorderNs;
    if (young || status->gap_count == StatusPacket::kMaxGaps) {
      status->complete_up_to = hole;
      if (!young) untold_from_ = hole;
      young_gap_end_ = hole_end;
      break;
    }
    NoteLoss(hole, hole_end);
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

// Tells of the part of a gap that is reported for the first time.
void LinkReceiver::NoteLoss(uint32_t from, uint32_t to) {
  if (Before(lost_up_to_, cumulative_)) lost_up_to_ = cumulative_;
  if (Before(from, lost_up_to_)) from = lost_up_to_;
  if (!Before(from, to)) return;
  grants_->NoteLoss(to - from);
  lost_up_to_ = to;
}

void LinkReceiver::CountRound(int64_t now_ns, int64_t bytes) {
  if (now_ns - round_ns_ >= round_trip_ns_) {
    most_bytes_ = std::max(round_bytes_, most_bytes_ - most_bytes_ / 8);
    round_bytes_ = 0;
    round_ns_ = now_ns;
  }
  round_bytes_ += bytes;
}

// On a long line three times what a round trip brings: while a sender doubles its rate, twice that
// is under way when the grant arrives.
int64_t LinkReceiver::ShareBytes(int64_t now_ns) const {
  const int64_t share = grants_->ShareBytes(now_ns);
  if (round_trip_ns_ < kLongLineNs) return share;
  return std::max(
      share, std::min(share + 3 * std::max(most_bytes_, round_bytes_), Grants::kLongLineBytes));
}

// What has arrived behind a hole is not under way any more. An edge never moves back, so after its
// share has shrunk the sender uses up what it was granted first.
uint32_t LinkReceiver::NextGrantEdge(int64_t now_ns) {
  const int64_t packets = ShareBytes(now_ns) / packet_bytes_;
  share_ = static_cast<uint32_t>(std::clamp<int64_t>(packets, kLeastGrantPackets, kWindowPackets));
  packet_bytes_ = std::max(packet_bytes_ - packet_bytes_ / 64, kUsualPayloadBytes);
  const uint32_t edge = cumulative_ + std::min(arrived_count_ + share_, kWindowPackets);
  if (!held_back_ && Before(grant_edge_, edge)) grant_edge_ = edge;
  return grant_edge_;
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
  const int64_t delay_ns =
      std::clamp(round_trip_ns_ / kStatusesOfRound, kStatusDelayNs, kMostStatusDelayNs);
  status_ns_ = std::min(status_ns_, now_ns + delay_ns);
  if (++unreported_ >= std::min(kPacketsPerStatus, share_ / 2)) status_due_ = true;
}

// Sequences before `end` are known to have been sent. False: beyond what was granted.
bool LinkReceiver::Advance(int64_t now_ns, uint32_t end) {
  if (Before(end_, end)) {
    if (end - cumulative_ > kWindowPackets) return false;
    noticed_ns_.Extend(cumulative_, end_, end);
    for (uint32_t s = end_; s != end; ++s) noticed_ns_[s] = now_ns;
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
