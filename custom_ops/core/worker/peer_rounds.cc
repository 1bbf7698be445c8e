#include "core/worker/peer_rounds.h"

#include <algorithm>
#include <utility>

#include "core/joint/bfloat16.h"
#include "core/joint/joint_model.h"

namespace strom {

namespace {

// On its way to one peer at once, and how often a look is taken whether more may follow. Means wait
// behind it, so it is short.
constexpr int64_t kLeavingToPeer = int64_t{4} << 20;
constexpr int64_t kLookAtPeers = 1'000'000;

}  // namespace

PeerRounds::PeerRounds(const JointPlan& plan, const Rounds& order, std::vector<int32_t> ranks,
                       int32_t rank, PeerHost* host)
    : plan_(plan),
      order_(order),
      ranks_(std::move(ranks)),
      place_(static_cast<size_t>(std::lower_bound(ranks_.begin(), ranks_.end(), rank) -
                                 ranks_.begin())),
      host_(host),
      part_elements_(PartElements(plan.method, plan.size())),
      is_rounded_(plan.method.bfloat16 != 0) {
  STROM_CHECK(PlaceOf(rank) == place_);
}

std::optional<size_t> PeerRounds::PlaceOf(int32_t rank) const {
  const auto found = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  if (found == ranks_.end() || *found != rank) return std::nullopt;
  return static_cast<size_t>(found - ranks_.begin());
}

int64_t PeerRounds::parts() const { return (plan_.size() + part_elements_ - 1) / part_elements_; }

ElementRange PeerRounds::RangeOf(int64_t part) const {
  const int64_t first = part * part_elements_;
  return {first, std::min(part_elements_, plan_.size() - first)};
}

PeerRounds::Gathered& PeerRounds::GatheredAt(uint64_t round, int64_t part) {
  Gathered& gathered = gathered_[round][part];
  gathered.values.resize(ranks_.size());
  gathered.is_here.resize(ranks_.size());
  return gathered;
}

std::optional<int64_t> PeerRounds::PartOf(const BlobChunk& chunk) const {
  const auto width = static_cast<uint64_t>(is_rounded_ ? kBfloat16Bytes : sizeof(float));
  const uint64_t part_bytes = static_cast<uint64_t>(part_elements_) * width;
  if (chunk.total != static_cast<uint64_t>(plan_.size()) * width || chunk.offset >= chunk.total ||
      chunk.offset % part_bytes != 0) {
    return std::nullopt;
  }
  const auto part = static_cast<int64_t>(chunk.offset / part_bytes);
  if (chunk.bytes.size() != static_cast<uint64_t>(RangeOf(part).size) * width) return std::nullopt;
  return part;
}

void PeerRounds::Decode(Bytes bytes, std::span<float> values) const {
  if (is_rounded_) return DecodeRounded(bytes, values);
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<uint8_t*>(values.data()));
}

Buffer PeerRounds::Encode(BlobKind kind, int64_t part, uint32_t count,
                          std::span<const float> values) const {
  const BlobName name{kind, order_.generation, order_.version, round_, count};
  const auto offset = static_cast<uint64_t>(RangeOf(part).offset);
  const auto size = static_cast<uint64_t>(plan_.size());
  if (!is_rounded_) return EncodePiece(name, values, offset * sizeof(float), size * sizeof(float));
  std::vector<uint8_t> rounded(values.size() * kBfloat16Bytes);
  EncodeRounded(values, rounded);
  return EncodePiece(name, Bytes(rounded), offset * kBfloat16Bytes, size * kBfloat16Bytes);
}

void PeerRounds::Begin(uint64_t round, std::span<const float> values, std::span<float> mean) {
  STROM_CHECK(!is_given_ && Has(round));
  is_given_ = true;
  round_ = round;
  values_ = values;
  mean_ = mean;
  left_ = parts();
  arrived_.assign(static_cast<size_t>(left_), false);
  is_written_.assign(static_cast<size_t>(left_), false);
  leaving_.assign(ranks_.size(), {});
}

void PeerRounds::GivePart(int64_t part) {
  if (part > 0 && part < parts()) Give(part);
}

void PeerRounds::GiveRest() {
  for (int64_t part = 0; part < parts(); ++part) Give(part);
}

void PeerRounds::Give(int64_t part) {
  const auto place = static_cast<size_t>(part);
  if (!is_given_ || is_written_[place]) return;
  is_written_[place] = true;
  next_ns_ = 0;
  if (OwnerOf(part) == place_) {
    GiveOwn(part);
  } else {
    leaving_[OwnerOf(part)].push_back(part);
  }
}

