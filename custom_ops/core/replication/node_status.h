// What master's and worker's StatusJson have in common.
#ifndef KERAS_STROM_CORE_REPLICATION_NODE_STATUS_H_
#define KERAS_STROM_CORE_REPLICATION_NODE_STATUS_H_

#include <cstdint>
#include <map>
#include <string>

#include "core/base/exchange.h"
#include "core/base/json.h"
#include "core/base/types.h"
#include "core/replication/replication.h"

namespace strom {

// Why something from the network was not used -> how often.
using DropCounters = std::map<std::string, int64_t>;

// Of workers; what a master has published is counted by itself.
inline std::string VectorJson(const VersionVector& vector) {
  JsonObject json;
  for (const auto& [origin, counter] : vector) {
    if (!IsOfMaster(origin)) json.Add(std::to_string(origin).c_str(), counter);
  }
  return json.Text();
}

inline uint64_t PublicationsIn(const VersionVector& vector) {
  uint64_t publications = 0;
  for (const auto& [origin, counter] : vector) publications += IsOfMaster(origin) ? counter : 0;
  return publications;
}

inline std::string DropsJson(const DropCounters& drops) {
  JsonObject json;
  for (const auto& [reason, count] : drops) json.Add(reason.c_str(), count);
  return json.Text();
}

inline void AddReplication(const Replication& replication, JsonObject* json) {
  json->AddRaw("received", VectorJson(replication.received()))
      .Add("ring_bytes", replication.ring_bytes())
      .Add("retained_updates", replication.retained())
      .Add("publications", PublicationsIn(replication.received()))
      .Add("held_bytes", replication.hold_bytes());
}

}  // namespace strom

#endif  // KERAS_STROM_CORE_REPLICATION_NODE_STATUS_H_
