#include "core/transport/link_sender.h"

#include <algorithm>
#include <utility>

#include "core/transport/bundle.h"
#include "core/transport/counters.h"
#include "core/transport/grants.h"

namespace strom {
namespace {

constexpr int64_t kLeastProbeNs = 500'000;
constexpr int64_t kMostProbeNs = 100'000'000;
// Nor longer than this part of the failure timeout: after a short silence one may be lost, and
// another.
constexpr int64_t kProbesPerTimeout = 50;
constexpr int64_t kBurstNs = 1'000'000;
constexpr int64_t kMostBurstNs = 20'000'000;  // on long lines
constexpr double kLeastBurst = 32;
constexpr double kMostBurst = 512;
// Worth waking up for: what 100 us bring, within what a run of datagrams is.
constexpr int64_t kBatchNs = 100'000;
constexpr double kLeastBatch = 8;
constexpr double kMostBatch = 44;
constexpr int64_t kLongestSampleNs = 5'000'000'000;
constexpr int64_t kBlackHoleLosses = 8;
constexpr int64_t kBlackHoleNs = 20'000'000;
// No line that carries anything loses one packet so many times in a row. It is tried slowly then:
// so many packets a second. What is said behind it does not pass either, so that the verdict comes
// before somebody misses it: after this part of the failure timeout.
constexpr int64_t kStuckLosses = 24;
constexpr double kStuckPacketsPerSecond = 200;
constexpr int64_t kStuckPercent = 80;
// What the window holds at most, however long the packets are; the peer's reassembly has room for
// it. A long line holds more: these are 130 ms at 1 Gbit/s.
constexpr size_t kWindowBytes = size_t{4} << 20;
constexpr size_t kLongLineWindowBytes = size_t{16} << 20;

uint32_t Microseconds(int64_t now_ns) { return static_cast<uint32_t>(now_ns / 1000); }

}  // namespace

// A message that has started: it has a number, and its first fragment a sequence.
struct LinkSender::Message {
  Buffer buffer;
  Channel channel = Channel::kControl;
  uint32_t number = 0;
  uint32_t length = 0;
  uint32_t messages = 1;    // more: a bundle of so many
  uint32_t sent = 0;        // bytes that have a sequence
  uint32_t fragments = 0;   // sequences not acknowledged
  uint32_t remainders = 0;  // parts that were cut off and still need a sequence
  bool is_void = false;
  bool becomes_void = false;  // in the call at hand
  bool wholly_sent() const { return sent == length; }
  bool is_done() const { return wholly_sent() && fragments == 0 && remainders == 0; }
};

void LeastOfPeriods::Sample(int64_t now_ns, int64_t value) {
  if (now_ns >= period_end_ns_) {
    least_ = least_ == 0 ? value : least_of_period_;
    period_end_ns_ = now_ns + period_ns_;
    least_of_period_ = value;
  }
  least_of_period_ = std::min(least_of_period_, value);
  least_ = std::min(least_, value);
}

void RoundTripClock::Sample(int64_t now_ns, int64_t round_trip_ns) {
  round_trip_ns = std::max<int64_t>(round_trip_ns, 1000);  // the timestamps' resolution
  least_.Sample(now_ns, round_trip_ns);
  shortest_.Sample(now_ns, round_trip_ns);
  if (++samples_ % kFewSamples == 0) {
    few_before_ns_ = few_ns_;
    few_ns_ = kNever;
  }
  few_ns_ = std::min(few_ns_, round_trip_ns);
  smoothed_ns_ = has_sample() ? (smoothed_ns_ * 7 + round_trip_ns) / 8 : round_trip_ns;
}

LinkSender::LinkSender(uint32_t first_sequence, size_t body_bytes, int64_t failure_timeout_ns,
                       const CongestionControl& control, LinkCounters* counters)
    : fragment_bytes_(body_bytes - DataPacket::kFieldBytes),
      first_fragment_bytes_(fragment_bytes_),
      control_(control),
      counters_(counters),
      oldest_(first_sequence),
      next_(first_sequence),
      grant_edge_(first_sequence + kIdleGrantPackets),
      round_end_(first_sequence),
      tokens_(kLeastBurst),
      failure_timeout_ns_(failure_timeout_ns),
      most_probe_ns_(std::min(kMostProbeNs, failure_timeout_ns / kProbesPerTimeout)) {}

LinkSender::~LinkSender() = default;

void LinkSender::Queue(int64_t now_ns, Channel channel, Buffer message) {
  const bool was_empty = queued_bytes_ == 0;
  queued_bytes_ += static_cast<int64_t>(message->size());
  queues_[static_cast<size_t>(channel)].push_back(std::move(message));
  // Where it may not leave yet, the word that it may can be lost.
  if (was_empty) ArmProbe(now_ns);
}

void LinkSender::Void(int64_t now_ns, Channel channel) {
  auto& queue = queues_[static_cast<size_t>(channel)];
  for (const Buffer& message : queue) queued_bytes_ -= static_cast<int64_t>(message->size());
  counters_->messages_voided += static_cast<int64_t>(queue.size());
  queue.clear();
  oldest_lost_ = 0;  // what goes from now on may be shorter
  VoidStarted(now_ns, channel);
  ArmProbe(now_ns);
}

void LinkSender::VoidStarted(int64_t now_ns, Channel channel) {
  for (const auto& message : messages_) {
    if (message->buffer == nullptr || message->channel != channel) continue;
    counters_->messages_voided += message->messages;
    message->is_void = message->becomes_void = true;
    message->buffer = nullptr;
  }
  std::erase_if(remainders_, [&](const Remainder& r) {
    if (r.message->becomes_void) queued_bytes_ -= r.size;
    return r.message->becomes_void;
  });
  for (const auto& message : messages_) {
    if (message->becomes_void) CloseVoid(now_ns, message.get());
  }
  for (uint32_t s = pending_.NextMember(oldest_, next_); s != next_;
       s = pending_.NextMember(s + 1, next_)) {
    Slot& slot = SlotOf(s);
    if (slot.message == nullptr || !slot.message->becomes_void) continue;
    queued_bytes_ -= slot.size;
    slot.size = 0;
    if (!slot.lost) Resend(&slot);
  }
  for (const auto& message : messages_) message->becomes_void = false;
}

void LinkSender::CloseVoid(int64_t now_ns, Message* message) {
  // The peer lacks what was to be cut anew, and may have the rest: one sequence more tells it.
  const bool lacks_a_part = std::exchange(message->remainders, 0) > 0;
  if (message->wholly_sent() && lacks_a_part) {
    remainders_.push_back({message, message->length, 0});
    message->remainders = 1;
  }
  if (!message->wholly_sent()) {
    // One sequence more says that nothing follows; HasWindow keeps it free.
    queued_bytes_ -= message->length - message->sent;
    message->sent = message->length;
    CloseOpen(message);
    Slot& closing = Assign(message, message->length, 0);
    PutOnTheWay(now_ns, &closing);
  }
}

bool LinkSender::HandleStatus(int64_t now_ns, const StatusPacket& status) {
  if (Before(next_, status.cumulative)) return false;
  if (Before(status.cumulative, oldest_)) return true;  // overtaken by a newer one
  if (status.complete_up_to - status.cumulative > next_ - status.cumulative) return false;
  if (status.echo_delay_us != StatusPacket::kNoEcho) {
    const uint32_t elapsed_us =
        Microseconds(now_ns) - status.echo_timestamp_us - status.echo_delay_us;
    if (int64_t{elapsed_us} * 1000 < kLongestSampleNs) {
      round_trip_.Sample(now_ns, int64_t{elapsed_us} * 1000);
    }
  }
  if (Before(grant_edge_, status.grant_edge)) grant_edge_ = status.grant_edge;

  const bool window_limited = static_cast<double>(in_flight_) >= congestion_.window_packets / 2;
  const int64_t acknowledged_before = round_acknowledged_, lost_before = round_lost_;
  const bool progress = status.cumulative != oldest_;
  AcknowledgeRange(now_ns, oldest_, status.cumulative);
  oldest_ = status.cumulative;
  uint32_t from = oldest_ + status.untold;
  for (size_t i = 0; i < status.gap_count; ++i) {
    const uint32_t gap = status.cumulative + status.gaps[i].offset;
    AcknowledgeRange(now_ns, from, gap);
    from = gap + status.gaps[i].length;
    for (uint32_t s = pending_.NextMember(gap, from); s != from;
         s = pending_.NextMember(s + 1, from)) {
      ReportMissing(now_ns, s);
    }
  }
  AcknowledgeRange(now_ns, from, status.complete_up_to);
  AdaptWindow(now_ns, round_acknowledged_ - acknowledged_before,
              std::max<int64_t>(round_lost_ - lost_before, 0), window_limited);
  if (progress) {
    oldest_lost_ = 0;
    probes_ = 0;
    ArmProbe(now_ns);
  }
  return true;
}

size_t LinkSender::PollData(int64_t now_ns, std::span<uint8_t> out) {
  pacing_ns_ = kNever;
  if (static_cast<double>(in_flight_) >= congestion_.window_packets) return 0;
  Slot* lost = OldestLost();
  if (lost == nullptr && !HasFresh()) {
    delivery_.NoteLimited(in_flight_);
    return 0;
  }
  if (!TakeToken(now_ns)) return 0;

  Slot* slot = lost;
  if (slot != nullptr) {
    if (lost_.front() == slot->sequence) lost_.pop_front();
    slot->lost = false;
    slot->resent = true;
    if (slot->size > fragment_bytes_) Split(slot);
    ++counters_->retransmitted_packets;
  } else {
    slot = remainders_.empty() ? NextFresh() : NextRemainder();
  }
  PutOnTheWay(now_ns, slot);
  probes_ = 0;
  ArmProbe(now_ns);
  return Write(now_ns, *slot, out);
}

bool LinkSender::TakeProbe() { return std::exchange(probe_wanted_, false); }

void LinkSender::HandleTimeout(int64_t now_ns) {
  if (now_ns < probe_ns_) return;
  if (!HasWork()) {
    probe_ns_ = kNever;
    return;
  }
  probe_wanted_ = true;
  // Nothing has left for longer than a round trip: what was under way has arrived or is lost, even
  // where the peer's STATUS did not get as far.
  for (uint32_t s = pending_.NextMember(oldest_, next_); OnLongLine() && s != next_;
       s = pending_.NextMember(s + 1, next_)) {
    TakeOffTheWay(&SlotOf(s));
  }
  probes_ = std::min(probes_ + 1, 10);
  ArmProbe(now_ns);
}

int64_t LinkSender::NextTimeout() const { return std::min(probe_ns_, pacing_ns_); }

void LinkSender::SetBodyBytes(size_t body_bytes) {
  const size_t fragment_bytes = body_bytes - DataPacket::kFieldBytes;
  if (fragment_bytes == fragment_bytes_) return;
  // As many bytes under way as before.
  const double ratio = static_cast<double>(fragment_bytes_) / static_cast<double>(fragment_bytes);
  congestion_ = ScaledCongestionState(congestion_, ratio);
  tokens_ *= ratio;
  fragment_bytes_ = fragment_bytes;
  long_lost_ = oldest_lost_ = 0;
}

// Loss alone takes no packets of one kind for so long, and a crowded queue not all of them.
bool LinkSender::LosesLongPackets(int64_t now_ns) const {
  return long_lost_ >= kBlackHoleLosses &&
         now_ns - long_lost_ns_ >= std::max(4 * round_trip_.smoothed_ns(), kBlackHoleNs);
}

bool LinkSender::IsStuck() const { return oldest_lost_ >= kStuckLosses; }

std::optional<LinkSender::Stuck> LinkSender::FindStuck(int64_t now_ns) const {
  if (!IsStuck()) return std::nullopt;
  const int64_t ns = now_ns - oldest_lost_ns_;
  const bool is_over = ns >= kStuckPercent * failure_timeout_ns_ / 100;
  return Stuck{slots_[oldest_].size + DataPacket::kFieldBytes, oldest_lost_, ns, is_over};
}

// ---------------------------------------------------------------- what to send

// The first report is resent before anything fresh. Where none passes, one packet tries for all.
LinkSender::Slot* LinkSender::OldestLost() {
  if (IsStuck()) return SlotOf(oldest_).lost ? &SlotOf(oldest_) : nullptr;
  while (!lost_.empty()) {
    Slot& slot = SlotOf(lost_.front());
    if (slot.sequence == lost_.front() && slot.message != nullptr && slot.lost) return &slot;
    lost_.pop_front();  // it was acknowledged meanwhile
  }
  return nullptr;
}

bool LinkSender::HasFresh() const {
  return HasWindow() &&
         (!remainders_.empty() || open_count_ > 0 ||
          std::any_of(queues_.begin(), queues_.end(), [](auto& q) { return !q.empty(); }));
}

// Two sequences are kept back: either open message may need one to end as VOID.
bool LinkSender::HasWindow() const {
  return Before(next_, grant_edge_) && next_ - oldest_ < WindowPackets() - open_.size();
}

bool LinkSender::HasWork() const {
  return next_ != oldest_ || queued_bytes_ > 0 || !remainders_.empty();
}

bool LinkSender::TakeToken(int64_t now_ns) {
  const double rate = PacingRate();
  // What a wait for a processor has cost is made up for where the line's queue hardly feels it.
  const int64_t burst_ns =
      OnLongLine() ? std::clamp(round_trip_.least_ns() / 4, kBurstNs, kMostBurstNs) : kBurstNs;
  const double burst = std::clamp(rate * static_cast<double>(burst_ns), AsManyBytes(kLeastBurst),
                                  AsManyBytes(kMostBurst));
  tokens_ = std::min(burst, tokens_ + rate * static_cast<double>(now_ns - tokens_ns_));
  tokens_ns_ = now_ns;
  if (tokens_ < 1 && now_ns >= rest_end_ns_) {
    const double batch = std::clamp(rate * static_cast<double>(kBatchNs), AsManyBytes(kLeastBatch),
                                    AsManyBytes(kMostBatch));
    rest_end_ns_ = now_ns + static_cast<int64_t>((batch - tokens_) / rate) + 1;
  }
  if (now_ns >= rest_end_ns_) {
    tokens_ -= 1;
    return true;
  }
  pacing_ns_ = rest_end_ns_;
  return false;
}

double LinkSender::PacingRate() const {
  const double rate = control_.pacing_rate(congestion_, round_trip_.path_ns());
  return IsStuck() ? std::min(rate, kStuckPacketsPerSecond / 1e9) : rate;
}

double LinkSender::AsManyBytes(double first_packets) const {
  const double bytes = first_packets * static_cast<double>(first_fragment_bytes_);
  return std::max(bytes / static_cast<double>(fragment_bytes_), 1.0);
}

LinkSender::Slot* LinkSender::NextFresh() {
  Message* message = OpenMessage();
  const uint32_t size =
      static_cast<uint32_t>(std::min<size_t>(fragment_bytes_, message->length - message->sent));
  Slot& slot = Assign(message, message->sent, size);
  message->sent += size;
  if (message->wholly_sent()) {
    counters_->messages_sent += message->messages;
    CloseOpen(message);
  }
  return &slot;
}

// The slot's packet does not pass any more. Its sequence keeps the first part; had the whole packet
// arrived after all, the peer would know the sequence and find all bytes there twice.
void LinkSender::Split(Slot* slot) {
  const uint32_t first = static_cast<uint32_t>(fragment_bytes_);
  remainders_.push_back({slot->message, slot->offset + first, slot->size - first});
  ++slot->message->remainders;
  slot->size = first;
}

LinkSender::Slot* LinkSender::NextRemainder() {
  Remainder& remainder = remainders_.front();
  const uint32_t size = static_cast<uint32_t>(std::min<size_t>(fragment_bytes_, remainder.size));
  Slot& slot = Assign(remainder.message, remainder.offset, size);
  remainder.offset += size;
  remainder.size -= size;
  if (remainder.size == 0) {
    --remainder.message->remainders;
    remainders_.pop_front();
  }
  return &slot;
}

// The message whose turn it is. At most two are open: a smaller channel may interrupt once.
LinkSender::Message* LinkSender::OpenMessage() {
  size_t waiting = 0;
  while (waiting < queues_.size() && queues_[waiting].empty()) ++waiting;
  const bool interrupts = open_count_ == 1 && waiting < static_cast<size_t>(open_[0]->channel);
  if (open_count_ == 0 || interrupts) open_[open_count_++] = Start(static_cast<Channel>(waiting));
  return open_[open_count_ - 1];
}

LinkSender::Message* LinkSender::Start(Channel channel) {
  if (free_messages_.empty()) {
    messages_.push_back(std::make_unique<Message>());
    free_messages_.push_back(messages_.back().get());
  }
  Message* message = free_messages_.back();
  free_messages_.pop_back();
  const size_t index = static_cast<size_t>(channel);
  auto& queue = queues_[index];
  const size_t count = std::max<size_t>(CountBundled(queue, fragment_bytes_), 1);
  *message = Message{.buffer = count > 1 ? MakeBundle(queue, count) : std::move(queue.front()),
                     .channel = channel,
                     .number = next_message_[index]++,
                     .messages = static_cast<uint32_t>(count)};
  message->length = static_cast<uint32_t>(message->buffer->size());
  queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(count));
  if (count > 1) queued_bytes_ += static_cast<int64_t>(count * kBundledFieldBytes);
  return message;
}

