#include "core/gathering.h"

#include <cinttypes>
#include <cstdio>

#include "core/words.h"

namespace strom {

namespace {

std::string Describe(const Layout& layout) {
  char text[96];
  std::snprintf(text, sizeof(text), "%" PRIu64 " shared values (layout hash %016" PRIx64 ")",
                layout.size, layout.hash);
  return text;
}

}  // namespace

std::string Gathering::Add(int32_t rank, const Announce& announce) {
  announced_.erase(rank);
  if (!announced_.empty()) {
    const auto& [other, first] = *announced_.begin();
    if (announce.layout.generation != first.layout.generation) {
      return WorkerName(rank) + " begins generation " + std::to_string(announce.layout.generation) +
             " but " + WorkerName(other) + " begins generation " +
             std::to_string(first.layout.generation) +
             "; every worker has to call fit equally often";
    }
    if (announce.layout != first.layout) {
      return WorkerName(rank) + "'s model differs from " + WorkerName(other) +
             "'s: " + Describe(announce.layout) + " against " + Describe(first.layout) +
             "; build the same model on every worker";
    }
    if (announce.options_text != first.options_text) {
      return WorkerName(rank) + "'s options differ from " + WorkerName(other) +
             "'s: " + announce.options_text + " against " + first.options_text +
             "; give every worker the same options";
    }
  }
  announced_[rank] = announce;
  return "";
}

void Gathering::AddSeed(int32_t rank, uint64_t generation, std::vector<float> values) {
  if (rank == kChiefRank) seed_ = {generation, std::move(values)};
}

void Gathering::Withdraw(int32_t rank) {
  announced_.erase(rank);
  if (rank == kChiefRank) seed_.reset();
}

void Gathering::Clear() {
  announced_.clear();
  seed_.reset();
}

bool Gathering::IsReady(int32_t rank) const {
  auto found = announced_.find(rank);
  if (found == announced_.end()) return false;
  if (rank != kChiefRank) return true;
  return seed_ && seed_->first == found->second.layout.generation;
}

}  // namespace strom
