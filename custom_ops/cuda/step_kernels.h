// The step of core/step/residual.h on the device: the bits of the scalar oracle, one pass over
// memory.
//
// A block owns a tile. Each thread holds 16 of its elements, four neighbours in each of four
// rounds, so that loads are 16 bytes wide and a warp's are consecutive. What leaves goes, in order,
// into the tile's slot; cuda/entry_kernels.h makes one list of the slots. Nothing is added up
// across blocks but in a fixed order, so a step gives the same bits every time.
#ifndef KERAS_STROM_CUDA_STEP_KERNELS_H_
#define KERAS_STROM_CUDA_STEP_KERNELS_H_

#include <algorithm>
#include <cstdint>

#include "core/step/residual.h"
#include "cuda/device.h"
#include "cuda/scan.h"
#include "cuda/segments.h"

namespace strom::cuda {

// An entry in its tile's slot: its index in the tile times 2, plus 1 if it is negative.
using SlotCode = uint16_t;

inline constexpr int64_t kNoElement = int64_t{1} << 62;

// StepStatistics of some tiles; `first_nonfinite` is a flat element, or kNoElement.
struct TileStatistics {
  double sum_residual;
  double clipped_mass;
  int64_t first_nonfinite;
  float max_residual;
  uint32_t clipped_count;
  uint32_t nonfinite_count;
};

STROM_DEVICE TileStatistics NoStatistics() { return {0, 0, kNoElement, 0, 0, 0}; }

STROM_DEVICE TileStatistics Together(const TileStatistics& a, const TileStatistics& b) {
  return {a.sum_residual + b.sum_residual,           a.clipped_mass + b.clipped_mass,
          Min(a.first_nonfinite, b.first_nonfinite), Max(a.max_residual, b.max_residual),
          a.clipped_count + b.clipped_count,         a.nonfinite_count + b.nonfinite_count};
}

// Those of all tiles, which the host adds up: a flat space may have more elements than a tile's
// counts count.
struct StepTotals {
  double sum_residual = 0;
  double clipped_mass = 0;
  int64_t first_nonfinite = kNoElement;
  float max_residual = 0;
  int64_t clipped_count = 0;
  int64_t nonfinite_count = 0;

  void Add(const TileStatistics& some) {
    sum_residual += some.sum_residual;
    clipped_mass += some.clipped_mass;
    first_nonfinite = std::min(first_nonfinite, some.first_nonfinite);
    max_residual = std::max(max_residual, some.max_residual);
    clipped_count += some.clipped_count;
    nonfinite_count += some.nonfinite_count;
  }
};

// The statistics of all threads, in a fixed order of additions; thread 0 gets them.
STROM_DEVICE TileStatistics Fold(TileStatistics mine, TileStatistics (&all)[kBlockThreads]) {
  all[ThreadIndex()] = mine;
  for (int half = kBlockThreads / 2; half > 0; half /= 2) {
    SyncBlock();
    if (ThreadIndex() < half) {
      all[ThreadIndex()] = Together(all[ThreadIndex()], all[ThreadIndex() + half]);
    }
  }
  return all[0];
}

// What a step reads and writes besides the residual.
enum class StepForm {
  kUpdate,  // residual += scale * after, and no value is written
  kStep,    // what StepRun says
  kFull     // what FullRun says: `value` is `after`, and few of its elements are written, if any
};

template <StepForm kForm>
struct StepTiles {
  static constexpr bool kFused = kForm != StepForm::kUpdate;
  static constexpr bool kFull = kForm == StepForm::kFull;

  SegmentTable table;
  StepRule rule;
  SlotCode* slots;  // kTile for each tile
  uint32_t* counts;
  TileStatistics* statistics;

  static constexpr int kRounds = 4;
  static constexpr int kPerRound = 4;  // neighbouring elements of a thread
  static constexpr int kPerThread = kRounds * kPerRound;
  static_assert(kPerThread * kBlockThreads == kTile);