// What this worker adds up itself counts as it would for another.
void PeerRounds::GiveOwn(int64_t part) {
  const ElementRange range = RangeOf(part);
  const auto own =
      values_.subspan(static_cast<size_t>(range.offset), static_cast<size_t>(range.size));
  Gathered& gathered = GatheredAt(round_, part);
  gathered.values[place_].assign(own.begin(), own.end());
  if (is_rounded_) {
    std::vector<uint8_t> rounded(own.size() * kBfloat16Bytes);
    EncodeRounded(own, rounded);
    DecodeRounded(rounded, gathered.values[place_]);
  }
  gathered.is_here[place_] = true;
  ++gathered.here;
  if (place_ == 0) gathered.rate = RateBits(values_.back());
  CloseIfWhole(round_, part);
}

Status PeerRounds::Handle(int32_t rank, const BlobChunk& chunk) {
  const std::optional<size_t> place = PlaceOf(rank);
  const std::optional<int64_t> part = PartOf(chunk);
  const uint64_t round = chunk.name.mark;
  if (!place || !part) return {Code::kCorrupt, "a piece of a gradient of another size"};
  if (chunk.name.kind == BlobKind::kTarget) {
    const bool fits = is_given_ && round == round_ && OwnerOf(*part) == *place;
    if (!fits || arrived_[static_cast<size_t>(*part)]) {
      return {Code::kCorrupt, "a piece of a mean that nobody waits for"};
    }
    const ElementRange range = RangeOf(*part);
    Decode(chunk.bytes,
           mean_.subspan(static_cast<size_t>(range.offset), static_cast<size_t>(range.size)));
    if (*part == 0) mean_.back() = RateOf(chunk.name.count);
    arrived_[static_cast<size_t>(*part)] = true;
    --left_;
    return {};
  }
  // Who has the mean of this worker's round gives for the next one.
  const bool is_near = is_given_ ? round == round_ || round == round_ + 1
                                 : round == std::max(round_ + 1, order_.round);
  if (chunk.name.kind != BlobKind::kShard || OwnerOf(*part) != place_ || !is_near) {
    return {Code::kCorrupt, "a piece of a gradient that is not for this worker, or of no round"};
  }
  Gathered& gathered = GatheredAt(round, *part);
  if (gathered.is_here[*place]) return {Code::kCorrupt, "a piece of a gradient twice"};
  gathered.values[*place].resize(static_cast<size_t>(RangeOf(*part).size));
  Decode(chunk.bytes, gathered.values[*place]);
  gathered.is_here[*place] = true;
  ++gathered.here;
  if (*place == 0) gathered.rate = chunk.name.count;
  CloseIfWhole(round, *part);
  return {};
}

void PeerRounds::CloseIfWhole(uint64_t round, int64_t part) {
  Gathered& gathered = GatheredAt(round, part);
  if (gathered.here < ranks_.size()) return;
  const ElementRange range = RangeOf(part);
  const auto mean =
      mean_.subspan(static_cast<size_t>(range.offset), static_cast<size_t>(range.size));
  MeanInOrder(gathered.values, mean);
  const Buffer chunk = Encode(BlobKind::kTarget, part, gathered.rate, mean);
  if (is_rounded_) Decode(Bytes(*chunk).last(mean.size() * kBfloat16Bytes), mean);
  for (size_t place = 0; place < ranks_.size(); ++place) {
    if (place != place_) host_->SendToPeer(ranks_[place], chunk);
  }
  if (part == 0) mean_.back() = RateOf(gathered.rate);
  arrived_[static_cast<size_t>(part)] = true;
  --left_;
  gathered_[round].erase(part);
}

bool PeerRounds::TakeWhole() {
  if (!is_given_ || left_ > 0) return false;
  is_given_ = false;
  gathered_.erase(round_);
  values_ = {};
  mean_ = {};
  return true;
}

void PeerRounds::Advance(int64_t now_ns) {
  next_ns_ = kNever;
  if (!is_given_) return;
  for (size_t place = 0; place < ranks_.size(); ++place) {
    std::deque<int64_t>& leaving = leaving_[place];
    while (!leaving.empty()) {
      if (host_->QueuedToPeer(ranks_[place]) >= kLeavingToPeer) {
        next_ns_ = now_ns + kLookAtPeers;
        break;
      }
      SendPart(leaving.front());
      leaving.pop_front();
    }
  }
}

void PeerRounds::SendPart(int64_t part) {
  const ElementRange range = RangeOf(part);
  host_->SendToPeer(
      ranks_[OwnerOf(part)],
      Encode(BlobKind::kShard, part, RateBits(values_.back()),
             values_.subspan(static_cast<size_t>(range.offset), static_cast<size_t>(range.size))));
}

}  // namespace strom
