#include "core/transport/packet.h"

#include <algorithm>

#include "core/base/little_endian.h"
#include "core/base/text.h"

namespace strom {
namespace {

constexpr uint8_t kKeyPhaseFlag = 1;
constexpr uint8_t kHeardPhaseFlag = 2;
constexpr uint8_t kVoidFlag = 1;
constexpr uint8_t kBundleFlag = 2;

template <typename T>
T Load(Bytes bytes, size_t at) {
  return LoadLittleEndian<T>(bytes.data() + at);
}

}  // namespace

void WriteHeader(const PacketHeader& header, uint8_t* out) {
  out[0] = static_cast<uint8_t>(kWireVersion << 4 | static_cast<uint8_t>(header.type));
  out[1] = static_cast<uint8_t>((header.key_phase ? kKeyPhaseFlag : 0) |
                                (header.heard_phase ? kHeardPhaseFlag : 0));
  StoreLittleEndian<uint16_t>(out + 2, 0);
  StoreLittleEndian<uint32_t>(out + 4, header.connection);
  StoreLittleEndian<uint64_t>(out + 8, header.number);
}

std::optional<PacketHeader> ParseHeader(Bytes datagram) {
  if (datagram.size() < kHeaderBytes + kTagBytes || datagram.size() > kMaxDatagramBytes) {
    return std::nullopt;
  }
  const uint8_t type = datagram[0] & 0x0f;
  if (datagram[0] >> 4 != kWireVersion || type < static_cast<uint8_t>(PacketType::kHello) ||
      type > static_cast<uint8_t>(PacketType::kEcho) ||
      (datagram[1] & ~(kKeyPhaseFlag | kHeardPhaseFlag)) != 0 || Load<uint16_t>(datagram, 2) != 0) {
    return std::nullopt;
  }
  return PacketHeader{.type = static_cast<PacketType>(type),
                      .key_phase = (datagram[1] & kKeyPhaseFlag) != 0,
                      .heard_phase = (datagram[1] & kHeardPhaseFlag) != 0,
                      .connection = Load<uint32_t>(datagram, 4),
                      .number = Load<uint64_t>(datagram, 8)};
}

size_t WriteData(const DataPacket& packet, std::span<uint8_t> out) {
  const size_t size = DataPacket::kFieldBytes + packet.payload.size();
  STROM_CHECK(out.size() >= size);
  StoreLittleEndian<uint32_t>(&out[0], packet.sequence);
  StoreLittleEndian<uint32_t>(&out[4], packet.message);
  StoreLittleEndian<uint32_t>(&out[8], packet.length);
  StoreLittleEndian<uint32_t>(&out[12], packet.offset);
  StoreLittleEndian<uint32_t>(&out[16], packet.timestamp_us);
  out[20] = static_cast<uint8_t>(packet.channel);
  out[21] =
      static_cast<uint8_t>((packet.is_void ? kVoidFlag : 0) | (packet.is_bundle ? kBundleFlag : 0));
  StoreLittleEndian<uint16_t>(&out[22], 0);
  std::copy(packet.payload.begin(), packet.payload.end(), out.begin() + DataPacket::kFieldBytes);
  return size;
}

std::optional<DataPacket> ParseData(Bytes body) {
  if (body.size() < DataPacket::kFieldBytes) return std::nullopt;
  DataPacket packet{.sequence = Load<uint32_t>(body, 0),
                    .message = Load<uint32_t>(body, 4),
                    .length = Load<uint32_t>(body, 8),
                    .offset = Load<uint32_t>(body, 12),
                    .timestamp_us = Load<uint32_t>(body, 16),
                    .channel = static_cast<Channel>(body[20]),
                    .is_void = body[21] == kVoidFlag,
                    .is_bundle = body[21] == kBundleFlag,
                    .payload = body.subspan(DataPacket::kFieldBytes)};
  if (body[20] >= kChannels || (body[21] != 0 && !packet.is_void && !packet.is_bundle) ||
      Load<uint16_t>(body, 22) != 0 || packet.length == 0 || packet.length > kMaxMessageBytes) {
    return std::nullopt;
  }
  const bool fits = packet.is_void ? packet.payload.empty() && packet.offset == 0
                                   : !packet.payload.empty() && packet.offset < packet.length &&
                                         packet.payload.size() <= packet.length - packet.offset;
  if (!fits) return std::nullopt;
  return packet;
}

size_t WriteStatus(const StatusPacket& packet, std::span<uint8_t> out) {
  const size_t size = StatusPacket::kFieldBytes + packet.gap_count * StatusPacket::kGapBytes;
  STROM_CHECK(out.size() >= size && packet.gap_count <= StatusPacket::kMaxGaps);
  StoreLittleEndian<uint32_t>(&out[0], packet.cumulative);
  StoreLittleEndian<uint32_t>(&out[4], packet.complete_up_to);
  StoreLittleEndian<uint32_t>(&out[8], packet.grant_edge);
  StoreLittleEndian<uint32_t>(&out[12], packet.echo_timestamp_us);
  StoreLittleEndian<uint16_t>(&out[16], packet.echo_delay_us);
  StoreLittleEndian<uint16_t>(&out[18], packet.gap_count);
  StoreLittleEndian<uint32_t>(&out[20], packet.untold);
  uint8_t* at = out.data() + StatusPacket::kFieldBytes;
  for (size_t i = 0; i < packet.gap_count; ++i, at += StatusPacket::kGapBytes) {
    StoreLittleEndian<uint32_t>(at, packet.gaps[i].offset);
    StoreLittleEndian<uint16_t>(at + 4, packet.gaps[i].length);
  }
  return size;
}

bool ParseStatus(Bytes body, StatusPacket* packet) {
  if (body.size() < StatusPacket::kFieldBytes) return false;
  packet->cumulative = Load<uint32_t>(body, 0);
  packet->complete_up_to = Load<uint32_t>(body, 4);
  packet->grant_edge = Load<uint32_t>(body, 8);
  packet->echo_timestamp_us = Load<uint32_t>(body, 12);
  packet->echo_delay_us = Load<uint16_t>(body, 16);
  packet->gap_count = Load<uint16_t>(body, 18);
  packet->untold = Load<uint32_t>(body, 20);
  if (packet->gap_count > StatusPacket::kMaxGaps ||
      body.size() != StatusPacket::kFieldBytes + packet->gap_count * StatusPacket::kGapBytes) {
    return false;
  }
  const uint32_t complete = packet->complete_up_to - packet->cumulative;
  if (packet->untold > complete) return false;
  uint64_t end = packet->untold;
  for (size_t i = 0; i < packet->gap_count; ++i) {
    const size_t at = StatusPacket::kFieldBytes + i * StatusPacket::kGapBytes;
    const Gap gap{Load<uint32_t>(body, at), Load<uint16_t>(body, at + 4)};
    if (gap.length == 0 || gap.offset < end) return false;
    end = uint64_t{gap.offset} + gap.length;
    if (end > complete) return false;
    packet->gaps[i] = gap;
  }
  return true;
}

size_t WriteProbe(const ProbePacket& packet, std::span<uint8_t> out) {
  STROM_CHECK(out.size() >= ProbePacket::kFieldBytes);
  StoreLittleEndian<uint32_t>(&out[0], packet.next_sequence);
  StoreLittleEndian<uint32_t>(&out[4], packet.timestamp_us);
  return ProbePacket::kFieldBytes;
}

std::optional<ProbePacket> ParseProbe(Bytes body) {
  if (body.size() != ProbePacket::kFieldBytes) return std::nullopt;
  return ProbePacket{Load<uint32_t>(body, 0), Load<uint32_t>(body, 4)};
}

size_t WriteChallenge(const ChallengePacket& packet, std::span<uint8_t> out) {
  STROM_CHECK(packet.body_bytes >= ChallengePacket::kFieldBytes && out.size() >= packet.body_bytes);
  StoreLittleEndian<uint64_t>(&out[0], packet.token);
  std::fill(out.begin() + ChallengePacket::kFieldBytes,
            out.begin() + static_cast<std::ptrdiff_t>(packet.body_bytes), uint8_t{0});
  return packet.body_bytes;
}

std::optional<ChallengePacket> ParseChallenge(Bytes body) {
  if (body.size() < ChallengePacket::kFieldBytes) return std::nullopt;
  return ChallengePacket{Load<uint64_t>(body, 0), body.size()};
}

size_t WriteEcho(const EchoPacket& packet, std::span<uint8_t> out) {
  STROM_CHECK(out.size() >= EchoPacket::kFieldBytes);
  StoreLittleEndian<uint64_t>(&out[0], packet.token);
  return EchoPacket::kFieldBytes;
}

std::optional<EchoPacket> ParseEcho(Bytes body) {
  if (body.size() != EchoPacket::kFieldBytes) return std::nullopt;
  return EchoPacket{Load<uint64_t>(body, 0)};
}

std::string_view CutReason(std::string_view reason) { return CutText(reason, kMaxReasonBytes); }

size_t WriteClose(std::string_view reason, std::span<uint8_t> out) {
  reason = CutReason(reason);
  STROM_CHECK(out.size() >= reason.size());
  std::copy(reason.begin(), reason.end(), out.begin());
  return reason.size();
}

std::optional<std::string_view> ParseClose(Bytes body) {
  if (body.size() > kMaxReasonBytes) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(body.data()), body.size());
}

