// A non-blocking UDP socket that moves datagrams in batches. IPv4 and IPv6; every address is an
// IPv6 one (IPv4 mapped), so the core knows a single form.
//
// Where the kernel can, datagrams of one size to one peer leave as a single send that the kernel or
// the card cuts (GSO), and such runs arrive in one piece (GRO): most of a datagram's cost is the
// way through the kernel, which a run goes only once. Callers see single datagrams either way.
#ifndef KERAS_STROM_NET_UDP_SOCKET_H_
#define KERAS_STROM_NET_UDP_SOCKET_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/base/link_layer.h"
#include "core/base/types.h"

struct mmsghdr;

namespace strom {

// "10.0.2.4", "::1" -> an Address; kAddress where the text is no literal address.
Status ParseAddress(const std::string& literal, uint16_t port, Address* address);
// "10.0.2.4:40123", "[::1]:40123".
std::string ToString(const Address& address);

struct UdpSocketOptions {
  bool offload = true;  // GSO and GRO, where the kernel has them
  // The kernel grants at most net.core.rmem_max unless the process may override it.
  int64_t receive_buffer_bytes = int64_t{4} << 20;
  // Sends in the place of sendmmsg (tests of what the kernel refuses).
  int (*send)(int descriptor, mmsghdr* messages, unsigned count, int flags) = nullptr;
};

class UdpSocket {
 public:
  // No datagram that is sent or taken is longer.
  static constexpr size_t kMaxDatagramBytes = 9000;

  struct Received {
    Address from;
    Bytes datagram;
  };

  // `literal` "" = every interface. kAddress says whether the port is in use, or the address not
  // ours.
  static Status Open(const std::string& literal, uint16_t port, std::unique_ptr<UdpSocket>* out,
                     const UdpSocketOptions& options = {});
  ~UdpSocket();
  UdpSocket(const UdpSocket&) = delete;
  UdpSocket& operator=(const UdpSocket&) = delete;

  int descriptor() const { return descriptor_; }
  uint16_t port() const { return port_; }
  // What was asked for as receive buffer, and what the kernel granted of it.
  int64_t receive_buffer_wanted_bytes() const { return options_.receive_buffer_bytes; }
  int64_t receive_buffer_bytes() const { return receive_buffer_bytes_; }
  // Whether runs of datagrams leave, and arrive, in one piece.
  bool segments_sends() const { return segments_sends_; }
  bool joins_receives() const { return joins_receives_; }

  // Reads what has arrived, at most one batch. Valid until the next call.
  std::span<const Received> Receive();
  // Whether the last Receive found the socket empty behind what it returned.
  bool drained() const { return drained_; }
  // Datagrams that the last Receive has not given out: empty ones, and those from port 0.
  int64_t ignored() const { return ignored_; }

  // Room for the next outgoing datagram, kMaxDatagramBytes at least; queue it with Push. Flush when
  // full.
  std::span<uint8_t> Next();
  void Push(const Address& to, size_t bytes);
  bool full() const;
  // Sends what is queued. False: the kernel takes no more now, the rest stays queued.
  bool Flush();
  int64_t send_errors() const { return send_errors_; }
  // Why nothing leaves this machine, in words; empty where the latest datagram has left it.
  std::string Refusal() const;
  // Datagrams from port 0, which were not given out.
  int64_t unanswerable() const { return unanswerable_; }

 private:
  // Datagrams of one size to one peer, one behind the other in the buffer; the last may be shorter.
  struct Run;
  struct Incoming;
  struct Outgoing;

  UdpSocket(int descriptor, int family, const UdpSocketOptions& options);
  void SetOptions();
  void ReadBack();
  unsigned FillHeaders();
  void Advance(unsigned pieces);

  const int descriptor_;
  const int family_;
  const UdpSocketOptions options_;
  uint16_t port_ = 0;
  int64_t receive_buffer_bytes_ = 0;
  bool segments_sends_ = false;
  bool joins_receives_ = false;
  bool drained_ = true;
  int64_t ignored_ = 0;
  int64_t send_errors_ = 0;
  int refusal_ = 0;  // what the system has answered to the latest send; 0 = that has passed
  int64_t unanswerable_ = 0;
  std::unique_ptr<Incoming> incoming_;
  std::unique_ptr<Outgoing> outgoing_;
};

}  // namespace strom

#endif  // KERAS_STROM_NET_UDP_SOCKET_H_
