#include "core/transport/link.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "core/transport/counters.h"

namespace strom {
namespace {

constexpr int64_t kKeepaliveNs = 500'000'000;
// Nor less often within the failure timeout, however short that is.
constexpr int64_t kKeepalivesPerTimeout = 10;
// Until the responder has been heard: its link stands only once it has our first packet.
constexpr int64_t kFirstKeepaliveNs = 25'000'000;
constexpr int64_t kSuspectPercent = 30;
constexpr int kCloses = 3;
constexpr int64_t kCloseIntervalNs = 30'000'000;

double Seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

std::string Silence(int64_t timeout_ns) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), "no authentic packet for %.1f s", Seconds(timeout_ns));
  return text.data();
}

Link::Notice Unreachable(const LinkSender::Stuck& stuck) {
  std::array<char, 160> text;
  std::snprintf(text.data(), text.size(),
                "a datagram of %zu bytes was lost each of %lld times in %.1f s, and shorter ones "
                "arrived: is the path's MTU too small, or a firewall in the way?",
                kHeaderBytes + stuck.body_bytes + kTagBytes, static_cast<long long>(stuck.losses),
                Seconds(stuck.ns));
  return {Link::Notice::Type::kDown, Code::kUnreachable, text.data()};
}

}  // namespace

Link::Link(int64_t now_ns, const Peer& peer, const LinkOptions& options, RandomSource* random,
           Grants* grants, LinkCounters* counters)
    : options_(options),
      counters_(counters),
      peer_connection_(peer.connection),
      keys_(peer.keys, options.keys),
      path_(peer.address, options.least_datagram_bytes, options.most_datagram_bytes, random),
      sender_(options.first_sequence, BodyBytes(), options.failure_timeout_ns, options.congestion,
              counters),
      receiver_(options.first_sequence, grants, counters),
      heard_(!options.asks_first),
      heard_ns_(now_ns),
      jitter_(options.jitter_seed | 1),
      probe_wanted_(options.asks_first) {
  ArmKeepalive(now_ns);
}

bool Link::HandleDatagram(int64_t now_ns, const Address& from, const PacketHeader& header,
                          Bytes datagram, Notice* notice) {
  std::array<uint8_t, kMaxDatagramBytes> body;
  if (!CountDrop(keys_.Open(now_ns, header, datagram, body.data()))) return false;
  heard_ = true;
  heard_ns_ = now_ns;
  suspected_ = false;
  path_.HandleArrival(now_ns, from, keys_.newest());
  const size_t body_bytes = datagram.size() - kHeaderBytes - kTagBytes;
  Dispatch(now_ns, from, header.type, Bytes(body.data(), body_bytes), notice);
  return true;
}

// True when there is nothing to count: the packet is authentic.
bool Link::CountDrop(PacketProtection::Verdict verdict) {
  switch (verdict) {
    case PacketProtection::Verdict::kAuthentic:
      return true;
    case PacketProtection::Verdict::kMalformed:
      ++counters_->drop_malformed;
      return false;
    case PacketProtection::Verdict::kReplayed:
      ++counters_->drop_replayed;
      return false;
    case PacketProtection::Verdict::kUnauthentic:
      ++counters_->drop_unauthentic;
      return false;
  }
  return false;
}

void Link::Dispatch(int64_t now_ns, const Address& from, PacketType type, Bytes body,
                    Notice* notice) {
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
  const std::optional<bool> valid = Take(now_ns, from, type, body, notice);
  if (!valid) ++counters_->drop_malformed;
  if (valid == false) Break(now_ns, Code::kCorrupt, "the peer broke the link's protocol", notice);
}

std::optional<bool> Link::Take(int64_t now_ns, const Address& from, PacketType type, Bytes body,
                               Notice* notice) {
  if (type == PacketType::kData) {
    const auto packet = ParseData(body);
    if (!packet) return std::nullopt;
    return receiver_.HandleData(now_ns, *packet);
  }
  if (type == PacketType::kStatus) {
    if (!ParseStatus(body, &status_)) return std::nullopt;
    if (!sender_.HandleStatus(now_ns, status_)) return false;
    receiver_.SetRoundTrip(sender_.round_trip().line_ns());
    receiver_.SetUnderWay(sender_.in_flight_packets() * static_cast<int64_t>(BodyBytes()));
    if (path_.is_raised() && sender_.LosesLongPackets(now_ns)) {
      path_.Narrow(now_ns);
      sender_.SetBodyBytes(BodyBytes());
    }
    if (const auto stuck = sender_.FindStuck(now_ns); stuck && stuck->is_over) {
      *notice = Unreachable(*stuck);
      state_ = State::kOver;
    }
    return true;
  }
  if (type == PacketType::kProbe) {
    const auto packet = ParseProbe(body);
    if (!packet) return std::nullopt;
    return receiver_.HandleProbe(now_ns, *packet);
  }
  if (type == PacketType::kChallenge) {
    const auto packet = ParseChallenge(body);
    if (!packet) return std::nullopt;
    path_.HandleChallenge(from, *packet);
    return true;
  }
  if (type == PacketType::kEcho) {
    const auto packet = ParseEcho(body);
    if (!packet) return std::nullopt;
    path_.HandleEcho(now_ns, from, *packet);
    sender_.SetBodyBytes(BodyBytes());
    return true;
  }
  return std::nullopt;
}

