// An in-memory network of LinkLayers on a virtual clock, for tests of what stands above the links.
//
// Every message takes a random time; control and state stay in order, updates overtake each other.
// Hosts can be killed and cut off. Everything follows from the seed, so a failing run replays.
#ifndef KERAS_STROM_SIM_MEMORY_LINKS_H_
#define KERAS_STROM_SIM_MEMORY_LINKS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "core/link_layer.h"
#include "core/types.h"

namespace strom {

struct MemoryNetworkOptions {
  int64_t min_delay_ns = 50'000;
  int64_t max_delay_ns = 5'000'000;
  int64_t failure_timeout_ns = 5'000'000'000;
};

class MemoryNetwork {
 public:
  using Sink = std::function<void(int64_t now_ns, LinkEvent event)>;

  MemoryNetwork(uint64_t seed, const MemoryNetworkOptions& options);
  ~MemoryNetwork();

  // A host at `address`; its link events go to `sink`, which must be set before any arrives.
  LinkLayer* AddHost(const Address& address);
  void SetSink(LinkLayer* host, Sink sink);

  // Its process ends: nothing more leaves or reaches it; peers notice after the failure timeout.
  void Kill(LinkLayer* host);
  // Its links go silent; both ends notice after the failure timeout. New links work again from
  // `until_ns` on.
  void CutOff(LinkLayer* host, int64_t until_ns);

  // When the next delivery is due; kNever = none is under way.
  int64_t NextDelivery() const;
  // Delivers everything due at `now_ns`.
  void Deliver(int64_t now_ns);

 private:
  class Host;
  struct Delivery;
  struct End {
    Host* host = nullptr;
    LinkId link = 0;
    bool open = true;  // still hears of this connection
    // Of what this end sent, by channel.
    int64_t queued_bytes[kChannels] = {};
    int64_t last_arrival_ns[kChannels] = {};
    uint64_t voided_before[kChannels] = {};
    bool held_back = false;  // of what is sent to it
    std::vector<Delivery> held;
  };
  struct Connection {
    End ends[2];  // initiator, responder
    bool up = false;
    bool cut = false;
    int64_t base_delay_ns = 0;
  };
  struct Delivery {
    int64_t due_ns;
    uint64_t sequence;
    std::shared_ptr<Connection> connection;
    int to;  // index of the end
    LinkEvent event;
    bool ends_link;  // also where the connection is cut
  };
  struct Later {
    bool operator()(const Delivery& a, const Delivery& b) const {
      return a.due_ns != b.due_ns ? a.due_ns > b.due_ns : a.sequence > b.sequence;
    }
  };

  int64_t RandomDelay(const Connection& connection);
  void Post(int64_t due_ns, const std::shared_ptr<Connection>& connection, int to, LinkEvent event);
  void Cut(const std::shared_ptr<Connection>& connection, int64_t now_ns);

  const MemoryNetworkOptions options_;
  std::mt19937_64 random_;
  int64_t now_ns_ = 0;
  uint64_t sequence_ = 0;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::priority_queue<Delivery, std::vector<Delivery>, Later> deliveries_;
};

}  // namespace strom

#endif  // KERAS_STROM_SIM_MEMORY_LINKS_H_