  static constexpr uint32_t kMagnitude = 0x7fffffff;
  static constexpr uint32_t kSign = 0x80000000;
  static constexpr uint32_t kInfinity = 0x7f800000;

  struct Shared {
    double sums[kBlockWarps];
    uint32_t largest[kBlockWarps];
    uint32_t hits[kBlockWarps];
    uint32_t rare[kBlockWarps];
    uint64_t warp_sums[kBlockWarps];
    SlotCode codes[kTile];
    TileStatistics folded[kBlockThreads];
  };

  // One thread's elements: sums after the update first, then what stays; of kFull `after` becomes
  // the value. Compile-time indices only, so that they live in registers.
  struct Elements {
    float before[kPerThread];
    float after[kPerThread];
    float residual[kPerThread];
  };

  // What a thread has met in its elements; bit i stands for element i.
  struct Findings {
    uint32_t hits = 0;
    uint32_t signs = 0;
    uint32_t nonfinite = 0;
    uint32_t clipped = 0;
    double clipped_mass = 0;
    float sum = 0;
    uint32_t largest = 0;
  };

  // The index in the tile of a thread's element `i`.
  STROM_DEVICE static int InTile(int i) {
    return (i / kPerRound * kBlockThreads + ThreadIndex()) * kPerRound + i % kPerRound;
  }

  STROM_DEVICE void Run(Shared& shared) const {
    const int64_t tile = BlockIndex();
    const Segment segment = table.OfTile(tile);
    const int64_t start = (tile - segment.first_tile) * kTile;
    const int size = static_cast<int>(Min<int64_t>(kTile, segment.size - start));
    const bool vectors = size == kTile && Aligned(segment);
    if (kFused && segment.after == segment.before) {
      Pass(segment, start, size, vectors);
      if (ThreadIndex() == 0) {
        counts[tile] = 0;
        statistics[tile] = NoStatistics();
      }
      return;
    }

    Elements elements;
    Load(segment, start, size, vectors, &elements);
    Findings findings;
    STROM_UNROLL
    for (int i = 0; i < kPerThread; ++i) {
      if (InTile(i) < size) Step(rule, i, &elements, &findings);
    }
    Store(segment, start, size, vectors, elements, findings);

    const bool any = Summarise(shared, findings, &statistics[tile]);
    // Tiles without a hit, the most by far, are done here.
    const uint32_t count = any ? WriteSlot(shared, findings, slots + tile * kTile) : 0;
    if (ThreadIndex() == 0) counts[tile] = count;
    if (AnyRare(shared)) FoldRare(shared, findings, segment.offset + start, &statistics[tile]);
  }

  // A segment that did not change, such as a frozen layer's, sends nothing: its residual waits.
  STROM_DEVICE static void Pass(const Segment& segment, int64_t start, int size, bool vectors) {
    if (kFull || segment.value == segment.before) return;
    float value[kPerThread];
    LoadFloats(segment.before + start, size, vectors, value);
    StoreFloats(segment.value + start, size, vectors, value);
  }

  STROM_DEVICE static bool Aligned(const Segment& segment) {
    uint64_t bits =
        reinterpret_cast<uint64_t>(segment.after) | reinterpret_cast<uint64_t>(segment.residual);
    if (kFused) {
      bits |=
          reinterpret_cast<uint64_t>(segment.before) | reinterpret_cast<uint64_t>(segment.value);
    }
    return bits % sizeof(FourFloats) == 0;
  }

  // Everything is loaded before anything is stored: `value` may be `before` or `after`.
  STROM_DEVICE static void Load(const Segment& segment, int64_t start, int size, bool vectors,
                                Elements* elements) {
    LoadFloats(segment.after + start, size, vectors, elements->after);
    LoadFloats(segment.residual + start, size, vectors, elements->residual);
    if (kFused) LoadFloats(segment.before + start, size, vectors, elements->before);
  }

