#include "net/same_host_link.h"

#include <algorithm>
#include <utility>

namespace strom {
namespace {

// The other side sees progress in steps of this, so that both work at the same time.
constexpr int64_t kStepBytes = int64_t{128} << 10;

}  // namespace

void SameHostLink::Queue(Channel channel, Buffer message) {
  waiting_bytes_ += static_cast<int64_t>(message->size());
  outgoing_[static_cast<size_t>(channel)].queue.push_back(std::move(message));
}

void SameHostLink::Void(Channel channel) {
  Outgoing& out = outgoing_[static_cast<size_t>(channel)];
  for (const Buffer& message : out.queue) waiting_bytes_ -= static_cast<int64_t>(message->size());
  counters_.messages_voided += static_cast<int64_t>(out.queue.size());
  if (out.written > 0) {
    waiting_bytes_ += static_cast<int64_t>(out.written);
    out.void_due = true;
  }
  out.written = 0;
  out.queue.clear();
}

bool SameHostLink::Transmit(int64_t most_bytes) {
  bool wake = false;
  int64_t unpublished = 0;
  for (int64_t left = most_bytes; left > 0;) {
    const size_t channel = NextChannel();
    if (channel == kChannels) break;
    const int64_t bytes = static_cast<int64_t>(sizeof(RingFrame) + NextPayload(channel).size());
    if (!WriteFrame(channel)) break;
    left -= bytes;
    unpublished += bytes;
    if (unpublished < kStepBytes) continue;
    wake = writer_.Publish() || wake;
    unpublished = 0;
  }
  return writer_.Publish() || wake;
}

bool SameHostLink::Receive(int64_t most_bytes, const Deliver& deliver) {
  bool wake = false;
  int64_t unreleased = 0;
  RingFrame frame;
  for (int64_t left = most_bytes; left > 0 && !broken() && reader_.Next(&frame);) {
    TakeFrame(frame, deliver);
    const int64_t bytes = static_cast<int64_t>(sizeof(frame) + frame.bytes);
    left -= bytes;
    unreleased += bytes;
    if (unreleased < kStepBytes) continue;
    wake = reader_.Release() || wake;
    unreleased = 0;
  }
  return reader_.Release() || wake;
}

bool SameHostLink::PrepareToSleep(bool reads) {
  const size_t channel = NextChannel();
  if (channel < kChannels) {
    if (!writer_.AskForRoom(NextPayload(channel).size())) return false;
  } else if (writer_.unread_bytes() > writer_.ring_bytes() / 2) {
    writer_.AskForProgress();  // whoever waits for QueuedBytes to fall learns of it
  }
  return !reads || reader_.AskForFrame();
}

void SameHostLink::Awake() {
  writer_.StopAsking();
  reader_.StopAsking();
}

size_t SameHostLink::NextChannel() const {
  size_t channel = 0;
  while (channel < kChannels && outgoing_[channel].queue.empty() && !outgoing_[channel].void_due) {
    ++channel;
  }
  return channel;
}

Bytes SameHostLink::NextPayload(size_t channel) const {
  const Outgoing& out = outgoing_[channel];
  if (out.void_due) return {};
  const Bytes left = Bytes(*out.queue.front()).subspan(out.written);
  return left.first(std::min(left.size(), writer_.max_payload()));
}

bool SameHostLink::WriteFrame(size_t channel) {
  Outgoing& out = outgoing_[channel];
  RingFrame frame{.channel = static_cast<Channel>(channel), .kind = RingFrame::Kind::kVoid};
  const Bytes payload = NextPayload(channel);
  if (!out.void_due) {
    frame.bytes = static_cast<uint32_t>(payload.size());
    frame.message_bytes = static_cast<uint32_t>(out.queue.front()->size());
    frame.kind = out.written == 0 ? RingFrame::Kind::kFirst : RingFrame::Kind::kNext;
  }
  if (!writer_.Write(frame, payload)) return false;
  if (std::exchange(out.void_due, false)) return true;
  out.written += payload.size();
  waiting_bytes_ -= static_cast<int64_t>(payload.size());
  if (out.written < frame.message_bytes) return true;
  ++counters_.messages_sent;
  counters_.bytes_sent += frame.message_bytes;
  out.written = 0;
  out.queue.pop_front();
  return true;
}

void SameHostLink::TakeFrame(const RingFrame& frame, const Deliver& deliver) {
  Incoming& in = incoming_[static_cast<size_t>(frame.channel)];
  if (frame.kind == RingFrame::Kind::kVoid) {
    reader_.Take(frame, nullptr);
    if (in.length > 0) ++counters_.messages_voided_by_peer;
    in = {};
    return;
  }
  if (frame.kind == RingFrame::Kind::kFirst && in.length == 0 && frame.message_bytes > 0 &&
      frame.message_bytes <= kMaxMessageBytes) {
    in.length = frame.message_bytes;
    in.message.reserve(in.length);
  } else if (frame.kind != RingFrame::Kind::kNext || in.length != frame.message_bytes) {
    broken_ = true;
    return;
  }
  if (frame.bytes == 0 || frame.bytes > in.length - in.message.size()) {
    broken_ = true;
    return;
  }
  reader_.Take(frame, &in.message);
  if (in.message.size() < in.length) return;
  ++counters_.messages_received;
  counters_.bytes_received += static_cast<int64_t>(in.length);
  deliver(frame.channel, MakeBuffer(std::move(in.message)));
  in = {};
}

}  // namespace strom
