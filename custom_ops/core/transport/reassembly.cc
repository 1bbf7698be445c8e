#include "core/transport/reassembly.h"

#include <algorithm>
#include <utility>

#include "core/transport/bundle.h"
#include "core/transport/counters.h"
#include "core/transport/sequence_set.h"

namespace strom {
namespace {

// How far an honest sender gets beyond the first number that is not done: that message has a
// sequence in the window, or had one when it was cut anew and has one now.
constexpr uint32_t kMostNumbersAhead = 2 * kWindowPackets;

uint64_t KeyOf(const DataPacket& packet) {
  return static_cast<uint64_t>(packet.channel) << 32 | packet.message;
}

bool IsOrdered(Channel channel) { return channel != Channel::kUpdate; }

}  // namespace

Reassembly::Verdict Reassembly::Take(const DataPacket& packet) {
  const Numbers& numbers = numbers_[static_cast<size_t>(packet.channel)];
  if (Before(packet.message, numbers.next)) return Verdict::kTaken;
  if (packet.message - numbers.next >= kMostNumbersAhead) return Verdict::kBroken;
  if (!numbers.later.empty() && numbers.later.contains(packet.message)) return Verdict::kTaken;
  if (!packet.is_void) return TakeFragment(packet);
  GiveUp(packet);
  return Verdict::kEnded;
}

std::optional<DeliveredMessage> Reassembly::PollMessage() {
  if (delivered_.empty()) return std::nullopt;
  DeliveredMessage message = std::move(delivered_.front());
  delivered_.pop_front();
  return message;
}

// As given out: a bundle of tiny messages takes a hundred times its bytes.
int64_t Reassembly::Whole::CostBytes() const {
  if (bytes == nullptr) return kMessageOverheadBytes;
  int64_t messages = 1;
  if (is_bundle) {
    messages = 0;
    for (Bytes rest = *bytes; NextBundled(&rest);) ++messages;
  }
  return static_cast<int64_t>(bytes->size()) + messages * kMessageOverheadBytes;
}

bool Reassembly::IsAwaited(const DataPacket& packet) const {
  return IsOrdered(packet.channel) &&
         packet.message == numbers_[static_cast<size_t>(packet.channel)].next;
}

bool Reassembly::HasRoom(const DataPacket& packet, int64_t bytes) const {
  if (IsAwaited(packet)) return true;
  const int64_t then = bytes_ + bytes + kAwaitedBytes;
  if (then > kMaxReassemblyBytes) return false;
  return then <= kLeastReassemblyBytes || grants_->HasReassemblyRoom(bytes);
}

Reassembly::Verdict Reassembly::TakeFragment(const DataPacket& packet) {
  const uint64_t key = KeyOf(packet);
  const int64_t held = packet.length + kMessageOverheadBytes;
  auto found = partial_.find(key);
  if (found == partial_.end()) {
    if (packet.payload.size() == packet.length) {
      Whole whole{MakeBuffer({packet.payload.begin(), packet.payload.end()}), packet.is_bundle};
      if (!MayComplete(packet, whole, 0)) return Verdict::kOverLimit;
      return Complete(packet, std::move(whole));
    }
    if (!HasRoom(packet, held)) return Verdict::kOverLimit;
    Hold(held);
    found = partial_.emplace(key, Partial{}).first;
    found->second.bytes.resize(packet.length);
  }
  Partial& partial = found->second;
  if (partial.bytes.size() != packet.length) return Verdict::kBroken;
  std::copy(packet.payload.begin(), packet.payload.end(), partial.bytes.begin() + packet.offset);
  partial.arrived.Add(packet.offset, packet.offset + static_cast<uint32_t>(packet.payload.size()));
  // Between two ranges lies a sequence of the window.
  if (partial.arrived.count() > kWindowPackets) return Verdict::kBroken;
  if (!partial.arrived.Covers(packet.length)) return Verdict::kTaken;
  Whole whole{MakeBuffer(std::move(partial.bytes)), packet.is_bundle};
  if (!MayComplete(packet, whole, held)) {
    partial.bytes = *whole.bytes;  // its last fragment comes again
    return Verdict::kOverLimit;
  }
  Hold(-held);
  partial_.erase(found);
  return Complete(packet, std::move(whole));
}

// Whether there is room for it, of which `held` bytes are here already, where it has to wait.
bool Reassembly::MayComplete(const DataPacket& last, const Whole& whole, int64_t held) const {
  const bool waits = IsOrdered(last.channel) && !IsAwaited(last);
  return !waits || HasRoom(last, whole.CostBytes() - held);
}

Reassembly::Verdict Reassembly::Complete(const DataPacket& last, Whole whole) {
  // A bundle was made for one datagram. Longer ones would be a way to many messages for few bytes.
  if (whole.is_bundle && (last.length > kMaxDatagramBytes || !IsBundle(*whole.bytes))) {
    return Verdict::kBroken;
  }
  Finish(last.channel, last.message, std::move(whole));
  return Verdict::kEnded;
}

void Reassembly::GiveUp(const DataPacket& packet) {
  ++counters_->messages_voided_by_peer;
  if (const auto found = partial_.find(KeyOf(packet)); found != partial_.end()) {
    Hold(-static_cast<int64_t>(found->second.bytes.size()) - kMessageOverheadBytes);
    partial_.erase(found);
  }
  Finish(packet.channel, packet.message, {});
}

void Reassembly::Finish(Channel channel, uint32_t number, Whole whole) {
  Numbers& numbers = numbers_[static_cast<size_t>(channel)];
  if (number == numbers.next || !IsOrdered(channel)) Deliver(channel, std::exchange(whole, {}));
  if (number != numbers.next) {
    if (whole.bytes != nullptr) Hold(whole.CostBytes());
    numbers.later.emplace(number, std::move(whole));
    return;
  }
  ++numbers.next;
  while (!numbers.later.empty()) {
    const auto ready = numbers.later.find(numbers.next);
    if (ready == numbers.later.end()) return;
    if (ready->second.bytes != nullptr) Hold(-ready->second.CostBytes());
    Deliver(channel, std::move(ready->second));
    numbers.later.erase(ready);
    ++numbers.next;
  }
}

void Reassembly::Deliver(Channel channel, Whole whole) {
  if (whole.bytes == nullptr) return;  // given up, or delivered before its turn
  if (!whole.is_bundle) {
    ++counters_->messages_received;
    delivered_.push_back({channel, std::move(whole.bytes)});
    return;
  }
  for (Bytes rest = *whole.bytes; const auto message = NextBundled(&rest);) {
    ++counters_->messages_received;
    delivered_.push_back({channel, MakeBuffer({message->begin(), message->end()})});
  }
}

}  // namespace strom
