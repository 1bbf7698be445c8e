// The chief's values for the next generation at the master, which asks for what it lacks of them.
#ifndef KERAS_STROM_CORE_MASTER_CHIEFS_VALUES_H_
#define KERAS_STROM_CORE_MASTER_CHIEFS_VALUES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/types.h"
#include "core/replication/blob.h"
#include "core/replication/control.h"
#include "core/replication/pieces.h"

namespace strom {

class ChiefsValues {
 public:
  // Announced by the chief, with a hash for each piece. `number` tells the answer to another
  // announcement's question.
  ChiefsValues(const Announce& announce, uint64_t number)
      : generation_(announce.layout.generation),
        number_(number),
        grid_(announce.layout.size),
        hashes_(announce.hashes) {}

  const std::vector<uint64_t>& hashes() const { return hashes_; }

  // What is to be asked of the chief: the pieces that neither `own`, the master's parameters, have
  // nor the chief has sent. nullopt where there are none, or they have been asked for.
  std::optional<AskPieces> TakeQuestion(std::span<const float> own);
  // How many bytes may come as `name`; nullopt = that was not asked for.
  std::optional<int64_t> MostBytes(const BlobName& name) const;
  // The answer: the values of what was asked for. "" or why the chief has to be expelled.
  std::string Add(std::vector<float> values);
  // Nothing is missing, by the master's parameters at the time of the question.
  bool IsWhole() const { return asked_ && awaited_.empty(); }
  // Makes the chief's values of the master's. False, and `own` are as they were, where these have
  // changed since the question: the next one asks for what lacks now.
  bool Install(std::vector<float>* own);

 private:
  std::vector<uint32_t> LackingIn(std::span<const float> own) const;

  uint64_t generation_ = 0;
  uint64_t number_ = 0;
  PieceGrid grid_;
  std::vector<uint64_t> hashes_;
  bool asked_ = false;
  std::vector<uint32_t> awaited_;
  std::map<std::vector<uint32_t>, std::vector<float>> answers_;  // by what was asked for
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_MASTER_CHIEFS_VALUES_H_
