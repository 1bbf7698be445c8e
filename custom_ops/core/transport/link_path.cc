#include "core/transport/link_path.h"

#include <algorithm>
#include <array>

#include "core/base/little_endian.h"
#include "core/base/mapped_ipv4.h"

namespace strom {
namespace {

constexpr size_t kMostEchoes = 4;  // waiting; an honest peer has two challenges out
constexpr int kAddressChallenges = 5;
constexpr int64_t kLeastPatienceNs = 50'000'000;

size_t HeaderBytes(const Address& peer) { return IsMappedIpv4(peer) ? 28 : 48; }

}  // namespace

LinkPath::LinkPath(const Address& peer, size_t least_bytes, size_t most_bytes, RandomSource* random)
    : least_bytes_(least_bytes),
      most_bytes_(most_bytes),
      random_(random),
      peer_(peer),
      size_(SizeTo(peer)) {}

void LinkPath::HandleArrival(int64_t now_ns, const Address& from, bool newest) {
  if (!heard_) size_.Start(now_ns);
  heard_ = true;
  if (!newest) return;  // a straggler says nothing of where the peer is now
  if (from == peer_) {
    candidate_.reset();
  } else if (!candidate_ || candidate_->address != from) {
    candidate_ = {.address = from, .token = NewToken(), .due_ns = now_ns};
  } else if (candidate_->due_ns == kNever) {
    candidate_->challenges = 0;
    candidate_->due_ns = now_ns;
  }
}

void LinkPath::HandleChallenge(const Address& from, const ChallengePacket& challenge) {
  if (echoes_.size() >= kMostEchoes) return;  // the peer asks again
  echoes_.push_back({.type = PacketType::kEcho, .to = from, .token = challenge.token});
}

void LinkPath::HandleEcho(int64_t now_ns, const Address& from, const EchoPacket& echo) {
  if (candidate_ && from == candidate_->address && echo.token == candidate_->token) {
    peer_ = from;
    candidate_.reset();
    size_ = SizeTo(peer_);  // another path, another length
    size_.Start(now_ns);
    asked_ = {};
  } else if (from == peer_) {
    const auto asked = std::find_if(asked_.begin(), asked_.end(), [&](const AskedLength& length) {
      return length.token != 0 && length.token == echo.token;
    });
    if (asked != asked_.end()) size_.HandleAnswer(now_ns, asked->bytes);
  }
}

// What has arrived before says nothing of what passes from now on.
void LinkPath::Narrow(int64_t now_ns) {
  size_.Narrow(now_ns);
  asked_ = {};
}

std::optional<LinkPath::Outgoing> LinkPath::Poll(int64_t now_ns, int64_t round_trip_ns) {
  if (!echoes_.empty()) {
    const Outgoing echo = echoes_.front();
    echoes_.pop_front();
    return echo;
  }
  const int64_t patience_ns = std::max(3 * round_trip_ns, kLeastPatienceNs);
  if (auto challenge = ChallengeCandidate(now_ns, patience_ns)) return challenge;
  const size_t bytes = size_.NextChallenge(now_ns, patience_ns);
  if (bytes == 0) return std::nullopt;
  if (asked_.front().bytes != bytes) {
    std::shift_right(asked_.begin(), asked_.end(), 1);
    asked_.front() = {NewToken(), bytes};
  }
  return Outgoing{PacketType::kChallenge, peer_, asked_.front().token, bytes};
}

int64_t LinkPath::NextTimeout() const {
  return std::min(candidate_ ? candidate_->due_ns : kNever, size_.NextTimeout());
}

std::optional<LinkPath::Outgoing> LinkPath::ChallengeCandidate(int64_t now_ns,
                                                               int64_t patience_ns) {
  if (!candidate_ || now_ns < candidate_->due_ns) return std::nullopt;
  // The next packet from there asks again. The token stays: before a round trip is known the answer
  // may still be under way.
  if (candidate_->challenges == kAddressChallenges) {
    candidate_->due_ns = kNever;
    return std::nullopt;
  }
  ++candidate_->challenges;
  candidate_->due_ns = now_ns + patience_ns;
  return Outgoing{PacketType::kChallenge, candidate_->address, candidate_->token};
}

// Nobody who has not read a challenge may be able to answer it.
uint64_t LinkPath::NewToken() {
  std::array<uint8_t, 8> bytes;
  random_->Fill(bytes);
  return LoadLittleEndian<uint64_t>(bytes.data()) | 1;
}

DatagramSize LinkPath::SizeTo(const Address& peer) const {
  return DatagramSize(least_bytes_, most_bytes_, HeaderBytes(peer));
}

}  // namespace strom
