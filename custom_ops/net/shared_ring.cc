#include "net/shared_ring.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

namespace strom {
namespace {

// Frames begin at multiples of this, so that no header wraps around.
constexpr size_t kAlignment = sizeof(RingFrame);
constexpr size_t kMaxPayload = size_t{64} << 10;

static_assert(std::atomic_ref<uint64_t>::is_always_lock_free);

size_t FrameBytes(size_t payload_bytes) {
  return sizeof(RingFrame) + (payload_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

size_t MaxPayload(const Ring& ring) { return std::min(kMaxPayload, ring.bytes.size() / 4); }

// Sleeping and waking need more than release and acquire: "I have stored my position, do you
// sleep?" on one side and "I sleep, is there something?" on the other must not both miss.
template <typename Number>
void Store(Number& place, Number value) {
  std::atomic_ref<Number>(place).store(value, std::memory_order_seq_cst);
}

template <typename Number>
Number Load(Number& place) {
  return std::atomic_ref<Number>(place).load(std::memory_order_seq_cst);
}

// Takes a wish to be woken; whoever takes it fulfils it.
bool TakeWish(uint32_t& wish) {
  return Load(wish) != 0 && std::atomic_ref<uint32_t>(wish).exchange(0) != 0;
}

void Check(const Ring& ring) {
  STROM_CHECK(std::has_single_bit(ring.bytes.size()) && ring.bytes.size() >= kLeastRingBytes);
}

}  // namespace

// ---------------------------------------------------------------- writing

RingWriter::RingWriter(const Ring& ring) : ring_(ring) { Check(ring); }

size_t RingWriter::max_payload() const { return MaxPayload(ring_); }

bool RingWriter::Write(const RingFrame& frame, Bytes payload) {
  STROM_CHECK(payload.size() == frame.bytes && payload.size() <= max_payload());
  if (!HasRoom(payload.size())) return false;
  const size_t mask = ring_.bytes.size() - 1;
  const size_t header_at = written_ & mask;
  std::memcpy(&ring_.bytes[header_at], &frame, sizeof(frame));
  const size_t at = (header_at + sizeof(frame)) & mask;
  const size_t until_end = std::min(payload.size(), ring_.bytes.size() - at);
  if (until_end > 0) std::memcpy(&ring_.bytes[at], payload.data(), until_end);
  if (payload.size() > until_end) {
    std::memcpy(ring_.bytes.data(), payload.data() + until_end, payload.size() - until_end);
  }
  written_ += FrameBytes(payload.size());
  return true;
}

bool RingWriter::Publish() {
  if (published_ == written_) return false;
  published_ = written_;
  Store(ring_.positions->written, written_);
  return TakeWish(ring_.positions->reader_sleeps);
}

bool RingWriter::AskForRoom(size_t payload_bytes) {
  AskForProgress();
  return !HasRoom(payload_bytes);
}

void RingWriter::AskForProgress() { Store(ring_.positions->writer_waits, uint32_t{1}); }

void RingWriter::StopAsking() {
  std::atomic_ref<uint32_t>(ring_.positions->writer_waits).store(0, std::memory_order_relaxed);
}

int64_t RingWriter::unread_bytes() const {
  const uint64_t unread = written_ - Load(ring_.positions->read);
  return static_cast<int64_t>(std::min(unread, written_ - read_));
}

bool RingWriter::HasRoom(size_t payload_bytes) {
  const size_t needed = FrameBytes(payload_bytes);
  if (broken_) return false;
  if (ring_.bytes.size() - (written_ - read_) >= needed) return true;
  const uint64_t read = Load(ring_.positions->read);
  if (read - read_ > published_ - read_) {  // it went back, or past what there is
    broken_ = true;
    return false;
  }
  read_ = read;
  return ring_.bytes.size() - (written_ - read_) >= needed;
}

// ---------------------------------------------------------------- reading

RingReader::RingReader(const Ring& ring) : ring_(ring) { Check(ring); }

bool RingReader::Next(RingFrame* frame) {
  const uint64_t available = Available();
  if (broken_ || available == 0) return false;
  std::memcpy(frame, &ring_.bytes[read_ & (ring_.bytes.size() - 1)], sizeof(*frame));
  if (frame->bytes > MaxPayload(ring_) || FrameBytes(frame->bytes) > available ||
      static_cast<uint8_t>(frame->channel) >= kChannels || frame->kind > RingFrame::Kind::kVoid) {
    broken_ = true;
  }
  return !broken_;
}

void RingReader::Take(const RingFrame& frame, std::vector<uint8_t>* to) {
  STROM_CHECK(FrameBytes(frame.bytes) <= written_ - read_);
  if (to != nullptr) {
    const size_t at = (read_ + sizeof(frame)) & (ring_.bytes.size() - 1);
    const size_t until_end = std::min<size_t>(frame.bytes, ring_.bytes.size() - at);
    const uint8_t* const bytes = ring_.bytes.data();
    to->insert(to->end(), bytes + at, bytes + at + until_end);
    to->insert(to->end(), bytes, bytes + (frame.bytes - until_end));
  }
  read_ += FrameBytes(frame.bytes);
}

bool RingReader::Release() {
  if (released_ == read_) return false;
  released_ = read_;
  Store(ring_.positions->read, read_);
  return TakeWish(ring_.positions->writer_waits);
}

bool RingReader::AskForFrame() {
  Store(ring_.positions->reader_sleeps, uint32_t{1});
  return Available() == 0 && !broken_;
}

void RingReader::StopAsking() {
  std::atomic_ref<uint32_t>(ring_.positions->reader_sleeps).store(0, std::memory_order_relaxed);
}

// Bytes of whole frames that have not been taken.
uint64_t RingReader::Available() {
  if (broken_ || written_ != read_) return written_ - read_;
  const uint64_t written = Load(ring_.positions->written);
  if (written - read_ > ring_.bytes.size() || written % kAlignment != 0) {
    broken_ = true;
    return 0;
  }
  written_ = written;
  return written_ - read_;
}

}  // namespace strom
