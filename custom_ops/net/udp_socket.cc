#include "net/udp_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace strom {
namespace {

constexpr int kBufferBytes = 4 << 20;  // PROTOCOL: ask for 4 MiB of receive buffer

bool IsMappedIpv4(const Address& address) {
  static constexpr std::array<uint8_t, 12> kPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(address.ip.data(), kPrefix.data(), kPrefix.size()) == 0;
}

Address FromIpv4(const in_addr& ip, uint16_t port) {
  Address address;
  address.ip[10] = address.ip[11] = 0xff;
  std::memcpy(&address.ip[12], &ip, 4);
  address.port = port;
  return address;
}

Address FromStorage(const sockaddr_storage& storage) {
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    return FromIpv4(v4.sin_addr, ntohs(v4.sin_port));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
  Address address;
  std::memcpy(address.ip.data(), &v6.sin6_addr, 16);
  address.port = ntohs(v6.sin6_port);
  return address;
}

socklen_t ToStorage(const Address& address, int family, sockaddr_storage* storage) {
  std::memset(storage, 0, sizeof(*storage));
  if (family == AF_INET) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(storage);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(address.port);
    std::memcpy(&v4->sin_addr, &address.ip[12], 4);
    return sizeof(*v4);
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(storage);
  v6->sin6_family = AF_INET6;
  v6->sin6_port = htons(address.port);
  std::memcpy(&v6->sin6_addr, address.ip.data(), 16);
  return sizeof(*v6);
}

Status BindError(const std::string& literal, uint16_t port, int error) {
  const std::string where =
      (literal.empty() ? "any interface" : literal) + ", port " + std::to_string(port);
  if (error == EADDRINUSE) {
    return {Code::kAddress, "UDP " + where +
                                " is in use by another process; choose another port, or 0 for any "
                                "free one"};
  }
  if (error == EADDRNOTAVAIL) {
    return {Code::kAddress, "UDP " + where + ": no interface of this machine has that address"};
  }
  if (error == EACCES) {
    return {Code::kAddress, "UDP " + where + ": no permission; choose a port over 1023"};
  }
  return {Code::kAddress, "UDP " + where + ": " + std::strerror(error)};
}

}  // namespace

struct UdpSocket::Batches {
  std::array<mmsghdr, kBatch> in_headers, out_headers;
  std::array<iovec, kBatch> in_vectors, out_vectors;
  std::array<sockaddr_storage, kBatch> in_addresses, out_addresses;
  std::array<std::array<uint8_t, kMaxDatagramBytes>, kBatch> in_bytes, out_bytes;
};

Status ParseAddress(const std::string& literal, uint16_t port, Address* address) {
  in_addr v4;
  if (inet_pton(AF_INET, literal.c_str(), &v4) == 1) {
    *address = FromIpv4(v4, port);
    return {};
  }
  in6_addr v6;
  if (inet_pton(AF_INET6, literal.c_str(), &v6) == 1) {
    *address = Address{};
    std::memcpy(address->ip.data(), &v6, 16);
    address->port = port;
    return {};
  }
  return {Code::kAddress, "'" + literal + "' is no IPv4 or IPv6 address"};
}

std::string ToString(const Address& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (IsMappedIpv4(address)) {
    inet_ntop(AF_INET, &address.ip[12], text, sizeof(text));
    return std::string(text) + ":" + std::to_string(address.port);
  }
  inet_ntop(AF_INET6, address.ip.data(), text, sizeof(text));
  return "[" + std::string(text) + "]:" + std::to_string(address.port);
}

Status UdpSocket::Open(const std::string& literal, uint16_t port, std::unique_ptr<UdpSocket>* out) {
  Address address;
  int family = AF_INET6;
  if (!literal.empty()) {
    Status parsed = ParseAddress(literal, port, &address);
    if (!parsed.ok()) return parsed;
    if (IsMappedIpv4(address)) family = AF_INET;
  }
  address.port = port;
  int descriptor = socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0 && literal.empty()) {  // a machine without IPv6
    family = AF_INET;
    descriptor = socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  }
  if (descriptor < 0) {
    return {Code::kAddress, std::string("no UDP socket: ") + std::strerror(errno)};
  }
  std::unique_ptr<UdpSocket> opened(new UdpSocket(descriptor, family));
  if (family == AF_INET6) {
    const int only_v6 = literal.empty() ? 0 : 1;
    setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof(only_v6));
  }
  sockaddr_storage storage;
  const socklen_t length = ToStorage(address, family, &storage);
  if (bind(descriptor, reinterpret_cast<sockaddr*>(&storage), length) != 0) {
    return BindError(literal, port, errno);
  }
  opened->ReadBack();
  *out = std::move(opened);
  return {};
}

