// An authenticated session with a peer that holds the keys and keeps no rule: the input says what
// it sends, when, and from where. The link must neither crash nor hang, must stay within its bounds
// of memory, and must not answer without end.
//
// The input is read as a list of steps, each a byte that says what happens and the numbers that it
// needs. Sequences, message numbers and the like are taken as distances from where the session is,
// so that most of them are near the truth.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/base/little_endian.h"
#include "core/base/types.h"
#include "core/transport/counters.h"
#include "core/transport/grants.h"
#include "core/transport/link.h"
#include "core/transport/packet.h"
#include "core/transport/packet_protection.h"
#include "fuzz/fuzz_input.h"

namespace strom {
namespace {

// Most steps of a session, and datagrams that one step may lead to.
constexpr int kMostSteps = 2000;
constexpr int kMostAnswers = 3 * static_cast<int>(kWindowPackets);

class Input : public FuzzInput {
 public:
  using FuzzInput::FuzzInput;
  // Small numbers mostly, and now and then any.
  uint32_t Near(uint32_t base) {
    const uint8_t distance = Take<uint8_t>();
    return distance == 255 ? Take<uint32_t>() : base + distance - 32;
  }
};

class Counting final : public RandomSource {
 public:
  void Fill(std::span<uint8_t> out) override {
    for (uint8_t& byte : out) byte = ++next_;
  }

 private:
  uint8_t next_ = 0;
};

class Session {
 public:
  explicit Session(Input* input)
      : input_(*input),
        first_(input->Take<uint32_t>()),
        link_(now_ns_, {HomeOf(0), 1, keys_}, OptionsFrom(first_), &random_, &grants_, &counters_),
        peer_({.send = keys_.receive, .receive = keys_.send}, {.packets_per_phase = 5}),
        out_(kMaxDatagramBytes),
        answer_(kMaxDatagramBytes) {}

  void Run() {
    for (int step = 0; step < kMostSteps && !input_.empty(); ++step) {
      if (link_.state() == Link::State::kOver) return;
      Step();
      Settle();
    }
  }

 private:
  static Address HomeOf(uint8_t place) { return {.port = static_cast<uint16_t>(1000 + place)}; }

  static LinkOptions OptionsFrom(uint32_t first) {
    return {.most_datagram_bytes = kMaxDatagramBytes,
            .first_sequence = first,
            .keys = {.packets_per_phase = 5}};
  }

  void Step() {
    const uint8_t what = input_.Take<uint8_t>();
    now_ns_ += int64_t{1000} << (what >> 4);  // 1 us to 33 ms
    switch (what & 15) {
      case 0:
      case 1:
      case 2:
        return GiveData(false);
      case 3:
        return GiveData(true);
      case 4:
      case 5:
        return GiveStatus();
      case 6:
        return Give(PacketType::kProbe, WriteProbe({input_.Near(first_ + heard_), 7}, Body()));
      case 7:
        return Give(PacketType::kChallenge,
                    WriteChallenge({input_.Take<uint64_t>(), 8u + input_.Take<uint8_t>()}, Body()));
      case 8:
        return Give(PacketType::kEcho, WriteEcho({token_}, Body()));
      case 9:
        return GiveAnything();
      case 10:
        link_.Send(now_ns_, static_cast<Channel>(input_.Take<uint8_t>() % kChannels),
                   MakeBuffer(std::vector<uint8_t>(1 + input_.Take<uint16_t>() * 8, 1)));
        return;
      case 11:
        return link_.Void(now_ns_, static_cast<Channel>(input_.Take<uint8_t>() % kChannels));
      case 12:
        return link_.HoldBack(input_.Take<uint8_t>() % 2 == 0);
      case 13:
        place_ = input_.Take<uint8_t>() % 3;
        return;
      case 14:
        now_ns_ += int64_t{10'000'000} * input_.Take<uint8_t>();
        return;
      default:
        return Replay();
    }
  }

  std::span<uint8_t> Body() { return std::span(out_).subspan(kHeaderBytes); }

