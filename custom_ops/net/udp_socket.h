// A non-blocking UDP socket that moves datagrams in batches. IPv4 and IPv6; every address is an
// IPv6 one (IPv4 mapped), so the core knows a single form.
#ifndef KERAS_STROM_NET_UDP_SOCKET_H_
#define KERAS_STROM_NET_UDP_SOCKET_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/link_layer.h"
#include "core/types.h"

namespace strom {

// "10.0.2.4", "::1" -> an Address; kAddress where the text is no literal address.
Status ParseAddress(const std::string& literal, uint16_t port, Address* address);
// "10.0.2.4:40123", "[::1]:40123".
std::string ToString(const Address& address);

class UdpSocket {
 public:
  struct Received {
    Address from;
    Bytes datagram;
  };

  // `literal` "" = every interface. kAddress says whether the port is in use, or the address not
  // ours.
  static Status Open(const std::string& literal, uint16_t port, std::unique_ptr<UdpSocket>* out);
  ~UdpSocket();
  UdpSocket(const UdpSocket&) = delete;
  UdpSocket& operator=(const UdpSocket&) = delete;

  int descriptor() const { return descriptor_; }
  uint16_t port() const { return port_; }
  // What the kernel granted of the receive buffer that was asked for.
  int64_t receive_buffer_bytes() const { return receive_buffer_bytes_; }

  // Reads what has arrived, at most one batch; empty when nothing waits. Valid until the next call.
  std::span<const Received> Receive();

  // Room for the next outgoing datagram; queue it with Push. Flush when full.
  std::span<uint8_t> Next();
  void Push(const Address& to, size_t bytes);
  bool full() const { return queued_ == kBatch; }
  // Sends what is queued. False: the kernel takes no more now, the rest stays queued.
  bool Flush();
  int64_t send_errors() const { return send_errors_; }

 private:
  UdpSocket(int descriptor, int family);
  void ReadBack();

  static constexpr size_t kBatch = 32;
  static constexpr size_t kMaxDatagramBytes = 2048;
  struct Batches;

  int descriptor_;
  int family_;
  uint16_t port_ = 0;
  int64_t receive_buffer_bytes_ = 0;
  size_t queued_ = 0;
  size_t flushed_ = 0;
  int64_t send_errors_ = 0;
  std::unique_ptr<Batches> batches_;
  std::array<Received, kBatch> received_;
};

}  // namespace strom

#endif  // KERAS_STROM_NET_UDP_SOCKET_H_
