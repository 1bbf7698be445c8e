#include "core/joint/joint_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/joint/bfloat16.h"

namespace strom {

namespace {

constexpr int64_t kCut = 16;
// Rounds: into so many parts at least, of at most so many elements.
constexpr int64_t kPartsOfRound = 16;
constexpr int64_t kMostOfRound = int64_t{1} << 16;
// Elsewhere.
constexpr int64_t kParts = 8;
// Of a part at once, while sums are in the processor's caches.
constexpr int64_t kSummedElements = int64_t{1} << 11;
// The number comes from a file, and goes on from there.
constexpr int64_t kMostCyclesBefore = int64_t{1} << 40;

// How far a ramp over `length` cycles has come, 0 to 1.
double Ramp(int64_t cycles, int64_t length) {
  if (length <= 0) return 1;
  return static_cast<double>(std::clamp<int64_t>(cycles, 0, length)) / static_cast<double>(length);
}

std::span<float> Of(std::vector<float>& values, const ElementRange& range) {
  return std::span(values).subspan(static_cast<size_t>(range.offset),
                                   static_cast<size_t>(range.size));
}

}  // namespace

ElementRange ShardOf(int64_t size, int32_t shards, int32_t shard) {
  const auto cut = [&](int32_t at) {
    return at == shards ? size : size / kCut * at / shards * kCut;
  };
  return {cut(shard), cut(shard + 1) - cut(shard)};
}

int64_t PartElements(const strom_method& method, int64_t size) {
  const bool has_rounds = HasRounds(method);
  const int64_t parts = has_rounds ? kPartsOfRound : kParts;
  return std::clamp(size / parts / kCut * kCut, kCut, has_rounds ? kMostOfRound : kPartElements);
}

void MeanInOrder(std::span<const std::vector<float>> values, std::span<float> mean) {
  const auto weight = static_cast<double>(values.size());
  std::array<double, kSummedElements> sums;
  for (size_t begin = 0; begin < mean.size(); begin += kSummedElements) {
    const size_t size = std::min<size_t>(kSummedElements, mean.size() - begin);
    std::fill_n(sums.begin(), size, 0.0);
    for (const std::vector<float>& one : values) {
      for (size_t i = 0; i < size; ++i) sums[i] += static_cast<double>(one[begin + i]);
    }
    for (size_t i = 0; i < size; ++i) mean[begin + i] = static_cast<float>(sums[i] / weight);
  }
}

JointModel::JointModel(const strom_method& method, std::vector<float> start)
    : method_(method), joint_(std::move(start)) {
  const int64_t elements = PartElements(method, size());
  for (int32_t number = 0; number < method.phases; ++number) {
    Shard& shard = shards_.emplace_back();
    shard.range = ShardOf(size(), method.phases, number);
    shard.first_part = std::ssize(parts_);
    for (int64_t at = shard.range.offset; at < shard.range.end(); at += elements) {
      parts_.push_back({{at, std::min(elements, shard.range.end() - at)}, number, 0, {}});
    }
  }
  if (method.kind == STROM_MPCA && method.gamma > 0) trajectory_.resize(joint_.size());
  if (HasRounds()) next_ = joint_;
}

bool JointModel::HasRounds() const { return strom::HasRounds(method_); }

int64_t JointModel::cycles() const {
  return std::min_element(shards_.begin(), shards_.end(),
                          [](const Shard& a, const Shard& b) { return a.cycles < b.cycles; })
      ->cycles;
}

int64_t JointModel::last_part(int32_t shard) const {
  return shard + 1 < shards() ? first_part(shard + 1) : std::ssize(parts_);
}

void JointModel::BeginAfter(int64_t cycles) {
  for (Shard& shard : shards_) shard.cycles = std::clamp<int64_t>(cycles, 0, kMostCyclesBefore);
}

void JointModel::Restart(int64_t cycles) {
  BeginAfter(cycles);
  std::fill(trajectory_.begin(), trajectory_.end(), 0.0f);
  for (Shard& shard : shards_) {
    shard.gamma = 0;
    shard.restarts = true;
  }
}

size_t JointModel::PartAt(int64_t offset) const {
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), offset,
                       [](int64_t at, const Part& part) { return at < part.range.offset; });
  return static_cast<size_t>(after - parts_.begin()) - 1;
}

template <typename Visit>
void JointModel::ForParts(int64_t offset, std::span<const float> values, Visit visit) {
  while (!values.empty()) {
    Part& part = parts_[PartAt(offset)];
    const int64_t here = std::min<int64_t>(std::ssize(values), part.range.end() - offset);
    visit(&part, offset, values.first(static_cast<size_t>(here)));
    offset += here;
    values = values.subspan(static_cast<size_t>(here));
  }
}

// (9). A mean of models counts each of them once.
double JointModel::WeightOf(int64_t steps) const {
  if (method_.kind != STROM_MPCA) return 1;
  if (method_.weighted != 0) return static_cast<double>(steps);
  return steps > 0 ? 1 : 0;
}

void JointModel::Add(int64_t offset, std::span<const float> values, int64_t steps) {
  const double weight = WeightOf(steps);
  if (weight == 0) return;
  if (sums_.empty()) sums_.resize(joint_.size());
  ForParts(offset, values, [&](Part* part, int64_t at, std::span<const float> piece) {
    part->weight += weight;
    double* const sums = sums_.data() + at;
    for (size_t i = 0; i < piece.size(); ++i) sums[i] += weight * static_cast<double>(piece[i]);
  });
}

void JointModel::Keep(int64_t part, int32_t rank, std::vector<float> values) {
  parts_[static_cast<size_t>(part)].kept[rank] = std::move(values);
}

