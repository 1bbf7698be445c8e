#include "core/link.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "core/counters.h"

namespace strom {
namespace {

constexpr int64_t kKeepaliveNs = 500'000'000;
// Until the responder has been heard: its link stands only once it has our first packet.
constexpr int64_t kFirstKeepaliveNs = 25'000'000;
constexpr int64_t kSuspectPercent = 30;
constexpr int kCloses = 3;
constexpr int64_t kCloseIntervalNs = 30'000'000;

size_t BodyBytes(const LinkOptions& options) {
  return options.datagram_bytes - kHeaderBytes - kTagBytes;
}

std::string Silence(int64_t timeout_ns) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "no authentic packet for %.1f s",
                static_cast<double>(timeout_ns) / 1e9);
  return text.data();
}

}  // namespace

Link::Link(int64_t now_ns, const ConnectionKeys& keys, uint32_t peer_connection,
           const LinkOptions& options, Grants* grants, LinkCounters* counters)
    : options_(options),
      counters_(counters),
      peer_connection_(peer_connection),
      seal_(Aead::Use::kSeal, keys.send),
      open_(Aead::Use::kOpen, keys.receive),
      next_number_(options.first_number),
      sender_(options.first_sequence, BodyBytes(options), options.congestion, counters),
      receiver_(options.first_sequence, grants, counters),
      heard_(!options.asks_first),
      heard_ns_(now_ns),
      jitter_(options.jitter_seed | 1),
      probe_wanted_(options.asks_first) {
  ArmKeepalive(now_ns);
}

bool Link::HandleDatagram(int64_t now_ns, const PacketHeader& header, Bytes datagram,
                          Notice* notice) {
  if (header.number >= 2 * kMaxPacketsPerKey || header.key_phase) {
    ++counters_->drop_malformed;
    return false;
  }
  if (!received_numbers_.MayBeNew(header.number)) {
    ++counters_->drop_replayed;
    return false;
  }
  std::array<uint8_t, kMaxDatagramBytes> body;
  if (!open_.Open(header.number, datagram, body.data())) {
    ++counters_->drop_unauthentic;
    return false;
  }
  received_numbers_.Add(header.number);
  heard_ = true;
  heard_ns_ = now_ns;
  suspected_ = false;
  const size_t body_bytes = datagram.size() - kHeaderBytes - kTagBytes;
  Dispatch(now_ns, header.type, Bytes(body.data(), body_bytes), notice);
  return true;
}

void Link::Dispatch(int64_t now_ns, PacketType type, Bytes body, Notice* notice) {
  if (type == PacketType::kClose) {
    const auto reason = ParseClose(body);
    if (reason && state_ == State::kOpen) {
      *notice = {Notice::Type::kDown, Code::kClosed, std::string(*reason)};
    }
    if (reason) state_ = State::kOver;
    if (!reason) ++counters_->drop_malformed;
    return;
  }
  if (state_ != State::kOpen) return;

  bool parsed = false;
  bool valid = true;
  if (type == PacketType::kData) {
    const auto packet = ParseData(body);
    parsed = packet.has_value();
    if (parsed) valid = receiver_.HandleData(now_ns, *packet);
  } else if (type == PacketType::kProbe) {
    const auto packet = ParseProbe(body);
    parsed = packet.has_value();
    if (parsed) valid = receiver_.HandleProbe(now_ns, *packet);
  } else if (type == PacketType::kStatus) {
    parsed = ParseStatus(body, &status_);
    if (parsed) valid = sender_.HandleStatus(now_ns, status_);
  }
  if (!parsed) ++counters_->drop_malformed;
  if (!valid) Break(now_ns, Code::kCorrupt, "the peer broke the link's protocol", notice);
}