  STROM_DEVICE static void LoadFloats(const float* from, int size, bool vectors,
                                      float (&to)[kPerThread]) {
    if (vectors) {
      STROM_UNROLL
      for (int round = 0; round < kRounds; ++round) {
        const int first = InTile(round * kPerRound);
        const FourFloats four = *reinterpret_cast<const FourFloats*>(from + first);
        STROM_UNROLL
        for (int i = 0; i < kPerRound; ++i) to[round * kPerRound + i] = four.x[i];
      }
    } else {
      STROM_UNROLL
      for (int i = 0; i < kPerThread; ++i) to[i] = InTile(i) < size ? from[InTile(i)] : 0;
    }
  }

  STROM_DEVICE static void StoreFloats(float* to, int size, bool vectors,
                                       const float (&from)[kPerThread]) {
    if (vectors) {
      STROM_UNROLL
      for (int round = 0; round < kRounds; ++round) {
        FourFloats four;
        STROM_UNROLL
        for (int i = 0; i < kPerRound; ++i) four.x[i] = from[round * kPerRound + i];
        *reinterpret_cast<FourFloats*>(to + InTile(round * kPerRound)) = four;
      }
    } else {
      STROM_UNROLL
      for (int i = 0; i < kPerThread; ++i) {
        if (InTile(i) < size) to[InTile(i)] = from[i];
      }
    }
  }

  // The body of the scalar oracle's loop.
  STROM_DEVICE static void Step(const StepRule& rule, int i, Elements* elements,
                                Findings* findings) {
    const float before = kFused ? elements->before[i] : 0;
    const float held = elements->residual[i];
    const float step = rule.scale * (elements->after[i] - before);
    float residual = held + step;
    const uint32_t bits = BitsOf(residual);
    if (kFull && rule.scale != 1) elements->after[i] = before + step;
    if ((bits & kMagnitude) >= kInfinity) {
      findings->nonfinite |= 1u << i;
      residual = held;
      if (kFull) elements->after[i] = before;
    } else if ((bits & kMagnitude) >= BitsOf(rule.threshold)) {
      findings->hits |= 1u << i;
      findings->signs |= bits >> 31 << i;
      residual -= FloatOf((bits & kSign) | BitsOf(rule.threshold));
    }
    float magnitude = FloatOf(BitsOf(residual) & kMagnitude);
    // Not `>`: a limit or a residual that is not a number is the oracle's affair too.
    if (!(magnitude <= rule.clip_limit)) {
      findings->clipped |= 1u << i;
      findings->clipped_mass +=
          static_cast<double>(magnitude) - static_cast<double>(rule.clip_limit);
      const float kept =
          FloatOf((BitsOf(residual) & kSign) | (BitsOf(rule.clip_limit) & kMagnitude));
      const float taken = residual - kept;
      if (kFull && taken != 0) elements->after[i] -= taken;
      residual = kept;
      magnitude = rule.clip_limit;
    }
    elements->residual[i] = residual;
    findings->sum += magnitude;
    findings->largest = Max(findings->largest, BitsOf(magnitude));
  }

  STROM_DEVICE void Store(const Segment& segment, int64_t start, int size, bool vectors,
                          const Elements& elements, const Findings& findings) const {
    StoreFloats(segment.residual + start, size, vectors, elements.residual);
    if constexpr (kFull) {
      if (rule.scale != 1) {
        StoreFloats(segment.value + start, size, vectors, elements.after);
        return;
      }
      const uint32_t written = findings.nonfinite | findings.clipped;
      STROM_UNROLL
      for (int i = 0; i < kPerThread; ++i) {
        if ((written >> i & 1) != 0) segment.value[start + InTile(i)] = elements.after[i];
      }
    } else if constexpr (kFused) {
      float value[kPerThread];
      STROM_UNROLL
      for (int i = 0; i < kPerThread; ++i) {
        const uint32_t sign = (findings.signs >> i & 1) << 31;
        const bool sent = rule.apply_own && (findings.hits >> i & 1) != 0;
        // Not before + 0, which would turn -0 into 0.
        value[i] =
            sent ? elements.before[i] + FloatOf(sign | BitsOf(rule.threshold)) : elements.before[i];
      }
      StoreFloats(segment.value + start, size, vectors, value);
    }
  }