size_t Link::PollTransmit(int64_t now_ns, std::span<uint8_t> out, Address* to, Notice* notice) {
  STROM_CHECK(out.size() >= kMaxDatagramBytes);
  if (state_ == State::kOpen && keys_.IsSpent()) {
    *notice = {Notice::Type::kDown, Code::kCorrupt, "the peer does not follow into new keys"};
    state_ = State::kOver;
  }
  if (state_ == State::kOver) return 0;
  *to = path_.peer();
  PacketType type = PacketType::kClose;
  const std::span<uint8_t> body = out.subspan(kHeaderBytes);
  size_t body_bytes = 0;
  if (state_ == State::kOpen) {
    body_bytes = WriteBody(now_ns, body, &type, to);
    if (body_bytes == 0) return 0;
  } else {
    if (now_ns < close_ns_) return 0;
    body_bytes = WriteClose(close_reason_, body);
    ++closes_sent_;
    close_ns_ = now_ns + kCloseIntervalNs;
  }
  const std::span<uint8_t> datagram = out.first(kHeaderBytes + body_bytes + kTagBytes);
  keys_.Seal(type, peer_connection_, datagram);
  return datagram.size();
}

// What tells the peer something goes first: it is small, and the peer may be waiting for it.
size_t Link::WriteBody(int64_t now_ns, std::span<uint8_t> body, PacketType* type, Address* to) {
  if (receiver_.status_due()) {
    receiver_.TakeStatus(now_ns, &status_);
    *type = PacketType::kStatus;
    return WriteStatus(status_, body);
  }
  if (const auto outgoing = path_.Poll(now_ns, sender_.round_trip().smoothed_ns())) {
    *type = outgoing->type;
    *to = outgoing->to;
    return WriteAlongPath(*outgoing, body);
  }
  if (sender_.TakeProbe() || probe_wanted_) {
    probe_wanted_ = false;
    ArmKeepalive(now_ns);
    *type = PacketType::kProbe;
    return WriteProbe({sender_.next_sequence(), static_cast<uint32_t>(now_ns / 1000)}, body);
  }
  *type = PacketType::kData;
  const size_t body_bytes = sender_.PollData(now_ns, body.first(BodyBytes()));
  if (body_bytes > 0 && heard_) ArmKeepalive(now_ns);
  return body_bytes;
}

size_t Link::WriteAlongPath(const LinkPath::Outgoing& outgoing, std::span<uint8_t> body) {
  if (outgoing.type == PacketType::kEcho) return WriteEcho({outgoing.token}, body);
  const size_t shortest = kHeaderBytes + ChallengePacket::kFieldBytes + kTagBytes;
  const size_t bytes = std::max(outgoing.datagram_bytes, shortest);
  return WriteChallenge({outgoing.token, bytes - kHeaderBytes - kTagBytes}, body);
}

void Link::HandleTimeout(int64_t now_ns, Notice* notice) {
  if (state_ == State::kClosing) {
    if (closes_sent_ >= kCloses && now_ns >= close_ns_) state_ = State::kOver;
    return;
  }
  if (state_ == State::kOver) return;
  const int64_t silence_ns = now_ns - heard_ns_;
  if (silence_ns >= options_.failure_timeout_ns) {
    // Stuck: the peer has found the same, and left.
    const auto stuck = sender_.FindStuck(heard_ns_);
    *notice = stuck ? Unreachable(*stuck)
                    : Notice{Notice::Type::kDown, Code::kMasterLost,
                             Silence(options_.failure_timeout_ns)};
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
  return std::min({heard_ns_ + patience_ns, keepalive_ns_, path_.NextTimeout(),
                   sender_.NextTimeout(), receiver_.NextTimeout()});
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

// Give or take 20 %, so that the probes of many links do not fall together.
void Link::ArmKeepalive(int64_t now_ns) {
  jitter_ ^= jitter_ << 13;
  jitter_ ^= jitter_ >> 17;
  jitter_ ^= jitter_ << 5;
  const int64_t interval_ns =
      heard_ ? std::min(kKeepaliveNs, options_.failure_timeout_ns / kKeepalivesPerTimeout)
             : kFirstKeepaliveNs;
  const int64_t fifth_ns = interval_ns / 5;
  keepalive_ns_ = now_ns + interval_ns - fifth_ns + jitter_ % (2 * fifth_ns);
}

}  // namespace strom