size_t Link::PollTransmit(int64_t now_ns, std::span<uint8_t> out, Notice* notice) {
  STROM_CHECK(out.size() >= options_.datagram_bytes);
  if (state_ == State::kOpen && next_number_ >= kMaxPacketsPerKey) {
    Break(now_ns, Code::kClosed, "the link's keys are used up; join again", notice);
  }
  PacketType type = PacketType::kClose;
  const std::span<uint8_t> body = out.subspan(kHeaderBytes, BodyBytes(options_));
  size_t body_bytes = 0;
  if (state_ == State::kOpen) {
    body_bytes = WriteBody(now_ns, body, &type);
    if (body_bytes == 0) return 0;
  } else {
    if (state_ == State::kOver || now_ns < close_ns_) return 0;
    body_bytes = WriteClose(close_reason_, body);
    ++closes_sent_;
    close_ns_ = now_ns + kCloseIntervalNs;
  }
  const size_t datagram_bytes = kHeaderBytes + body_bytes + kTagBytes;
  const uint64_t number = next_number_++;
  WriteHeader({.type = type, .connection = peer_connection_, .number = number}, out.data());
  seal_.Seal(number, out.first(datagram_bytes));
  return datagram_bytes;
}

// What tells the peer something goes first: it is small, and the peer may be waiting for it.
size_t Link::WriteBody(int64_t now_ns, std::span<uint8_t> body, PacketType* type) {
  if (receiver_.status_due()) {
    receiver_.TakeStatus(now_ns, &status_);
    *type = PacketType::kStatus;
    return WriteStatus(status_, body);
  }
  if (sender_.TakeProbe() || probe_wanted_) {
    probe_wanted_ = false;
    ArmKeepalive(now_ns);
    *type = PacketType::kProbe;
    return WriteProbe({sender_.next_sequence(), static_cast<uint32_t>(now_ns / 1000)}, body);
  }
  *type = PacketType::kData;
  const size_t body_bytes = sender_.PollData(now_ns, body);
  if (body_bytes > 0 && heard_) ArmKeepalive(now_ns);
  return body_bytes;
}

void Link::HandleTimeout(int64_t now_ns, Notice* notice) {
  if (state_ == State::kClosing) {
    if (closes_sent_ >= kCloses && now_ns >= close_ns_) state_ = State::kOver;
    return;
  }
  if (state_ == State::kOver) return;
  const int64_t silence_ns = now_ns - heard_ns_;
  if (silence_ns >= options_.failure_timeout_ns) {
    *notice = {Notice::Type::kDown, Code::kMasterLost, Silence(options_.failure_timeout_ns)};
    state_ = State::kOver;
    return;
  }
  if (!suspected_ && silence_ns >= options_.failure_timeout_ns * kSuspectPercent / 100) {
    suspected_ = true;
    notice->type = Notice::Type::kSuspect;
  }
  if (now_ns >= keepalive_ns_) {
    probe_wanted_ = true;
    ArmKeepalive(now_ns);
  }
  sender_.HandleTimeout(now_ns);
  receiver_.HandleTimeout(now_ns);
}

int64_t Link::NextTimeout() const {
  if (state_ == State::kOver) return kNever;
  if (state_ == State::kClosing) return close_ns_;
  const int64_t patience_ns = suspected_ ? options_.failure_timeout_ns
                                         : options_.failure_timeout_ns * kSuspectPercent / 100;
  return std::min(
      {heard_ns_ + patience_ns, keepalive_ns_, sender_.NextTimeout(), receiver_.NextTimeout()});
}

void Link::Send(int64_t now_ns, Channel channel, Buffer message) {
  sender_.Queue(now_ns, channel, std::move(message));
}

void Link::Close(int64_t now_ns, const std::string& reason) {
  if (state_ != State::kOpen) return;
  state_ = State::kClosing;
  close_reason_ = reason;
  close_ns_ = now_ns;
}

int64_t Link::round_trip_ns() const {
  return sender_.round_trip().has_sample() ? sender_.round_trip().smoothed_ns() : 0;
}

void Link::Break(int64_t now_ns, Code code, const std::string& reason, Notice* notice) {
  *notice = {Notice::Type::kDown, code, reason};
  Close(now_ns, reason);
}

// 500 ms give or take 20 %, so that the probes of many links do not fall together.
void Link::ArmKeepalive(int64_t now_ns) {
  jitter_ ^= jitter_ << 13;
  jitter_ ^= jitter_ >> 17;
  jitter_ ^= jitter_ << 5;
  const int64_t interval_ns = heard_ ? kKeepaliveNs : kFirstKeepaliveNs;
  const int64_t fifth_ns = interval_ns / 5;
  keepalive_ns_ = now_ns + interval_ns - fifth_ns + jitter_ % (2 * fifth_ns);
}

}  // namespace strom