void LinkSender::CloseOpen(const Message* message) {
  if (open_[0] == message) open_[0] = open_[1];
  --open_count_;
}

void LinkSender::PutOnTheWay(int64_t now_ns, Slot* slot) {
  slot->sent_ns = now_ns;
  slot->stamp = delivery_.Send(now_ns, in_flight_);
  if (!std::exchange(slot->on_the_way, true)) ++in_flight_;
}

void LinkSender::TakeOffTheWay(Slot* slot) {
  if (std::exchange(slot->on_the_way, false)) --in_flight_;
}

LinkSender::Slot& LinkSender::Assign(Message* message, uint32_t offset, uint32_t size) {
  const uint32_t sequence = next_++;
  slots_.Extend(oldest_, sequence, next_);
  Slot& slot = SlotOf(sequence);
  slot = Slot{.message = message, .sequence = sequence, .offset = offset, .size = size};
  pending_.Insert(sequence);
  ++message->fragments;
  return slot;
}

size_t LinkSender::Write(int64_t now_ns, const Slot& slot, std::span<uint8_t> out) const {
  const Message& message = *slot.message;
  DataPacket packet{.sequence = slot.sequence,
                    .message = message.number,
                    .length = message.length,
                    .offset = message.is_void ? 0 : slot.offset,
                    .timestamp_us = Microseconds(now_ns),
                    .channel = message.channel,
                    .is_void = message.is_void,
                    .is_bundle = message.messages > 1 && !message.is_void};
  if (!message.is_void) packet.payload = Bytes(*message.buffer).subspan(slot.offset, slot.size);
  return WriteData(packet, out);
}

