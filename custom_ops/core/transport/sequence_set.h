// A set of link sequences within one window, as a ring of bits: membership in one step, and walks
// over members or holes 64 at a time.
#ifndef KERAS_STROM_CORE_TRANSPORT_SEQUENCE_SET_H_
#define KERAS_STROM_CORE_TRANSPORT_SEQUENCE_SET_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace strom {

// Packets of one link and direction that may be under way; 18.7 MB at 1200 bytes each.
inline constexpr uint32_t kWindowPackets = 16384;

// Holds sequences of any kWindowPackets neighbouring ones; they wrap around at 2^32.
class SequenceSet {
 public:
  void Insert(uint32_t sequence) { Word(sequence) |= Bit(sequence); }
  void Erase(uint32_t sequence) { Word(sequence) &= ~Bit(sequence); }
  bool Contains(uint32_t sequence) const {
    return (words_[sequence % kWindowPackets / 64] & Bit(sequence)) != 0;
  }

  // The first member in [from, to), or `to`.
  uint32_t NextMember(uint32_t from, uint32_t to) const { return Next(from, to, 0); }
  // The first sequence in [from, to) that is no member, or `to`.
  uint32_t NextHole(uint32_t from, uint32_t to) const { return Next(from, to, ~uint64_t{0}); }

 private:
  static uint64_t Bit(uint32_t sequence) { return uint64_t{1} << (sequence % 64); }
  uint64_t& Word(uint32_t sequence) { return words_[sequence % kWindowPackets / 64]; }

  uint32_t Next(uint32_t from, uint32_t to, uint64_t flip) const {
    while (from != to) {
      const uint32_t left = to - from;
      const uint64_t word = (words_[from % kWindowPackets / 64] ^ flip) >> (from % 64);
      const uint32_t in_word = std::min(left, 64 - from % 64);
      if (word != 0) {
        const uint32_t skip = static_cast<uint32_t>(std::countr_zero(word));
        if (skip < in_word) return from + skip;
      }
      from += in_word;
    }
    return to;
  }

  std::array<uint64_t, kWindowPackets / 64> words_{};
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_SEQUENCE_SET_H_
