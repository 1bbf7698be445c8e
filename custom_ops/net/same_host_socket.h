// What two processes of one host need from the kernel to share memory: a sealed memory file, passed
// over a Unix socket with an abstract name, and word of the other process's end. Nothing of it has
// a name in a file system, and the kernel frees all of it when the processes end, however they do.
//
// The Unix socket is also the bell that wakes the other side. (An eventfd in both processes would
// be a little cheaper, but either could make it block for the other.)
#ifndef KERAS_STROM_NET_SAME_HOST_SOCKET_H_
#define KERAS_STROM_NET_SAME_HOST_SOCKET_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "net/shared_ring.h"

namespace strom {

// 16 unpredictable bytes, or the id of this boot of the machine.
using Token = std::array<uint8_t, 16>;

// Tells hosts apart before anything is tried; zeros where the kernel does not say.
Token BootId();

// Owns one descriptor; -1 = none.
class Descriptor {
 public:
  explicit Descriptor(int descriptor = -1) : descriptor_(descriptor) {}
  ~Descriptor() { Close(); }
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  int get() const { return descriptor_; }
  bool valid() const { return descriptor_ >= 0; }
  void Close();

 private:
  int descriptor_;
};

// Memory for one link: a ring each way. It can neither shrink nor grow while anybody holds it.
class SharedMemory {
 public:
  // Makes it, with two rings of `ring_bytes` (a power of two); none where the kernel has no room.
  static std::optional<SharedMemory> Create(size_t ring_bytes);
  // Maps what a peer has made; none where that is no sealed memory file of the right size.
  static std::optional<SharedMemory> Map(Descriptor file, size_t ring_bytes);

  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;

  const Descriptor& file() const { return file_; }
  // The memory stays; nobody can be given it any more.
  void CloseFile() { file_.Close(); }
  int64_t ring_bytes() const { return static_cast<int64_t>(ring_bytes_); }
  // The ring towards its maker, and the one from it.
  Ring to_maker() const { return RingAt(0); }
  Ring from_maker() const { return RingAt(1); }

 private:
  SharedMemory(Descriptor file, std::span<uint8_t> bytes, size_t ring_bytes)
      : file_(std::move(file)), bytes_(bytes), ring_bytes_(ring_bytes) {}
  Ring RingAt(size_t index) const;

  Descriptor file_;
  std::span<uint8_t> bytes_;
  size_t ring_bytes_;
};

// What the connecting side says first, together with the memory's file.
struct SharedMemoryOffer {
  uint64_t version = 1;
  uint64_t ring_bytes = 0;
  Token nonce{};
};

// The abstract Unix socket of a process to which others of its host connect.
Descriptor ListenOnHost(const Token& name);
Descriptor ConnectOnHost(const Token& name);
Descriptor AcceptOnHost(const Descriptor& listener);
// The process at the other end belongs to our user.
bool IsOurUser(const Descriptor& socket);
// Readable once the process at the other end has ended; a forked child may keep the socket itself
// open. None where the kernel does not offer it.
Descriptor WatchPeerProcess(const Descriptor& socket);

bool SendMemory(const Descriptor& socket, const SharedMemoryOffer& offer, const Descriptor& file);
// None: nothing of this kind has come.
std::optional<std::pair<SharedMemoryOffer, Descriptor>> ReceiveMemory(const Descriptor& socket);

// Wakes the process at the other end; never blocks.
void RingBell(const Descriptor& socket);
// Takes the rings of the bell out. False: the other end is closed.
bool AnswerBell(const Descriptor& socket);

}  // namespace strom

#endif  // KERAS_STROM_NET_SAME_HOST_SOCKET_H_