// ---------------------------------------------------------------- what arrived

void LinkSender::AcknowledgeRange(int64_t now_ns, uint32_t from, uint32_t to) {
  for (uint32_t s = pending_.NextMember(from, to); s != to; s = pending_.NextMember(s + 1, to)) {
    Acknowledge(now_ns, s);
  }
}

void LinkSender::Acknowledge(int64_t now_ns, uint32_t sequence) {
  Slot& slot = SlotOf(sequence);
  pending_.Erase(sequence);
  ++round_acknowledged_;
  delivery_.Acknowledge(now_ns, slot.sent_ns, slot.stamp);
  if (OnLongLine() && CameLate(now_ns, slot)) {
    reorder_ns_ = std::min(2 * ReorderNs(), round_trip_.smoothed_ns());
    round_lost_ = std::max<int64_t>(round_lost_ - 1, 0);
  }
  TakeOffTheWay(&slot);
  queued_bytes_ -= slot.size;
  if (slot.size > first_fragment_bytes_) long_lost_ = 0;
  Message* message = std::exchange(slot.message, nullptr);
  --message->fragments;
  if (message->is_done()) {
    message->buffer = nullptr;
    free_messages_.push_back(message);
  }
}

// It was reported missing, and then came before what was resent of it can have.
bool LinkSender::CameLate(int64_t now_ns, const Slot& slot) const {
  return slot.lost || (slot.resent && now_ns - slot.sent_ns < round_trip_.least_ns() / 8 * 7);
}

