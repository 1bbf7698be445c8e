#include "core/master/start_rendezvous.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "core/replication/formatting.h"

namespace strom {

namespace {

std::string Describe(const Layout& layout) {
  char text[96];
  std::snprintf(text, sizeof(text), "%" PRIu64 " shared values (layout hash %016" PRIx64 ")",
                layout.size, layout.hash);
  return text;
}

}  // namespace

std::vector<StartRendezvous::Difference> StartRendezvous::Add(int32_t rank,
                                                              const Announce& announce,
                                                              bool in_step) {
  announced_.erase(rank);
  std::vector<Difference> differences;
  for (auto entry = announced_.begin(); entry != announced_.end();) {
    const auto& [other, first] = *entry;
    const std::string text = Compare(rank, announce, in_step, other, first);
    if (text.empty()) {
      ++entry;
    } else if (in_step && !first.in_step) {
      differences.push_back({text, other});
      entry = announced_.erase(entry);
    } else {
      return {{text, in_step ? std::nullopt : std::optional(rank)}};
    }
  }
  announced_[rank] = {announce, in_step};
  if (rank == kChiefRank) chiefs_values_.emplace(announce, ++announcements_);
  return differences;
}

// "" or what does not go together.
std::string StartRendezvous::Compare(int32_t rank, const Announce& announce, bool in_step,
                                     int32_t other, const Entry& first) {
  if (announce.layout.generation != first.layout.generation) {
    if (!in_step || !first.in_step) return "";
    return WorkerName(rank) + " begins generation " + std::to_string(announce.layout.generation) +
           " but " + WorkerName(other) + " begins generation " +
           std::to_string(first.layout.generation) + "; every worker has to call fit equally often";
  }
  // Options come first, for some change the layout (threshold=None).
  if (announce.options_text != first.options_text) {
    return WorkerName(rank) + "'s options differ from " + WorkerName(other) +
           "'s: " + announce.options_text + " against " + first.options_text +
           "; give every worker the same options";
  }
  if (announce.layout != first.layout) {
    return WorkerName(rank) + "'s model differs from " + WorkerName(other) +
           "'s: " + Describe(announce.layout) + " against " + Describe(first.layout) +
           "; build the same model on every worker, and compile it alike";
  }
  if (!(announce.plan == first.plan)) {
    return WorkerName(rank) + " trains other variables than " + WorkerName(other) +
           ", or by another method; build and compile the same model on every worker";
  }
  return "";
}

std::vector<std::pair<int32_t, Layout>> StartRendezvous::TakeOvertaken() {
  uint64_t others = 0;  // what those in step begin
  for (const auto& [rank, one] : announced_) {
    if (one.in_step) others = one.layout.generation;
  }
  std::vector<std::pair<int32_t, Layout>> overtaken;
  std::erase_if(announced_, [&](const auto& entry) {
    const bool is = entry.second.layout.generation < others;
    if (is) overtaken.emplace_back(entry.first, entry.second.layout);
    return is;
  });
  return overtaken;
}

void StartRendezvous::Withdraw(int32_t rank) {
  announced_.erase(rank);
  if (rank == kChiefRank) chiefs_values_.reset();
}

std::map<int32_t, Announce> StartRendezvous::AtHand() const {
  std::map<int32_t, Announce> at_hand;
  if (announced_.empty()) return at_hand;
  const uint64_t number = layout().generation;
  for (const auto& [rank, announced] : announced_) {
    if (announced.layout.generation == number) at_hand[rank] = announced;
  }
  return at_hand;
}

std::vector<std::pair<int32_t, Announce>> StartRendezvous::TakeAll() {
  std::vector<std::pair<int32_t, Announce>> all(announced_.begin(), announced_.end());
  announced_.clear();
  return all;
}

void StartRendezvous::Clear() {
  if (announced_.empty()) return;
  const uint64_t at_hand = layout().generation;
  std::erase_if(announced_,
                [&](const auto& entry) { return entry.second.layout.generation == at_hand; });
  if (!announced_.contains(kChiefRank)) chiefs_values_.reset();
}

bool StartRendezvous::TakesPart(int32_t rank) const {
  auto found = announced_.find(rank);
  return found != announced_.end() && found->second.layout.generation == layout().generation;
}

bool StartRendezvous::IsReady(int32_t rank) const {
  if (!announced_.contains(rank)) return false;
  if (rank != kChiefRank || !TakesPart(rank)) return true;
  return HasChiefsValues();
}

uint64_t StartRendezvous::cycles() const {
  uint64_t most = 0;
  for (const auto& [rank, announced] : AtHand()) most = std::max(most, announced.cycles);
  return most;
}

const StartRendezvous::Entry& StartRendezvous::First() const {
  return std::min_element(announced_.begin(), announced_.end(),
                          [](const auto& a, const auto& b) {
                            return a.second.layout.generation < b.second.layout.generation;
                          })
      ->second;
}

}  // namespace strom
