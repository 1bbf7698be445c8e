#include "core/master/donations.h"

#include <algorithm>
#include <utility>

#include "core/replication/formatting.h"

namespace strom {

namespace {

// A donor answers between two of its batches.
constexpr int64_t kPatienceTimeouts = 6;
// So often all are asked where a state has to be that of the round at hand.
constexpr int kMostPasses = 3;
// While a joiner's link has to drain, a look so often within the failure timeout.
constexpr int64_t kLooksPerTimeout = 500;
// ... and while one that is away may be back.
constexpr int64_t kLooksForSomebody = 20;

}  // namespace

void Donations::HandleAsk(int64_t now_ns, int32_t joiner, MasterGeneration* generation) {
  if (!generation->BeginToAsk(joiner)) {
    ++(*drops_)["question for a state by who has one or has asked"];
    return;
  }
  Donation& donation = open_[joiner];
  donation = {};
  donation.asked_ns = now_ns;
  if (!AskNext(now_ns, joiner, "", &donation, generation)) open_.erase(joiner);
}

void Donations::HandleChunk(int64_t now_ns, int32_t donor, const BlobChunk& chunk,
                            const Buffer& whole, MasterGeneration* generation) {
  const auto found = open_.find(static_cast<int32_t>(chunk.name.key));
  if (found == open_.end() || found->second.donor != donor ||
      chunk.name.generation != generation->layout().generation) {
    ++(*drops_)["state that nobody waits for"];
    return;
  }
  const int32_t joiner = found->first;
  Donation& donation = found->second;
  const bool follows = chunk.offset == donation.passed_on && chunk.offset < donation.until &&
                       static_cast<int64_t>(chunk.bytes.size()) <= kChunkBytes &&
                       (donation.total == 0 || chunk.total == donation.total);
  const char* why = nullptr;
  if (chunk.total == 0) {
    why = "has none to give";
  } else if (!follows) {
    why = "sent it out of order, or more than it was asked for";
  } else if (donation.passed_on == 0 && !generation->HoldRound(joiner, chunk.name.mark)) {
    // From the first chunk on nothing of the donor's can come before the joiner's next gradient.
    why = "gave that of another step";
  }
  if (why != nullptr) {
    if (!AskNext(now_ns, joiner, why, &donation, generation)) open_.erase(found);
    return;
  }
  host_->SendBlob(joiner, {whole});
  donation.total = chunk.total;
  donation.passed_on += chunk.bytes.size();
  donation.deadline_ns = now_ns + kPatienceTimeouts * failure_timeout_ns_;
  if (donation.passed_on < donation.total) return;
  generation->HasState(joiner);
  host_->Report({MasterEvent::Type::kDonation, joiner,
                 WorkerName(donor) + " has given " + WorkerName(joiner) +
                     " its state: " + MegabytesText(static_cast<int64_t>(donation.total)) + " in " +
                     SecondsText(now_ns - donation.asked_ns)});
  open_.erase(found);
}

void Donations::Withdraw(int32_t rank) {
  const auto found = open_.find(rank);
  if (found == open_.end()) return;
  if (found->second.donor != kNobody) host_->Send(found->second.donor, AskState{0, rank, 0});
  open_.erase(found);
}

void Donations::Advance(int64_t now_ns, MasterGeneration* generation) {
  next_look_ns_ = kNever;
  for (auto next = open_.begin(); next != open_.end();) {
    const auto at = next++;
    Donation& donation = at->second;
    const bool lost = !generation->MayDonate(donation.donor);
    if (lost || now_ns >= donation.deadline_ns) {
      const char* const why = donation.donor == kNobody ? ""
                              : lost                    ? "trains no more"
                                                        : "does not answer";
      if (!AskNext(now_ns, at->first, why, &donation, generation)) {
        open_.erase(at);
        continue;
      }
    }
    if (donation.donor == kNobody) {
      next_look_ns_ = std::min(next_look_ns_, now_ns + failure_timeout_ns_ / kLooksForSomebody);
      continue;
    }
    const bool waits = !Widen(at->first, &donation, *generation);
    // It is the joiner's link that takes its time, and no donor's would take less.
    if (waits) donation.deadline_ns = now_ns + kPatienceTimeouts * failure_timeout_ns_;
    next_look_ns_ = std::min(next_look_ns_, donation.deadline_ns);
    if (waits) {
      next_look_ns_ = std::min(next_look_ns_, now_ns + failure_timeout_ns_ / kLooksPerTimeout);
    }
  }
}

bool Donations::AskNext(int64_t now_ns, int32_t joiner, const std::string& why, Donation* donation,
                        MasterGeneration* generation) {
  const uint64_t number = generation->layout().generation;
  generation->ReleaseRound(joiner);
  if (!why.empty()) {
    host_->Send(donation->donor, AskState{number, joiner, 0});
    host_->Report({MasterEvent::Type::kDonation, joiner,
                   WorkerName(donation->donor) + " was asked for its state for " +
                       WorkerName(joiner) + " and " + why});
  }
  donation->passed_on = donation->total = 0;
  std::optional<int32_t> donor = generation->FindDonor(donation->asked);
  if (generation->IsOfGradients() && !generation->FindDonor({}) &&
      generation->MayBeBackWithState()) {
    donation->donor = kNobody;
    donation->asked.clear();
    return true;
  }
  if (!donor && generation->IsOfGradients() && ++donation->passes < kMostPasses) {
    // Who had another state then, or none yet, may have one that fits now.
    donation->asked.clear();
    donor = generation->FindDonor(donation->asked);
  }
  if (!donor && generation->IsOfGradients()) {
    RefuseWithoutState(joiner, *generation);
    return false;
  }
  if (!donor) {
    generation->HasState(joiner);  // a fresh one, which is the job's from now on
    host_->SendBlob(
        joiner,
        EncodeBlob({BlobKind::kDonation, number, static_cast<uint64_t>(joiner), 0, 0}, Bytes()));
    host_->Report({MasterEvent::Type::kDonation, joiner,
                   "nobody is left to give " + WorkerName(joiner) +
                       " a state; it goes on with a fresh optimizer"});
    return false;
  }
  donation->donor = *donor;
  donation->asked.insert(*donor);
  donation->until = window_bytes_;
  donation->deadline_ns = now_ns + kPatienceTimeouts * failure_timeout_ns_;
  host_->Send(*donor, AskState{number, joiner, donation->until});
  return true;
}

void Donations::RefuseWithoutState(int32_t joiner, const MasterGeneration& generation) {
  if (generation.FindDonor({})) {
    return host_->Fail(joiner, Code::kMasterLost,
                       "no worker has given " + WorkerName(joiner) +
                           " its state, without which it cannot step as they do; start it anew");
  }
  host_->Fail(joiner, Code::kStateLost,
              "no worker is left that has the state of this training, which " + WorkerName(joiner) +
                  " needs to step as they did: all workers have to begin again, from the job's "
                  "checkpoint if it has one");
}

// False: the joiner's link has to drain before the donor may go on.
bool Donations::Widen(int32_t joiner, Donation* donation, const MasterGeneration& generation) {
  const bool nearly_used =
      donation->until < donation->total &&
      donation->until - std::min(donation->until, donation->passed_on) < window_bytes_ / 2;
  if (!nearly_used) return true;
  if (host_->QueuedBytes(joiner) > static_cast<int64_t>(window_bytes_)) return false;
  donation->until = donation->passed_on + window_bytes_;
  host_->Send(donation->donor, AskState{generation.layout().generation, joiner, donation->until});
  return true;
}

}  // namespace strom
