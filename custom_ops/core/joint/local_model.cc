#include "core/joint/local_model.h"

#include <algorithm>
#include <utility>

#include "core/joint/joint_model.h"

namespace strom {

namespace {

constexpr int32_t kMostBadSnapshots = 3;
// Before anything is measured.
constexpr int64_t kFirstSteps = 10;
constexpr int64_t kMostSteps = 10'000;
// Asynchronous EASGD exchanges so much more rarely than one line could carry (the paper's setting).
constexpr double kSlack = 1.3;
// Of one task.
constexpr int64_t kPullElements = int64_t{1} << 16;
constexpr int64_t kCopiedElements = int64_t{1} << 14;

const char* NameOf(const LocalPiece& piece) { return piece.name == nullptr ? "" : piece.name; }

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

// Calls visit(span of a piece, its offset) for what lies in `range`, in order.
template <typename Visit>
void ForPieces(std::span<const LocalPiece> pieces, const ElementRange& range, Visit visit) {
  int64_t at = 0;
  for (const LocalPiece& piece : pieces) {
    const int64_t size = std::ssize(piece.values);
    const int64_t first = std::max(range.offset, at);
    const int64_t last = std::min(range.end(), at + size);
    if (first < last) {
      visit(
          piece.values.subspan(static_cast<size_t>(first - at), static_cast<size_t>(last - first)),
          first, piece);
    }
    at += size;
  }
}

}  // namespace

void LocalModel::Begin(std::shared_ptr<JointExchange> exchange, int64_t size,
                       const strom_method& method, int32_t rank, int32_t workers, PullKind pull) {
  *this = LocalModel();
  exchange_ = std::move(exchange);
  method_ = method;
  pull_ = pull;
  size_ = size;
  workers_ = workers;
  for (int32_t shard = 0; shard < method.phases; ++shard) {
    shards_.push_back({ShardOf(size, method.phases, shard), nullptr, 0, 0, {}, true});
  }
  if (method.kind == STROM_EASGD && workers > 0) {
    const int64_t steps = method.steps > 0 ? method.steps : kFirstSteps;
    first_extra_ = steps * (workers - 1 - rank) / workers;
    since_exchange_ = first_extra_;
  }
}

Status LocalModel::CheckCovers(std::span<const LocalPiece> pieces) const {
  int64_t elements = 0;
  for (const LocalPiece& piece : pieces) elements += std::ssize(piece.values);
  if (elements == size_) return {};
  return {Code::kInvalidArgument, "segments of " + std::to_string(elements) +
                                      " elements for a joint model of " + std::to_string(size_)};
}

Status LocalModel::Penalize(std::span<const PenalizedPiece> pieces,
                            const Parallel& parallel) const {
  if (pull_ != PullKind::kGradient) {
    return {Code::kInvalidArgument, "this method's pull is no part of the gradients"};
  }
  for (const PenalizedPiece& piece : pieces) {
    const int64_t end = piece.offset + std::ssize(piece.values);
    if (piece.gradient.size() != piece.values.size() || piece.offset < 0 || end > size_) {
      return {Code::kInvalidArgument, "a gradient that does not lie within the joint model"};
    }
  }
  const auto alpha = static_cast<float>(told_.alpha);
  if (alpha == 0) return {};
  parallel.For(std::ssize(pieces), [&](int64_t i) {
    const PenalizedPiece& piece = pieces[static_cast<size_t>(i)];
    for (const Shard& shard : shards_) {
      const int64_t first = std::max(shard.range.offset, piece.offset);
      const int64_t last = std::min(shard.range.end(), piece.offset + std::ssize(piece.values));
      if (!shard.target || first >= last) continue;
      const auto at = static_cast<size_t>(first - piece.offset);
      const auto size = static_cast<size_t>(last - first);
      AddPenalty(
          piece.gradient.subspan(at, size), piece.values.subspan(at, size),
          std::span(*shard.target).subspan(static_cast<size_t>(first - shard.range.offset), size),
          alpha);
    }
  });
  return {};
}

template <typename Values>
Status LocalModel::CheckWithin(std::span<const GradientPiece<Values>> pieces) const {
  if (method_.gradients == 0 || !exchange_) {
    return {Code::kInvalidArgument, "this method exchanges no gradients, or nobody is there"};
  }
  for (const GradientPiece<Values>& piece : pieces) {
    if (piece.offset < 0 || std::ssize(piece.values) > size_ - piece.offset) {
      return {Code::kInvalidArgument, "a gradient that does not lie within the joint model"};
    }
  }
  return {};
}

Status LocalModel::GiveGradient(std::span<const GradientPiece<const float>> pieces, float rate,
                                int64_t iteration, int64_t now_ns, const Parallel& parallel) {
  Status within = CheckWithin(pieces);
  if (!within.ok()) return within;
  if (waits_) return {Code::kInvalidArgument, "a gradient while the one before is on its way"};
  if (!giving_) BeginGiving(rate, iteration);
  Copy(pieces, parallel);
  const auto values = giving_->values->begin();
  int64_t end = 0;  // of what has been looked at
  for (const auto& [offset, size] : giving_->written) {
    if (offset > end) std::fill(values + end, values + offset, 0.0f);
    end = std::max(end, offset + size);
  }
  std::fill(values + end, values + size_, 0.0f);
  NoteCycle(1, exchanged_ns_, now_ns);
  ++told_.exchanges;
  waits_ = true;
  waits_since_ns_ = now_ns;
  exchange_->EndGradient(iteration, std::move(giving_->values));
  giving_.reset();
  return {};
}

Status LocalModel::GiveEarly(std::span<const GradientPiece<const float>> pieces, float rate,
                             int64_t iteration, const Parallel& parallel) {
  Status within = CheckWithin(pieces);
  if (!within.ok()) return within;
  if (waits_) return {Code::kInvalidArgument, "a gradient while the one before is on its way"};
  if (!giving_) BeginGiving(rate, iteration);
  for (const GradientPiece<const float>& piece : Copy(pieces, parallel)) GiveParts(piece);
  return {};
}

void LocalModel::BeginGiving(float rate, int64_t iteration) {
  JointOrders orders = exchange_->TakeOrders();
  Giving giving;
  giving.values = std::make_shared<std::vector<float>>(std::move(orders.spare));
  giving.values->resize(static_cast<size_t>(size_) + 1);
  giving.values->back() = rate;
  const int64_t elements = PartElements(method_, size_);
  for (int64_t first = 0; first < size_; first += elements) {
    giving.missing.push_back(std::min(elements, size_ - first));
  }
  exchange_->BeginGradient(iteration, giving.values);
  giving_ = std::move(giving);
}

// Returns those that were not there. What is there may be on its way: where a step has failed in
// its middle, the next one completes what it has begun.
std::vector<GradientPiece<const float>> LocalModel::Copy(
    std::span<const GradientPiece<const float>> pieces, const Parallel& parallel) {
  std::vector<GradientPiece<const float>> fresh;
  for (const GradientPiece<const float>& piece : pieces) {
    const int64_t size = std::ssize(piece.values);
    if (size > 0 && !giving_->written.contains(piece.offset)) fresh.push_back(piece);
  }
  parallel.For(std::ssize(fresh), [&](int64_t i) {
    const GradientPiece<const float>& piece = fresh[static_cast<size_t>(i)];
    std::copy(piece.values.begin(), piece.values.end(), giving_->values->begin() + piece.offset);
  });
  for (const GradientPiece<const float>& piece : fresh) {
    giving_->written.emplace(piece.offset, std::ssize(piece.values));
  }
  return fresh;
}

// Those to which nothing is missing now that the piece is written.
void LocalModel::GiveParts(const GradientPiece<const float>& piece) {
  const int64_t elements = PartElements(method_, size_);
  const int64_t end = piece.offset + std::ssize(piece.values);
  for (int64_t at = piece.offset; at < end;) {
    const int64_t part = at / elements;
    const int64_t next = std::min(end, (part + 1) * elements);
    int64_t& missing = giving_->missing[static_cast<size_t>(part)];
    missing -= next - at;
    if (missing == 0) exchange_->GivePart(part);
    at = next;
  }
}

Status LocalModel::TakeGradient(std::span<const GradientPiece<float>> pieces, bool may_overflow,
                                int64_t now_ns, const Parallel& parallel, float* rate) {
  Status within = CheckWithin(pieces);
  if (!within.ok()) return within;
  if (!std::exchange(waits_, false)) {
    return {Code::kInvalidArgument, "no gradient was given that this would be the mean of"};
  }
  told_.waited_seconds += Seconds(now_ns - waits_since_ns_);
  exchanged_ns_ = now_ns;
  const JointValues mean = exchange_->TakeJoint();
  if (!mean)
    return {Code::kMasterLost,
            "the mean gradient of this step has not come, for the master is lost; "
            "start the job again, from its checkpoint"};
  if (std::ssize(*mean) != size_ + 1) {
    return {Code::kInternal, "the mean gradient has not come whole"};
  }
  told_.shards = 1;
  told_.alpha = 1;
  *rate = mean->back();
  std::vector<uint8_t> is_finite(pieces.size());
  parallel.For(std::ssize(pieces), [&](int64_t i) {
    const GradientPiece<float>& piece = pieces[static_cast<size_t>(i)];
    const auto from =
        std::span(*mean).subspan(static_cast<size_t>(piece.offset), piece.values.size());
    std::copy(from.begin(), from.end(), piece.values.begin());
    is_finite[static_cast<size_t>(i)] = may_overflow || IsFinite(from) ? 1 : 0;
  });
  const auto found = std::find(is_finite.begin(), is_finite.end(), 0);
  if (found == is_finite.end()) return {};
  const char* const name = pieces[static_cast<size_t>(found - is_finite.begin())].name;
  return {Code::kNotFinite, "the workers' mean gradient of " +
                                std::string(name == nullptr ? "a variable" : name) +
                                " holds a NaN or an infinity, and so no worker has made this step. "
                                "Lower the learning rate, clip the gradients (clipnorm=) or look "
                                "for a bad batch"};
}

Status LocalModel::Step(std::span<const LocalPiece> pieces, int64_t iteration, int64_t now_ns,
                        const Parallel& parallel, strom_pull_result* result) {
  *result = told_;
  if (!exchange_) return {};
  if (waits_) return {Code::kInvalidArgument, "a step while the one before waits for an exchange"};
  Status covers = CheckCovers(pieces);
  if (!covers.ok()) return covers;
  if (method_.gradients != 0) return {};
  for (Shard& shard : shards_) ++shard.steps;
  iteration_ = iteration;
  JointOrders orders = exchange_->TakeOrders();
  told_.shards = 0;
  Status status;
  if (method_.kind == STROM_MPCA) {
    if (orders.asked) {
      Shard& shard = shards_[*orders.asked % shards_.size()];
      status = GiveShard(pieces, *orders.asked, std::move(orders.spare), &shard, iteration, now_ns,
                         parallel);
    }
    for (JointOrders::Target& target : orders.targets) {
      Shard& shard = shards_[static_cast<size_t>(target.shard)];
      shard.target = std::move(target.values);
      shard.is_apart = false;
      ++told_.shards;
    }
    told_.alpha = orders.alpha;
    const double alpha = pull_ == PullKind::kStep ? orders.alpha : 0;
    Pull(pieces, static_cast<float>(alpha), parallel);
  } else {
    status = StepOfRounds(pieces, std::move(orders), iteration, now_ns, parallel);
  }
  *result = told_;
  result->waits = waits_ ? 1 : 0;
  return status;
}

// SparkNet: tau = 5 C / c (the master says it, for it sees all). EASGD: 1.3 K t / c, t of one
// download.
int64_t LocalModel::StepsToExchange(const JointOrders& orders) const {
  if (method_.steps > 0) return method_.steps;
  if (method_.kind != STROM_EASGD) return std::max<int64_t>(1, orders.steps);
  if (wait_seconds_.empty() || step_seconds_.empty()) return kFirstSteps;
  const double step = std::max(step_seconds_.Median(), 1e-6);
  const double steps = kSlack * workers_ * wait_seconds_.Median() / step;
  return std::clamp(static_cast<int64_t>(steps + .5), int64_t{1}, kMostSteps);
}

Status LocalModel::StepOfRounds(std::span<const LocalPiece> pieces, JointOrders orders,
                                int64_t iteration, int64_t now_ns, const Parallel& parallel) {
  if (++since_exchange_ < StepsToExchange(orders)) return {};
  const int64_t steps = since_exchange_ - std::exchange(first_extra_, 0);
  NoteCycle(steps, exchanged_ns_, now_ns);
  if (exchanged_ns_ != 0) {
    step_seconds_.Add(Seconds(now_ns - exchanged_ns_) / static_cast<double>(steps));
  }
  if (method_.kind == STROM_EASGD) {
    exchange_->AskJoint();
  } else {
    Status given = GiveShard(pieces, orders.round, std::move(orders.spare), &shards_.front(),
                             iteration, now_ns, parallel);
    if (!given.ok()) return given;
  }
  since_exchange_ = 0;
  waits_ = true;
  waits_since_ns_ = now_ns;
  return {};
}

// Blocks are copied as they are looked at, while the processor has them at hand. `memory` is that
// of an earlier snapshot, whose pages are there.
Status LocalModel::GiveShard(std::span<const LocalPiece> pieces, uint64_t mark,
                             std::vector<float> memory, Shard* shard, int64_t iteration,
                             int64_t now_ns, const Parallel& parallel) {
  struct Block {
    std::span<const float> from;
    float* to;
    const LocalPiece* piece;
    bool is_finite;
  };
  std::vector<float> values = std::move(memory);
  values.resize(static_cast<size_t>(shard->range.size));
  std::vector<Block> blocks;
  ForPieces(pieces, shard->range,
            [&](std::span<const float> part, int64_t offset, const LocalPiece& piece) {
              float* const to = values.data() + (offset - shard->range.offset);
              for (size_t at = 0; at < part.size(); at += kCopiedElements) {
                const size_t size = std::min<size_t>(kCopiedElements, part.size() - at);
                blocks.push_back({part.subspan(at, size), to + at, &piece, true});
              }
            });
  parallel.For(std::ssize(blocks), [&](int64_t i) {
    Block& block = blocks[static_cast<size_t>(i)];
    block.is_finite = IsFinite(block.from);
    std::copy(block.from.begin(), block.from.end(), block.to);
  });
  const auto found = std::find_if(blocks.begin(), blocks.end(),
                                  [](const Block& block) { return !block.is_finite; });
  const char* const bad = found == blocks.end() ? nullptr : NameOf(*found->piece);
  if (method_.kind == STROM_MPCA) NoteCycle(shard->steps, shard->asked_ns, now_ns);
  shard->asked_ns = now_ns;
  const int64_t steps = std::exchange(shard->steps, 0);
  if (bad != nullptr) values.clear();
  exchange_->Give(mark, iteration, steps, std::move(values));
  return NoteGiven(bad);
}

// `bad` names the variable for which nothing was given; null = all was finite.
Status LocalModel::NoteGiven(const char* bad) {
  ++told_.exchanges;
  bad_snapshots_ = bad == nullptr ? 0 : bad_snapshots_ + 1;
  if (bad_snapshots_ < kMostBadSnapshots) return {};
  return {Code::kNotFinite,
          "the variable " + std::string(bad) +
              " holds a NaN or an infinity, and so three snapshots were not sent. "
              "Lower the learning rate, clip the gradients (clipnorm=) or look "
              "for a bad batch"};
}

void LocalModel::NoteCycle(int64_t steps, int64_t since_ns, int64_t now_ns) {
  told_.cycle_steps = steps;
  if (since_ns != 0) told_.cycle_seconds = Seconds(now_ns - since_ns);
}

// How far the worker is from a target that has come is measured on the way. The other shards keep
// what was measured when theirs came, for a pass over everything each time would cost more than the
// pull. What no target has come for yet is not pulled.
void LocalModel::Pull(std::span<const LocalPiece> pieces, float alpha, const Parallel& parallel) {
  std::vector<Way> ways;
  for (Shard& shard : shards_) {
    if (!shard.target || (shard.is_apart && alpha == 0)) continue;
    ForPieces(pieces, shard.range, [&](std::span<float> part, int64_t offset, const LocalPiece&) {
      const auto target =
          std::span(*shard.target)
              .subspan(static_cast<size_t>(offset - shard.range.offset), part.size());
      for (size_t at = 0; at < part.size(); at += kPullElements) {
        const size_t size = std::min<size_t>(kPullElements, part.size() - at);
        ways.push_back({part.subspan(at, size), target.subspan(at, size), &shard, {}});
      }
    });
  }
  parallel.For(std::ssize(ways), [&](int64_t i) {
    Way& way = ways[static_cast<size_t>(i)];
    if (!way.shard->is_apart) way.apart = Measure(way.own, way.target);
    if (alpha != 0) strom::Pull(way.own, way.target, alpha);
  });
  NoteDistance(ways);
}

void LocalModel::NoteDistance(std::span<const Way> ways) {
  for (Shard& shard : shards_) {
    if (!shard.is_apart) shard.apart = {};
  }
  for (const Way& way : ways) {
    if (!way.shard->is_apart) way.shard->apart += way.apart;
  }
  told_.distance = told_.target = 0;
  for (Shard& shard : shards_) {
    shard.is_apart = true;
    told_.distance += shard.apart.distance;
    told_.target += shard.apart.target;
  }
}

Status LocalModel::Install(std::span<const LocalPiece> pieces, int64_t now_ns,
                           const Parallel& parallel, strom_pull_result* result) {
  *result = told_;
  if (!exchange_ || !std::exchange(waits_, false)) return {};
  Status covers = CheckCovers(pieces);
  if (!covers.ok()) return covers;
  told_.waited_seconds += Seconds(now_ns - waits_since_ns_);
  exchanged_ns_ = now_ns;
  const JointValues joint = exchange_->TakeJoint();
  if (!joint) {
    *result = told_;
    return {};
  }
  if (std::ssize(*joint) != size_) {
    return {Code::kInternal, "the joint model has not come whole"};
  }
  wait_seconds_.Add(Seconds(now_ns - waits_since_ns_));
  told_.shards = 1;
  Shard& whole = shards_.front();
  if (method_.kind == STROM_EASGD) {
    const auto alpha = static_cast<float>(method_.alpha);
    told_.distance = told_.target = 0;
    std::vector<float> difference(joint->size());
    const char* bad = nullptr;
    ForPieces(pieces, whole.range,
              [&](std::span<float> part, int64_t offset, const LocalPiece& piece) {
                const auto at = static_cast<size_t>(offset);
                const Divergence sums = Measure(part, std::span(*joint).subspan(at, part.size()));
                told_.distance += sums.distance;
                told_.target += sums.target;
                TakeDifference(part, std::span(*joint).subspan(at, part.size()), alpha,
                               difference.data() + at);
                if (bad == nullptr && !IsFinite(part)) bad = NameOf(piece);
              });
    told_.alpha = method_.alpha;
    if (bad != nullptr) difference.clear();
    exchange_->Give(exchanges_++, iteration_, std::exchange(whole.steps, 0), std::move(difference));
    Status given = NoteGiven(bad);
    if (!given.ok()) return given;
  } else {
    told_.alpha = method_.kind == STROM_SPARKNET ? 1 : method_.alpha;
    whole.target = joint;
    whole.is_apart = false;
    Pull(pieces, static_cast<float>(told_.alpha), parallel);
    whole.target = nullptr;
  }
  *result = told_;
  return {};
}

Status LocalModel::Finish(std::span<const float> values, int64_t iteration) {
  if (!exchange_) return {};
  if (std::ssize(values) != size_) {
    return {Code::kInvalidArgument, "a last snapshot of " + std::to_string(values.size()) +
                                        " elements for a joint model of " + std::to_string(size_)};
  }
  int32_t bad = 0;
  for (size_t i = 0; i < shards_.size(); ++i) {
    const auto part = values.subspan(static_cast<size_t>(shards_[i].range.offset),
                                     static_cast<size_t>(shards_[i].range.size));
    const bool is_finite = IsFinite(part);
    std::vector<float> copy;
    if (is_finite) copy.assign(part.begin(), part.end());
    bad += is_finite ? 0 : 1;
    exchange_->Give(LastMark(static_cast<int32_t>(i)), iteration,
                    std::exchange(shards_[i].steps, 0), std::move(copy));
  }
  exchange_ = nullptr;
  if (bad == 0) return {};
  return {Code::kNotFinite,
          "it holds a NaN or an infinity in " + std::to_string(bad) + " of its " +
              std::to_string(shards_.size()) +
              " shards, which were not sent. Lower the learning rate, clip the gradients "
              "(clipnorm=) or look for a bad batch"};
}

}  // namespace strom
