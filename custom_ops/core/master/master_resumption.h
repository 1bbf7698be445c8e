// A master that has none of the job's state, and workers that were in the middle of a generation
// when the master before it was lost: from whose replica training goes on.
//
// The others' replicas differ from that one by what was on its way. Each worker sends its own
// updates again that it lacks; what workers made that are gone, and it does not contain, is
// dropped.
#ifndef KERAS_STROM_CORE_MASTER_MASTER_RESUMPTION_H_
#define KERAS_STROM_CORE_MASTER_MASTER_RESUMPTION_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/base/link_layer.h"
#include "core/replication/control.h"

namespace strom {

// A new master waits this many failure timeouts after the last worker has come before it goes on
// without the rest. A worker that was stopped for just under one timeout notices the master's loss
// up to one timeout later than the others, and its first attempts to join may be lost.
inline constexpr int64_t kTimeoutsToComeBack = 2;

class Resumption {
 public:
  // Nobody is asked before all `workers` are here, or nobody else has come for
  // `kTimeoutsToComeBack`. Who does not answer within a failure timeout is not waited for alone:
  // another one is asked, too.
  Resumption(int32_t workers, int64_t failure_timeout_ns)
      : workers_(workers), failure_timeout_ns_(failure_timeout_ns) {}

  void Add(int64_t now_ns, int32_t rank, const AskResume& resume);
  void Withdraw(int32_t rank);
  void Clear();
  bool empty() const { return resumes_.empty(); }
  bool Has(int32_t rank) const { return resumes_.contains(rank); }
  const std::map<int32_t, AskResume>& resumes() const { return resumes_; }

  // Whom to ask for its replica now; nullopt = nobody. Call it again until then.
  struct Question {
    int32_t rank = -1;
    AskReplica ask;
  };
  std::optional<Question> TakeQuestion(int64_t now_ns);
  int64_t NextTimeout() const { return resumes_.empty() ? kNever : next_question_ns_; }

  // The layout of whom a question of this number may have been put to; null = nobody waits for it.
  const Layout* Awaits(int32_t rank, uint64_t number) const {
    const auto found = resumes_.find(rank);
    const bool awaits = found != resumes_.end() && asked_.contains(rank) && number <= last_number_;
    return awaits ? &found->second.layout : nullptr;
  }
  // A donor's answer comes in two parts.
  void AddCut(int32_t rank, const ReplicaCut& replica);
  void AddParameters(int32_t rank, uint64_t number, std::vector<float> parameters);
  struct Whole {
    int32_t rank = -1;
    AskResume resume;
    VersionVector cut;
    std::vector<float> parameters;
  };
  // Once: the first replica that is here with both parts, and has the size of its layout.
  std::optional<Whole> TakeWhole();

  // How many updates of workers that have not resumed `cut` lacks and somebody has applied.
  uint64_t DroppedBeyond(const VersionVector& cut, const std::set<uint64_t>& resumed) const;

 private:
  struct Answer {
    std::optional<ReplicaCut> cut;
    std::optional<uint64_t> number;  // of the question that these answer; nullopt = none are here
    std::vector<float> parameters;
  };
  bool IsBetter(const AskResume& one, const AskResume& other) const;
  bool LeavesNobodyBehind(const AskResume& donor) const;

  const int32_t workers_;
  const int64_t failure_timeout_ns_;
  std::map<int32_t, AskResume> resumes_;  // by rank
  std::set<int32_t> seen_;                // who has resumed once, ranks
  std::set<int32_t> asked_;
  std::map<int32_t, Answer> answers_;
  int64_t next_question_ns_ = kNever;
  uint64_t last_number_ = 0;  // of a question
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_MASTER_RESUMPTION_H_