void JointModel::ForgetGiven() {
  for (Part& part : parts_) part.kept.clear();
}

void JointModel::Move(int64_t offset, std::span<const float> difference) {
  float* const joint = joint_.data() + offset;
  for (size_t i = 0; i < difference.size(); ++i) {
    joint[i] = static_cast<float>(static_cast<double>(joint[i]) + difference[i]);
  }
}

void JointModel::MoveTowards(int64_t offset, std::span<const float> values) {
  float* const joint = joint_.data() + offset;
  for (size_t i = 0; i < values.size(); ++i) {
    const double own = joint[i];
    joint[i] = static_cast<float>(own + method_.alpha * (static_cast<double>(values[i]) - own));
  }
}

double JointModel::Beta(const Shard& shard) const {
  if (shard.restarts || method_.kind == STROM_SPARKNET) return 1;
  if (method_.kind == STROM_EASGD_SYNCHRONOUS) return method_.beta;
  return std::pow(method_.beta, Ramp(shard.cycles, method_.ramp_cycles));
}

double JointModel::Gamma(int64_t cycles) const {
  return method_.gamma * Ramp(cycles, method_.ramp_cycles);
}

double JointModel::alpha() const {
  if (method_.kind != STROM_MPCA) return method_.alpha;
  const int64_t since = cycles() - method_.free_cycles;
  if (since < 0 || method_.alpha == 0) return 0;
  const double left = 1 - Ramp(since, method_.start_cycles);
  return method_.alpha * std::pow(method_.start_alpha / method_.alpha, left);
}

void JointModel::TakeSums(const Part& part, int64_t begin, int64_t size, double* sums) {
  if (sums_.empty()) {
    std::fill(sums, sums + size, 0.0);
  } else {
    std::copy_n(sums_.data() + begin, size, sums);
    std::fill_n(sums_.data() + begin, size, 0.0);
  }
  for (const auto& [rank, kept] : part.kept) {
    const float* const values = kept.data() + (begin - part.range.offset);
    for (int64_t i = 0; i < size; ++i) sums[i] += static_cast<double>(values[i]);
  }
}

void JointModel::UpdatePart(int64_t number) {
  Part& part = parts_[static_cast<size_t>(number)];
  const double weight = std::exchange(part.weight, 0) + static_cast<double>(part.kept.size());
  float* const to = HasRounds() ? next_.data() : joint_.data();
  if (weight == 0) {
    if (!HasRounds()) return;
    const std::span<const float> before = Of(joint_, part.range);
    std::copy(before.begin(), before.end(), Of(next_, part.range).begin());
    change_.assign(static_cast<size_t>(part.range.size * kBfloat16Bytes), 0);
    return;
  }
  Shard& shard = shards_[static_cast<size_t>(part.shard)];
  shard.has_changed = true;
  const double beta = Beta(shard), delta = method_.delta;
  std::array<double, kSummedElements> sums;
  for (int64_t begin = part.range.offset; begin < part.range.end(); begin += kSummedElements) {
    const int64_t size = std::min(kSummedElements, part.range.end() - begin);
    TakeSums(part, begin, size, sums.data());
    if (beta == 1 && trajectory_.empty()) {
      for (int64_t i = 0; i < size; ++i)
        to[begin + i] = static_cast<float>(sums[static_cast<size_t>(i)] / weight);
      continue;
    }
    for (int64_t i = 0; i < size; ++i) {
      const auto at = static_cast<size_t>(begin + i);
      const double mean = sums[static_cast<size_t>(i)] / weight;  // (9)
      const double before = joint_[at];
      const double now = beta == 1 ? mean : before + beta * (mean - before);  // (8)
      if (!trajectory_.empty()) {
        trajectory_[at] =
            static_cast<float>(delta * trajectory_[at] + (1 - delta) * (now - before));
      }
      to[at] = static_cast<float>(now);
    }
  }
  part.kept.clear();
  if (method_.bfloat16 == 0) return;
  change_.resize(static_cast<size_t>(part.range.size * kBfloat16Bytes));
  if (method_.gradients != 0) {
    EncodeRounded(Of(next_, part.range), change_);
    DecodeRounded(change_, Of(next_, part.range));
    return;
  }
  EncodeChange(Of(joint_, part.range), Of(next_, part.range), change_);
  AddChange(Of(joint_, part.range), change_, Of(next_, part.range));
}

std::span<const float> JointModel::RoundTarget(int64_t number) const {
  const ElementRange& range = part(number);
  return Of(method_.kind == STROM_SPARKNET ? next_ : joint_, range);
}

void JointModel::EndCycle(int32_t number) {
  Shard& shard = shards_[static_cast<size_t>(number)];
  if (!std::exchange(shard.has_changed, false)) return;
  if (HasRounds()) std::swap(joint_, next_);
  shard.gamma = Gamma(shard.cycles);
  ++shard.cycles;
  shard.restarts = false;
}

void JointModel::Update(int32_t number) {
  for (int64_t part = first_part(number); part < last_part(number); ++part) UpdatePart(part);
  EndCycle(number);
}

void JointModel::ReadTarget(const ElementRange& range, float* target) const {
  const double gamma = At(parts_[PartAt(range.offset)].shard).gamma;
  const float* const joint = joint_.data() + range.offset;
  if (trajectory_.empty() || gamma == 0) {
    std::copy(joint, joint + range.size, target);
    return;
  }
  const float* const trajectory = trajectory_.data() + range.offset;
  for (int64_t i = 0; i < range.size; ++i) {
    target[i] = static_cast<float>(joint[i] + gamma * trajectory[i]);
  }
}

}  // namespace strom