  // Sum and maximum of the tile; whether any of its elements has reached the threshold.
  STROM_DEVICE static bool Summarise(Shared& shared, const Findings& findings,
                                     TileStatistics* out) {
    double sum = static_cast<double>(findings.sum);
    uint32_t largest = findings.largest;
    STROM_UNROLL
    for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) {
      sum += FromLaneXor(sum, mask);
      largest = Max(largest, FromLaneXor(largest, mask));
    }
    const bool warp_hits = AnyLane(findings.hits != 0);
    const bool warp_rare = AnyLane((findings.nonfinite | findings.clipped) != 0);
    if (LaneIndex() == 0) {
      shared.sums[WarpIndex()] = sum;
      shared.largest[WarpIndex()] = largest;
      shared.hits[WarpIndex()] = warp_hits;
      shared.rare[WarpIndex()] = warp_rare;
    }
    SyncBlock();
    uint32_t hits = 0;
    STROM_UNROLL
    for (int warp = 0; warp < kBlockWarps; ++warp) hits |= shared.hits[warp];
    if (ThreadIndex() == 0) {
      TileStatistics tile = NoStatistics();
      uint32_t tile_largest = 0;
      STROM_UNROLL
      for (int warp = 0; warp < kBlockWarps; ++warp) {
        tile.sum_residual += shared.sums[warp];
        tile_largest = Max(tile_largest, shared.largest[warp]);
      }
      tile.max_residual = FloatOf(tile_largest);
      *out = tile;
    }
    return hits != 0;
  }

  // Gives the hits their order: by round, then thread, then neighbour. The counts of the four
  // rounds are added up side by side, 16 bits each.
  STROM_DEVICE static uint32_t WriteSlot(Shared& shared, const Findings& findings, SlotCode* slot) {
    uint64_t mine = 0;
    STROM_UNROLL
    for (int round = 0; round < kRounds; ++round) {
      const uint32_t hits = findings.hits >> (round * kPerRound) & ((1u << kPerRound) - 1);
      mine |= static_cast<uint64_t>(CountOnes(hits)) << (16 * round);
    }
    uint64_t totals = 0;
    const uint64_t before = SumBefore(mine, shared.warp_sums, &totals);
    uint32_t count = 0;
    STROM_UNROLL
    for (int round = 0; round < kRounds; ++round) {
      uint32_t place = count + static_cast<uint32_t>(before >> (16 * round) & 0xffff);
      STROM_UNROLL
      for (int j = 0; j < kPerRound; ++j) {
        const int i = round * kPerRound + j;
        if ((findings.hits >> i & 1) == 0) continue;
        shared.codes[place++] =
            static_cast<SlotCode>(InTile(i) << 1 | static_cast<int>(findings.signs >> i & 1));
      }
      count += static_cast<uint32_t>(totals >> (16 * round) & 0xffff);
    }
    SyncBlock();
    for (uint32_t i = static_cast<uint32_t>(ThreadIndex()); i < count; i += kBlockThreads) {
      slot[i] = shared.codes[i];
    }
    return count;
  }

  STROM_DEVICE static bool AnyRare(const Shared& shared) {
    uint32_t rare = 0;
    STROM_UNROLL
    for (int warp = 0; warp < kBlockWarps; ++warp) rare |= shared.rare[warp];
    return rare != 0;
  }

  // Adds what most tiles do not have; thread 0 wrote the rest of *out itself.
  STROM_DEVICE static void FoldRare(Shared& shared, const Findings& findings, int64_t offset,
                                    TileStatistics* out) {
    TileStatistics mine = NoStatistics();
    mine.clipped_mass = findings.clipped_mass;
    mine.clipped_count = static_cast<uint32_t>(CountOnes(findings.clipped));
    mine.nonfinite_count = static_cast<uint32_t>(CountOnes(findings.nonfinite));
    if (findings.nonfinite != 0) {
      mine.first_nonfinite = offset + InTile(LowestOne(findings.nonfinite));
    }
    const TileStatistics tile = Fold(mine, shared.folded);
    if (ThreadIndex() == 0) *out = Together(*out, tile);
  }
};