// How much later than others a packet may come: as was seen, and a little.
int64_t LinkSender::ReorderNs() const { return std::max(reorder_ns_, round_trip_.least_ns() / 16); }

// A packet that was resent may still be on its way. One sent once has been overtaken by later ones,
// which on a long line says little where they overtake each other all the time.
bool LinkSender::MayBeLate(int64_t now_ns, const Slot& slot) const {
  const int64_t age_ns = now_ns - slot.sent_ns;
  if (slot.resent) return age_ns < round_trip_.smoothed_ns() * 5 / 4;
  return OnLongLine() && age_ns < round_trip_.path_ns() + ReorderNs();
}

void LinkSender::ReportMissing(int64_t now_ns, uint32_t sequence) {
  Slot& slot = SlotOf(sequence);
  if (slot.lost || MayBeLate(now_ns, slot)) return;
  ++round_lost_;
  if (sequence == oldest_ && ++oldest_lost_ == 1) oldest_lost_ns_ = now_ns;
  if (slot.size > first_fragment_bytes_ && ++long_lost_ == 1) long_lost_ns_ = now_ns;
  Resend(&slot);
}

void LinkSender::Resend(Slot* slot) {
  slot->lost = true;
  TakeOffTheWay(slot);
  lost_.push_back(slot->sequence);
}