UdpSocket::UdpSocket(int descriptor, int family)
    : descriptor_(descriptor), family_(family), batches_(new Batches) {
  // The kernel caps both at net.core.{r,w}mem_max; what it granted is read back.
  setsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &kBufferBytes, sizeof(kBufferBytes));
  setsockopt(descriptor, SOL_SOCKET, SO_SNDBUF, &kBufferBytes, sizeof(kBufferBytes));
}

UdpSocket::~UdpSocket() { close(descriptor_); }

void UdpSocket::ReadBack() {
  sockaddr_storage storage;
  socklen_t length = sizeof(storage);
  STROM_CHECK(getsockname(descriptor_, reinterpret_cast<sockaddr*>(&storage), &length) == 0);
  port_ = FromStorage(storage).port;
  int granted = 0;
  length = sizeof(granted);
  getsockopt(descriptor_, SOL_SOCKET, SO_RCVBUF, &granted, &length);
  receive_buffer_bytes_ = granted / 2;  // the kernel reports twice what it lends to payload
}

std::span<const UdpSocket::Received> UdpSocket::Receive() {
  Batches& b = *batches_;
  for (size_t i = 0; i < kBatch; ++i) {
    b.in_vectors[i] = {b.in_bytes[i].data(), kMaxDatagramBytes};
    b.in_headers[i] = {};
    b.in_headers[i].msg_hdr.msg_name = &b.in_addresses[i];
    b.in_headers[i].msg_hdr.msg_namelen = sizeof(sockaddr_storage);
    b.in_headers[i].msg_hdr.msg_iov = &b.in_vectors[i];
    b.in_headers[i].msg_hdr.msg_iovlen = 1;
  }
  const int count = recvmmsg(descriptor_, b.in_headers.data(), kBatch, MSG_DONTWAIT, nullptr);
  if (count <= 0) return {};
  for (int i = 0; i < count; ++i) {
    received_[i] = {FromStorage(b.in_addresses[i]),
                    Bytes(b.in_bytes[i].data(), b.in_headers[i].msg_len)};
  }
  return {received_.data(), static_cast<size_t>(count)};
}

std::span<uint8_t> UdpSocket::Next() {
  STROM_CHECK(!full());
  return batches_->out_bytes[queued_];
}

void UdpSocket::Push(const Address& to, size_t bytes) {
  STROM_CHECK(!full() && bytes <= kMaxDatagramBytes);
  if (family_ == AF_INET && !IsMappedIpv4(to)) {  // an IPv4 socket cannot reach it
    ++send_errors_;
    return;
  }
  Batches& b = *batches_;
  b.out_vectors[queued_] = {b.out_bytes[queued_].data(), bytes};
  msghdr header = {};
  header.msg_name = &b.out_addresses[queued_];
  header.msg_namelen = ToStorage(to, family_, &b.out_addresses[queued_]);
  header.msg_iov = &b.out_vectors[queued_];
  header.msg_iovlen = 1;
  b.out_headers[queued_] = {header, 0};
  ++queued_;
}

bool UdpSocket::Flush() {
  while (flushed_ < queued_) {
    const int sent = sendmmsg(descriptor_, &batches_->out_headers[flushed_],
                              static_cast<unsigned>(queued_ - flushed_), MSG_DONTWAIT);
    if (sent > 0) {
      flushed_ += static_cast<size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else if (errno != EINTR) {
      ++send_errors_;  // one datagram is lost, as on any network; the link recovers it
      ++flushed_;
    }
  }
  queued_ = flushed_ = 0;
  return true;
}

}  // namespace strom
