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

Reassembly::Verdict Reassembly::TakeFragment(const DataPacket& packet) {
  const uint64_t key = KeyOf(packet);
  auto found = partial_.find(key);
  if (found == partial_.end()) {
    if (bytes_ + packet.length > kMaxReassemblyBytes) return Verdict::kOverLimit;
    if (packet.payload.size() == packet.length) {
      return Complete(packet, MakeBuffer({packet.payload.begin(), packet.payload.end()}));
    }
    bytes_ += packet.length;
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
  Buffer message = MakeBuffer(std::move(partial.bytes));
  partial_.erase(found);
  bytes_ -= packet.length;
  return Complete(packet, std::move(message));
}

Reassembly::Verdict Reassembly::Complete(const DataPacket& last, Buffer bytes) {
  // A bundle was made for one datagram. Longer ones would be a way to many messages for few bytes.
  if (last.is_bundle && (last.length > kMaxDatagramBytes || !IsBundle(*bytes))) {
    return Verdict::kBroken;
  }
  Finish(last.channel, last.message, {std::move(bytes), last.is_bundle});
  return Verdict::kEnded;
}

void Reassembly::GiveUp(const DataPacket& packet) {
  ++counters_->messages_voided_by_peer;
  if (const auto found = partial_.find(KeyOf(packet)); found != partial_.end()) {
    bytes_ -= static_cast<int64_t>(found->second.bytes.size());
    partial_.erase(found);
  }
  Finish(packet.channel, packet.message, {});
}

void Reassembly::Finish(Channel channel, uint32_t number, Whole whole) {
  Numbers& numbers = numbers_[static_cast<size_t>(channel)];
  if (number == numbers.next || !IsOrdered(channel)) Deliver(channel, std::exchange(whole, {}));
  if (number != numbers.next) {
    if (whole.bytes != nullptr) bytes_ += static_cast<int64_t>(whole.bytes->size());
    numbers.later.emplace(number, std::move(whole));
    return;
  }
  ++numbers.next;
  while (!numbers.later.empty()) {
    const auto ready = numbers.later.find(numbers.next);
    if (ready == numbers.later.end()) return;
    const Buffer& bytes = ready->second.bytes;
    if (bytes != nullptr) bytes_ -= static_cast<int64_t>(bytes->size());
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