void LinkSender::AdaptWindow(int64_t now_ns, int64_t acknowledged, int64_t lost,
                             bool window_limited) {
  const DeliveryRate::Sample delivery = delivery_.Take(round_trip_.least_ns());
  // A gap holds up what has arrived in order, and on a long line for long.
  const bool round_ended = OnLongLine() ? delivery.round_ended : !Before(oldest_, round_end_);
  congestion_ = control_.next(congestion_,
                              {.now_ns = now_ns,
                               .acknowledged = acknowledged,
                               .lost = lost,
                               .window_limited = window_limited,
                               .round_ended = round_ended,
                               .round_acknowledged = round_acknowledged_,
                               .round_lost = round_lost_,
                               .queue_delay_ns = round_trip_.queue_delay_ns(),
                               .round_trip_ns = round_trip_.path_ns(),
                               .least_round_trip_ns = round_trip_.line_ns(),
                               .in_flight = in_flight_,
                               .delivered_per_ns = delivery.packets_per_ns,
                               .limited = delivery.limited},
                              WindowPackets());
  if (!round_ended) return;
  round_end_ = next_;
  round_acknowledged_ = 0;
  round_lost_ = 0;
  reorder_ns_ -= reorder_ns_ / 64;
}

uint32_t LinkSender::WindowPackets() const {
  const size_t bytes = OnLongLine() ? kLongLineWindowBytes : kWindowBytes;
  return static_cast<uint32_t>(std::min<size_t>(kWindowPackets, bytes / fragment_bytes_));
}

void LinkSender::ArmProbe(int64_t now_ns) {
  const int64_t first_ns = std::max(round_trip_.smoothed_ns() * 5 / 4, kLeastProbeNs);
  const int64_t doubled_ns = std::min(first_ns << probes_, std::max(2 * first_ns, most_probe_ns_));
  probe_ns_ = HasWork() ? now_ns + doubled_ns : kNever;
}

}  // namespace strom
