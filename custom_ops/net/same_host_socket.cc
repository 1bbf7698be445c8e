#include "net/same_host_socket.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

namespace strom {
namespace {

// The peer that joins decides on the size, and what comes out of a ring at once is held as
// messages.
constexpr size_t kMaxRingBytes = size_t{4} << 20;
// The rings' positions have the first page, so that the rings begin at pages.
constexpr size_t kPositionsBytes = 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kBacklog = 256;

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

size_t FileBytes(size_t ring_bytes) { return kPositionsBytes + 2 * ring_bytes; }

bool IsRingSize(size_t ring_bytes) {
  return std::has_single_bit(ring_bytes) && ring_bytes >= kLeastRingBytes &&
         ring_bytes <= kMaxRingBytes;
}

Descriptor MakeMemoryFile() {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  // Some machines refuse executable memory files, older kernels do not know the flag.
  const int file = memfd_create("keras-strom", flags | MFD_NOEXEC_SEAL);
  return Descriptor(file >= 0 || errno != EINVAL ? file : memfd_create("keras-strom", flags));
}

std::span<uint8_t> MapFile(const Descriptor& file, size_t bytes) {
  void* place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (place == MAP_FAILED) return {};
  return {static_cast<uint8_t*>(place), bytes};
}

// A file of ordinary memory that cannot be cut short under us (which would be a SIGBUS).
bool IsSealedMemory(const Descriptor& file, size_t bytes) {
  struct stat status;
  struct statfs system;
  const int seals = fcntl(file.get(), F_GET_SEALS);
  return seals >= 0 && (seals & kSeals) == kSeals && fstat(file.get(), &status) == 0 &&
         static_cast<size_t>(status.st_size) == bytes && fstatfs(file.get(), &system) == 0 &&
         system.f_type == TMPFS_MAGIC;
}

socklen_t AbstractName(const Token& name, sockaddr_un* address) {
  static constexpr char kDigits[] = "0123456789abcdef";
  *address = {};
  address->sun_family = AF_UNIX;
  std::string text = "keras-strom-";
  for (const uint8_t byte : name) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  std::memcpy(address->sun_path + 1, text.data(), text.size());  // the leading 0: abstract
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
}

Descriptor UnixSocket() {
  return Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

bool PeerCredentials(const Descriptor& socket, ucred* credentials) {
  socklen_t length = sizeof(*credentials);
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, credentials, &length) == 0;
}

}  // namespace

Token BootId() {
  Token id{};
  const Descriptor file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  std::array<char, 36> text;
  if (!file.valid() || read(file.get(), text.data(), text.size()) != ssize_t{text.size()}) {
    return id;
  }
  size_t digits = 0;
  for (const char c : text) {
    const int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (value < 0 || digits == 2 * id.size()) continue;
    id[digits / 2] = static_cast<uint8_t>(id[digits / 2] << 4 | value);
    ++digits;
  }
  return id;
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    Close();
    descriptor_ = std::exchange(other.descriptor_, -1);
  }
  return *this;
}

void Descriptor::Close() {
  if (valid()) close(std::exchange(descriptor_, -1));
}

// ---------------------------------------------------------------- memory

std::optional<SharedMemory> SharedMemory::Create(size_t ring_bytes) {
  STROM_CHECK(IsRingSize(ring_bytes));
  const size_t bytes = FileBytes(ring_bytes);
  Descriptor file = MakeMemoryFile();
  // Room is taken now: where there is none later, a write to the memory would be a SIGBUS.
  if (!file.valid() || fallocate(file.get(), 0, 0, static_cast<off_t>(bytes)) != 0 ||
      fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) {
    return std::nullopt;
  }
  return Map(std::move(file), ring_bytes);
}

std::optional<SharedMemory> SharedMemory::Map(Descriptor file, size_t ring_bytes) {
  if (!IsRingSize(ring_bytes) || !IsSealedMemory(file, FileBytes(ring_bytes))) return std::nullopt;
  const std::span<uint8_t> bytes = MapFile(file, FileBytes(ring_bytes));
  if (bytes.empty()) return std::nullopt;
  return SharedMemory(std::move(file), bytes, ring_bytes);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : file_(std::move(other.file_)),
      bytes_(std::exchange(other.bytes_, {})),
      ring_bytes_(other.ring_bytes_) {}

SharedMemory::~SharedMemory() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

Ring SharedMemory::RingAt(size_t index) const {
  auto* positions = reinterpret_cast<RingPositions*>(bytes_.data()) + index;
  return {positions, bytes_.subspan(kPositionsBytes + index * ring_bytes_, ring_bytes_)};
}

// ---------------------------------------------------------------- sockets

Descriptor ListenOnHost(const Token& name) {
  Descriptor listener = UnixSocket();
  sockaddr_un address;
  const socklen_t length = AbstractName(name, &address);
  if (!listener.valid() ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    return Descriptor();
  }
  return listener;
}

Descriptor ConnectOnHost(const Token& name) {
  Descriptor socket = UnixSocket();
  sockaddr_un address;
  const socklen_t length = AbstractName(name, &address);
  if (!socket.valid() ||
      connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return Descriptor();
  }
  return socket;
}

Descriptor AcceptOnHost(const Descriptor& listener) {
  return Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

bool IsOurUser(const Descriptor& socket) {
  ucred peer;
  return PeerCredentials(socket, &peer) && peer.uid == geteuid();
}

Descriptor WatchPeerProcess(const Descriptor& socket) {
  ucred peer;
  if (!PeerCredentials(socket, &peer) || peer.pid <= 0) return Descriptor();
  return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
}

bool SendMemory(const Descriptor& socket, const SharedMemoryOffer& offer, const Descriptor& file) {
  SharedMemoryOffer bytes = offer;
  iovec vector = {&bytes, sizeof(bytes)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message = {};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int descriptor = file.get();
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(descriptor));
  return sendmsg(socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) == ssize_t{sizeof(bytes)};
}

std::optional<std::pair<SharedMemoryOffer, Descriptor>> ReceiveMemory(const Descriptor& socket) {
  SharedMemoryOffer offer;
  iovec vector = {&offer, sizeof(offer)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message = {};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_LEN(sizeof(int));  // room for one; the kernel closes more
  const ssize_t got = recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return std::nullopt;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int))) {
    return std::nullopt;
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof(descriptor));
  Descriptor file(descriptor);
  if (got != ssize_t{sizeof(offer)} || offer.version != SharedMemoryOffer().version) {
    return std::nullopt;
  }
  return std::pair(offer, std::move(file));
}

void RingBell(const Descriptor& socket) {
  const char bell = 0;
  // Where it does not fit, so many wait already that the other side wakes anyway.
  [[maybe_unused]] const ssize_t sent =
      send(socket.get(), &bell, sizeof(bell), MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool AnswerBell(const Descriptor& socket) {
  std::array<char, 256> rings;
  const ssize_t got = recv(socket.get(), rings.data(), rings.size(), MSG_DONTWAIT);
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

}  // namespace strom
