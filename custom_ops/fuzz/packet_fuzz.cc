// Any bytes as a datagram, as the body of every kind of packet, and as a control message: parsed
// into a valid value, or refused. What is taken is written again and must give the same bytes.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/base/types.h"
#include "core/replication/control.h"
#include "core/replication/update.h"
#include "core/transport/handshake.h"
#include "core/transport/packet.h"

namespace strom {
namespace {

// `write(out)` gives the size of what it has written.
template <typename Write>
void CheckSame(Bytes body, Write&& write) {
  std::vector<uint8_t> out(body.size());
  STROM_CHECK(write(std::span<uint8_t>(out)) == body.size());
  STROM_CHECK(std::equal(body.begin(), body.end(), out.begin()));
}

void CheckBodies(Bytes body) {
  if (const auto data = ParseData(body)) {
    STROM_CHECK(data->is_void || data->offset + data->payload.size() <= data->length);
    CheckSame(body, [&](std::span<uint8_t> out) { return WriteData(*data, out); });
  }
  StatusPacket status;
  if (ParseStatus(body, &status)) {
    CheckSame(body, [&](std::span<uint8_t> out) { return WriteStatus(status, out); });
  }
  if (const auto probe = ParseProbe(body)) {
    CheckSame(body, [&](std::span<uint8_t> out) { return WriteProbe(*probe, out); });
  }
  if (const auto challenge = ParseChallenge(body)) {
    STROM_CHECK(challenge->body_bytes == body.size());
  }
  if (const auto echo = ParseEcho(body)) {
    CheckSame(body, [&](std::span<uint8_t> out) { return WriteEcho(*echo, out); });
  }
  if (const auto reason = ParseClose(body)) {
    CheckSame(body, [&](std::span<uint8_t> out) { return WriteClose(*reason, out); });
  }
}

void CheckHeaders(Bytes datagram) {
  if (const auto header = ParseHeader(datagram)) {
    CheckSame(datagram.first(kHeaderBytes), [&](std::span<uint8_t> out) {
      WriteHeader(*header, out.data());
      return out.size();
    });
  }
  if (const auto hello = ParseHello(datagram)) STROM_CHECK(hello->peer_connection != 0);
}

void CheckControl(Bytes bytes) {
  Hello hello;
  (void)ParseHello(bytes, &hello).ok();
  Welcome welcome;
  (void)ParseWelcome(bytes, &welcome).ok();
  ControlMessage message;
  (void)ParseControl(bytes, &message).ok();
  UpdateHeader update;
  (void)ParseUpdateHeader(bytes, &update).ok();
}

}  // namespace
}  // namespace strom

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  // A copy of exactly this size, so that a read beyond it is seen.
  const std::vector<uint8_t> bytes(input, input + size);
  strom::CheckHeaders(bytes);
  strom::CheckBodies(bytes);
  strom::CheckControl(bytes);
  return 0;
}