void PacketCipher::Seal(uint64_t number, std::span<uint8_t> datagram) {
  const size_t body_bytes = datagram.size() - kHeaderBytes - kTagBytes;
  aead_.Seal(Nonce(number), datagram.first(kHeaderBytes),
             datagram.subspan(kHeaderBytes, body_bytes), datagram.last<kTagBytes>());
}

bool PacketCipher::Open(uint64_t number, Bytes datagram, uint8_t* out) {
  return aead_.Open(Nonce(number), datagram.first(kHeaderBytes), datagram.subspan(kHeaderBytes),
                    out);
}

std::array<uint8_t, kNonceBytes> PacketCipher::Nonce(uint64_t number) const {
  std::array<uint8_t, kNonceBytes> nonce;
  std::copy(initial_.bytes().begin(), initial_.bytes().end(), nonce.begin());
  uint8_t* const low = nonce.data() + 4;
  StoreLittleEndian<uint64_t>(low, LoadLittleEndian<uint64_t>(low) ^ number);
  return nonce;
}

bool ReplayWindow::MayBeNew(uint64_t number) const {
  if (number >= end_) return true;
  if (end_ - number > kNumbers) return false;
  return (seen_[number % kNumbers / 64] >> (number % 64) & 1) == 0;
}

void ReplayWindow::Add(uint64_t number) {
  if (number >= end_) {
    if (number - end_ >= kNumbers) {
      seen_.fill(0);
    } else {
      for (uint64_t skipped = end_; skipped < number; ++skipped) {
        seen_[skipped % kNumbers / 64] &= ~(uint64_t{1} << (skipped % 64));
      }
    }
    end_ = number + 1;
  }
  seen_[number % kNumbers / 64] |= uint64_t{1} << (number % 64);
}

}  // namespace strom