  void GiveData(bool is_void) {
    DataPacket packet{
        .sequence = input_.Near(first_ + heard_),
        .message = input_.Near(heard_),
        .length = 1 + input_.Take<uint32_t>() % static_cast<uint32_t>(kMaxMessageBytes),
        .timestamp_us = input_.Take<uint8_t>(),
        .channel = static_cast<Channel>(input_.Take<uint8_t>() % kChannels),
        .is_void = is_void};
    const std::vector<uint8_t> payload(1 + input_.Take<uint8_t>() * 4);
    if (!is_void) {
      packet.offset = input_.Take<uint8_t>() < 128 ? 0 : input_.Take<uint32_t>() % packet.length;
      const size_t room = packet.length - packet.offset;
      packet.payload = Bytes(payload).first(std::min(payload.size(), room));
    }
    ++heard_;
    Give(PacketType::kData, WriteData(packet, Body()));
  }

  void GiveStatus() {
    const uint32_t sent = link_.sender().next_sequence();
    StatusPacket status{.cumulative = input_.Near(sent)};
    status.complete_up_to = status.cumulative + input_.Near(32);
    status.grant_edge = input_.Near(sent + 100);
    status.echo_timestamp_us = static_cast<uint32_t>(now_ns_ / 1000) - input_.Take<uint8_t>();
    status.echo_delay_us = input_.Take<uint8_t>();
    status.gap_count = input_.Take<uint8_t>() % 8;
    uint32_t end = 0;
    for (size_t i = 0; i < status.gap_count; ++i) {
      status.gaps[i] = {end + input_.Take<uint8_t>() % 8, uint16_t{1}};
      end = status.gaps[i].offset + 1;
    }
    Give(PacketType::kStatus, WriteStatus(status, Body()));
  }

  void GiveAnything() {
    const PacketType type = static_cast<PacketType>(4 + input_.Take<uint8_t>() % 6);
    const size_t bytes = input_.Take<uint8_t>();
    for (size_t i = 0; i < bytes; ++i) Body()[i] = input_.Take<uint8_t>();
    Give(type, bytes);
  }

  void Give(PacketType type, size_t body_bytes) {
    const std::span<uint8_t> datagram =
        std::span(out_).first(kHeaderBytes + body_bytes + kTagBytes);
    peer_.Seal(type, 1, datagram);
    last_.assign(datagram.begin(), datagram.end());
    Take(last_);
  }

  void Replay() {
    if (last_.empty()) return;
    last_[input_.Take<uint8_t>() % last_.size()] ^= input_.Take<uint8_t>();
    Take(last_);
  }

  void Take(const std::vector<uint8_t>& datagram) {
    Link::Notice notice;
    if (const auto header = ParseHeader(datagram)) {
      (void)link_.HandleDatagram(now_ns_, HomeOf(place_), *header, datagram, &notice);
    }
  }

  // What the owner of a link does after every call: timers, answers, messages.
  void Settle() {
    Link::Notice notice;
    if (link_.NextTimeout() <= now_ns_) link_.HandleTimeout(now_ns_, &notice);
    int answers = 0;
    Address to;
    while (const size_t size = link_.PollTransmit(now_ns_, answer_, &to, &notice)) {
      STROM_CHECK(++answers <= kMostAnswers);
      Read(std::span(answer_).first(size));
    }
    while (const auto message = link_.PollMessage()) {
      STROM_CHECK(!message->payload->empty() && std::ssize(*message->payload) <= kMaxMessageBytes);
    }
    STROM_CHECK(link_.reassembly_bytes() >= 0 && link_.reassembly_bytes() <= kMaxReassemblyBytes);
    STROM_CHECK(link_.queued_bytes() >= 0 && link_.sender().in_flight_packets() >= 0);
  }

  // The peer reads what it is sent, for the token of a challenge and for its keys' sake.
  void Read(Bytes datagram) {
    std::vector<uint8_t> body(datagram.size());
    const auto header = ParseHeader(datagram);
    STROM_CHECK(header.has_value());
    if (peer_.Open(now_ns_, *header, datagram, body.data()) !=
        PacketProtection::Verdict::kAuthentic)
      return;
    if (header->type == PacketType::kChallenge) token_ = LoadLittleEndian<uint64_t>(body.data());
  }

  Input& input_;
  int64_t now_ns_ = 1'000'000'000;
  Counting random_;
  Grants grants_{GrantOptions{}};
  LinkCounters counters_;
  const ConnectionKeys keys_{};
  const uint32_t first_;
  Link link_;
  PacketProtection peer_;
  std::vector<uint8_t> out_, answer_, last_;
  uint32_t heard_ = 0;  // DATA that the peer has sent
  uint64_t token_ = 0;
  uint8_t place_ = 0;  // where the peer is
};

}  // namespace
}  // namespace strom

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  strom::Input input(bytes, size);
  strom::Session(&input).Run();
  return 0;
}
