#include "net/udp_socket.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/base/mapped_ipv4.h"
#include "core/transport/packet.h"

// Newer than some C libraries that this builds with.
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace strom {
namespace {

static_assert(UdpSocket::kMaxDatagramBytes == kMaxDatagramBytes);

constexpr int kSendBufferBytes = 4 << 20;

// What one send may carry. The kernel takes 64 segments and the 65507 bytes of a UDP datagram, but
// a run stands in queues as a whole: shorter ones are no dearer, and keep lines smoother
// (docs/decisions/short_runs.md).
constexpr size_t kMaxRunDatagrams = 16;
constexpr size_t kMaxRunBytes = 65000;
// Of the usual 1472 bytes, what the kernel joins at most.
constexpr size_t kMaxJoinedDatagrams = 44;
constexpr size_t kMaxRuns = 32;
constexpr size_t kOutgoingBytes = 256 << 10;
constexpr unsigned kMaxSends = 64;  // headers of one sendmmsg

// About half a megabyte a batch, in few buffers where runs arrive joined and in many where they do
// not: the caller answers what it has read before it reads on.
constexpr size_t kBatchBytes = 512 << 10;
constexpr size_t kMaxBuffers = 64;
constexpr size_t kJoinedBytes = 65536;
constexpr size_t kControlBytes = 64;  // room for the segment size

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
  address.scope = v6.sin6_scope_id;
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
  v6->sin6_scope_id = address.scope;
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

struct UdpSocket::Run {
  Address to;
  size_t offset = 0;
  size_t bytes = 0;
  size_t datagram_bytes = 0;  // of all but the last
  bool closed = false;        // the last was shorter

  bool Takes(const Address& peer, size_t next_bytes) const {
    return !closed && to == peer && next_bytes <= datagram_bytes &&
           bytes + next_bytes <= kMaxRunBytes && bytes < kMaxRunDatagrams * datagram_bytes;
  }
};

struct UdpSocket::Outgoing {
  std::unique_ptr<uint8_t[]> bytes = std::make_unique_for_overwrite<uint8_t[]>(kOutgoingBytes);
  size_t used = 0;
  std::array<Run, kMaxRuns> runs;
  size_t run_count = 0;
  // Sent so far: whole runs, and bytes of the one after them.
  size_t runs_sent = 0;
  size_t bytes_sent = 0;
  bool one_by_one = false;  // the run at hand was refused in one piece

  std::array<mmsghdr, kMaxSends> headers;
  std::array<iovec, kMaxSends> vectors;
  std::array<sockaddr_storage, kMaxSends> addresses;
  std::array<size_t, kMaxSends> pieces;
  struct alignas(cmsghdr) Control {
    std::array<uint8_t, CMSG_SPACE(sizeof(uint16_t))> bytes;
  };
  std::array<Control, kMaxSends> controls;
};

struct UdpSocket::Incoming {
  explicit Incoming(bool joined)
      : buffer_bytes(joined ? kJoinedBytes : kMaxDatagramBytes),
        bytes(std::make_unique_for_overwrite<uint8_t[]>(kMaxBuffers * buffer_bytes)) {
    received.reserve(kMaxBuffers * kMaxJoinedDatagrams);
    for (size_t i = 0; i < kMaxBuffers; ++i) {
      vectors[i] = {bytes.get() + i * buffer_bytes, buffer_bytes};
      headers[i] = {};
      msghdr& header = headers[i].msg_hdr;
      header.msg_name = &addresses[i];
      header.msg_iov = &vectors[i];
      header.msg_iovlen = 1;
      if (joined) header.msg_control = &controls[i];
      Renew(i);
    }
  }
  // What the kernel overwrites when it fills a header.
  void Renew(size_t i) {
    msghdr& header = headers[i].msg_hdr;
    header.msg_namelen = sizeof(sockaddr_storage);
    header.msg_controllen = header.msg_control != nullptr ? kControlBytes : 0;
  }

  const size_t buffer_bytes;
  const std::unique_ptr<uint8_t[]> bytes;
  size_t buffer_count = kMaxBuffers;  // of the next batch
  std::vector<Received> received;
  std::array<mmsghdr, kMaxBuffers> headers;
  std::array<iovec, kMaxBuffers> vectors;
  std::array<sockaddr_storage, kMaxBuffers> addresses;
  struct alignas(cmsghdr) Control {
    std::array<uint8_t, kControlBytes> bytes;
  };
  std::array<Control, kMaxBuffers> controls;
};

Status ParseAddress(const std::string& literal, uint16_t port, Address* address) {
  in_addr v4;
  if (inet_pton(AF_INET, literal.c_str(), &v4) == 1) {
    *address = FromIpv4(v4, port);
    return {};
  }
  // "fe80::1%eth0": a link-local address means nothing without its interface.
  const size_t percent = literal.find('%');
  const uint32_t scope =
      percent == std::string::npos ? 0 : if_nametoindex(literal.substr(percent + 1).c_str());
  in6_addr v6;
  const bool has_scope = percent == std::string::npos || scope != 0;
  if (has_scope && inet_pton(AF_INET6, literal.substr(0, percent).c_str(), &v6) == 1) {
    *address = Address{};
    address->scope = scope;
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
  char name[IF_NAMESIZE] = {};
  const bool named = address.scope != 0 && if_indextoname(address.scope, name) != nullptr;
  return "[" + std::string(text) + (named ? "%" + std::string(name) : "") +
         "]:" + std::to_string(address.port);
}

Status UdpSocket::Open(const std::string& literal, uint16_t port, std::unique_ptr<UdpSocket>* out,
                       const UdpSocketOptions& options) {
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
    const bool is_limit = errno == EMFILE || errno == ENFILE;
    return {Code::kAddress, std::string("no UDP socket: ") + std::strerror(errno) +
                                (is_limit ? "; raise the limit of open files (ulimit -n)" : "")};
  }
  std::unique_ptr<UdpSocket> opened(new UdpSocket(descriptor, family, options));
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

UdpSocket::UdpSocket(int descriptor, int family, const UdpSocketOptions& options)
    : descriptor_(descriptor), family_(family), options_(options), outgoing_(new Outgoing) {
  SetOptions();
  incoming_ = std::make_unique<Incoming>(joins_receives_);
}

UdpSocket::~UdpSocket() { close(descriptor_); }

void UdpSocket::SetOptions() {
  // With the right to (CAP_NET_ADMIN) past net.core.rmem_max, else as far as that allows.
  const int wanted = static_cast<int>(options_.receive_buffer_bytes);
  if (setsockopt(descriptor_, SOL_SOCKET, SO_RCVBUFFORCE, &wanted, sizeof(wanted)) != 0) {
    setsockopt(descriptor_, SOL_SOCKET, SO_RCVBUF, &wanted, sizeof(wanted));
  }
  setsockopt(descriptor_, SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof(kSendBufferBytes));
  // Links probe for the size that passes, so nothing is to be fragmented on the way, and what the
  // kernel believes of the path is not to keep a probe back.
  const int probe_v4 = IP_PMTUDISC_PROBE;
  setsockopt(descriptor_, IPPROTO_IP, IP_MTU_DISCOVER, &probe_v4, sizeof(probe_v4));
  if (family_ == AF_INET6) {
    const int probe_v6 = IPV6_PMTUDISC_PROBE;
    setsockopt(descriptor_, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &probe_v6, sizeof(probe_v6));
  }
  if (!options_.offload) return;
  int segment_bytes = 0;
  socklen_t length = sizeof(segment_bytes);
  segments_sends_ = getsockopt(descriptor_, IPPROTO_UDP, UDP_SEGMENT, &segment_bytes, &length) == 0;
  const int on = 1;
  joins_receives_ = setsockopt(descriptor_, IPPROTO_UDP, UDP_GRO, &on, sizeof(on)) == 0;
}

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

// ---------------------------------------------------------------- receiving

namespace {

// The size of each datagram in a joined run, or 0 where it came alone.
size_t SegmentBytes(msghdr* header) {
  for (cmsghdr* c = CMSG_FIRSTHDR(header); c != nullptr; c = CMSG_NXTHDR(header, c)) {
    if (c->cmsg_level != IPPROTO_UDP || c->cmsg_type != UDP_GRO) continue;
    int bytes = 0;
    std::memcpy(&bytes, CMSG_DATA(c), sizeof(bytes));
    return bytes > 0 ? static_cast<size_t>(bytes) : 0;
  }
  return 0;
}

}  // namespace

std::span<const UdpSocket::Received> UdpSocket::Receive() {
  Incoming& in = *incoming_;
  const int count = recvmmsg(descriptor_, in.headers.data(), static_cast<unsigned>(in.buffer_count),
                             MSG_DONTWAIT, nullptr);
  drained_ = count < static_cast<int>(in.buffer_count);
  in.received.clear();
  ignored_ = 0;
  size_t largest = kBatchBytes / kMaxBuffers;
  for (int message = 0; message < count; ++message) {
    const size_t i = static_cast<size_t>(message);
    const size_t bytes = in.headers[i].msg_len;
    largest = std::max(largest, bytes);
    const size_t segment_bytes = SegmentBytes(&in.headers[i].msg_hdr);
    const Address from = FromStorage(in.addresses[i]);
    if (from.port == 0) {  // nobody can be answered there
      ++unanswerable_;
      ++ignored_;
      in.Renew(i);
      continue;
    }
    const uint8_t* const start = static_cast<const uint8_t*>(in.vectors[i].iov_base);
    const size_t step = segment_bytes > 0 ? segment_bytes : std::max<size_t>(bytes, 1);
    ignored_ += bytes == 0;
    for (size_t at = 0; at < bytes; at += step) {
      in.received.push_back({from, Bytes(start + at, std::min(step, bytes - at))});
    }
    in.Renew(i);
  }
  in.buffer_count = kBatchBytes / largest;
  return in.received;
}

// ---------------------------------------------------------------- sending

bool UdpSocket::full() const {
  return outgoing_->run_count == kMaxRuns || outgoing_->used + kMaxDatagramBytes > kOutgoingBytes;
}

std::span<uint8_t> UdpSocket::Next() {
  STROM_CHECK(!full());
  return {outgoing_->bytes.get() + outgoing_->used, kMaxDatagramBytes};
}

void UdpSocket::Push(const Address& to, size_t bytes) {
  STROM_CHECK(!full() && bytes > 0 && bytes <= kMaxDatagramBytes);
  if (to.port == 0 || (family_ == AF_INET && !IsMappedIpv4(to))) {  // cannot be reached from here
    ++send_errors_;
    return;
  }
  Outgoing& out = *outgoing_;
  Run* const last = out.run_count > out.runs_sent ? &out.runs[out.run_count - 1] : nullptr;
  if (last != nullptr && last->Takes(to, bytes)) {
    last->bytes += bytes;
    last->closed = bytes < last->datagram_bytes;
  } else {
    out.runs[out.run_count++] = {
        .to = to, .offset = out.used, .bytes = bytes, .datagram_bytes = bytes};
  }
  out.used += bytes;
}

bool UdpSocket::Flush() {
  Outgoing& out = *outgoing_;
  while (out.runs_sent < out.run_count) {
    const unsigned count = FillHeaders();
    const auto send = options_.send != nullptr ? options_.send : sendmmsg;
    const int sent = send(descriptor_, out.headers.data(), count, MSG_DONTWAIT);
    if (sent > 0) {
      refusal_ = 0;
      // What was refused as a run passes in single datagrams: this card or kernel cannot cut it.
      // Of the last of a run, which may be shorter than the others, that says nothing.
      if (out.one_by_one && out.pieces[0] == out.runs[out.runs_sent].datagram_bytes) {
        segments_sends_ = out.one_by_one = false;
      }
      Advance(static_cast<unsigned>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else if ((errno == EIO || errno == EINVAL || errno == EMSGSIZE) &&
               out.headers[0].msg_hdr.msg_control != nullptr) {
      out.one_by_one = true;  // the same bytes; whether they pass so tells what is to blame
    } else if (errno != EINTR) {
      // It is lost, as on any network; the link recovers it. One that is too long for the interface
      // was to find that out.
      if (errno != EMSGSIZE) {
        ++send_errors_;
        refusal_ = errno;
      }
      Advance(1);
    }
  }
  out.run_count = out.runs_sent = out.used = 0;
  return true;
}

std::string UdpSocket::Refusal() const {
  if (refusal_ == 0) return "";
  const std::string words = std::strerror(refusal_);
  return refusal_ == EPERM || refusal_ == EACCES
             ? "a firewall on this machine itself holds back what it sends (" + words + ")"
             : "this machine cannot send (" + words + ")";
}

// Headers for what comes next, as many as there is room for.
unsigned UdpSocket::FillHeaders() {
  Outgoing& out = *outgoing_;
  unsigned count = 0;
  size_t sent_bytes = out.bytes_sent;
  for (size_t r = out.runs_sent; r < out.run_count && count < kMaxSends;) {
    const Run& run = out.runs[r];
    const bool whole = segments_sends_ && !(out.one_by_one && r == out.runs_sent);
    const size_t left = run.bytes - sent_bytes;
    const size_t bytes = whole ? left : std::min(left, run.datagram_bytes);
    out.pieces[count] = bytes;
    out.vectors[count] = {out.bytes.get() + run.offset + sent_bytes, bytes};
    msghdr header = {};
    header.msg_name = &out.addresses[count];
    header.msg_namelen = ToStorage(run.to, family_, &out.addresses[count]);
    header.msg_iov = &out.vectors[count];
    header.msg_iovlen = 1;
    if (bytes > run.datagram_bytes) {
      header.msg_control = &out.controls[count];
      header.msg_controllen = sizeof(out.controls[count]);
      cmsghdr* const control = CMSG_FIRSTHDR(&header);
      control->cmsg_level = IPPROTO_UDP;
      control->cmsg_type = UDP_SEGMENT;
      control->cmsg_len = CMSG_LEN(sizeof(uint16_t));
      const uint16_t segment_bytes = static_cast<uint16_t>(run.datagram_bytes);
      std::memcpy(CMSG_DATA(control), &segment_bytes, sizeof(segment_bytes));
    }
    out.headers[count++] = {header, 0};
    sent_bytes += bytes;
    if (sent_bytes == run.bytes) {
      sent_bytes = 0;
      ++r;
    }
  }
  return count;
}

void UdpSocket::Advance(unsigned pieces) {
  Outgoing& out = *outgoing_;
  for (unsigned i = 0; i < pieces; ++i) {
    out.bytes_sent += out.pieces[i];
    if (out.bytes_sent < out.runs[out.runs_sent].bytes) continue;
    out.bytes_sent = 0;
    out.one_by_one = false;
    ++out.runs_sent;
  }
}

}  // namespace strom