// Whether any bit of `after` is another than in `before`, of each tile.
struct CompareTiles {
  SegmentTable table;
  uint32_t* differ;

  struct Shared {
    uint32_t differ[kBlockWarps];
  };

  STROM_DEVICE void Run(Shared& shared) const {
    const int64_t tile = BlockIndex();
    const Segment segment = table.OfTile(tile);
    const int64_t start = (tile - segment.first_tile) * kTile;
    const int64_t end = Min<int64_t>(start + kTile, segment.size);
    bool mine = false;
    for (int64_t i = start + ThreadIndex(); i < end; i += kBlockThreads) {
      mine |= BitsOf(segment.before[i]) != BitsOf(segment.after[i]);
    }
    const bool any = AnyLane(mine);
    if (LaneIndex() == 0) shared.differ[WarpIndex()] = any;
    SyncBlock();
    if (ThreadIndex() != 0) return;
    uint32_t all = 0;
    STROM_UNROLL
    for (int warp = 0; warp < kBlockWarps; ++warp) all |= shared.differ[warp];
    differ[tile] = all;
  }
};

// Statistics of kTilesPerFold tiles a block, for the host to add up.
struct FoldStatistics {
  const TileStatistics* tiles;
  int64_t count;
  TileStatistics* folded;

  static constexpr int64_t kTilesPerFold = 16 * kBlockThreads;

  struct Shared {
    TileStatistics all[kBlockThreads];
  };

  STROM_DEVICE void Run(Shared& shared) const {
    const int64_t first = BlockIndex() * kTilesPerFold;
    const int64_t end = Min(count, first + kTilesPerFold);
    TileStatistics mine = NoStatistics();
    for (int64_t tile = first + ThreadIndex(); tile < end; tile += kBlockThreads) {
      mine = Together(mine, tiles[tile]);
    }
    const TileStatistics all = Fold(mine, shared.all);
    if (ThreadIndex() == 0) folded[BlockIndex()] = all;
  }
};

// Undoes the sending: the entries return to the residual, within rounding, and leave the values.
struct TakeBackTiles {
  SegmentTable table;
  const SlotCode* slots;
  const uint32_t* counts;
  float threshold;
  bool from_value;

  struct Shared {};

  STROM_DEVICE void Run(Shared&) const {
    const int64_t tile = BlockIndex();
    const Segment segment = table.OfTile(tile);
    const int64_t start = (tile - segment.first_tile) * kTile;
    for (uint32_t i = static_cast<uint32_t>(ThreadIndex()); i < counts[tile]; i += kBlockThreads) {
      const SlotCode code = slots[tile * kTile + i];
      const int64_t element = start + (code >> 1);
      const float sent = code & 1 ? -threshold : threshold;
      segment.residual[element] += sent;
      if (from_value) segment.value[element] -= sent;
    }
  }
};

// Undoes a full step whose progress is in the values and, once taken back, in the residuals: the
// values are what they were, the residuals too within rounding.
struct UndoTiles {
  SegmentTable table;

  struct Shared {};

  STROM_DEVICE void Run(Shared&) const {
    const int64_t tile = BlockIndex();
    const Segment segment = table.OfTile(tile);
    if (segment.before == segment.value) return;
    const int64_t start = (tile - segment.first_tile) * kTile;
    const int64_t end = Min<int64_t>(start + kTile, segment.size);
    for (int64_t i = start + ThreadIndex(); i < end; i += kBlockThreads) {
      segment.residual[i] -= segment.value[i] - segment.before[i];
      segment.value[i] = segment.before[i];
    }
  }
};

}  // namespace strom::cuda

#endif  // KERAS_STROM_CUDA_STEP_KERNELS_H_
