// The master in a process of the driver or the launcher: the I/O thread with a MasterNode on it.
#ifndef KERAS_STROM_NET_MASTER_AGENT_H_
#define KERAS_STROM_NET_MASTER_AGENT_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "core/master/master_node.h"
#include "net/io_loop.h"

namespace strom {

struct MasterAgentOptions {
  std::string bind_address;
  uint16_t port = 0;
  UdpSocketOptions socket;
  EndpointOptions endpoint;  // its private key is made here
  MasterNodeOptions node;
  bool same_host = true;         // permits shared memory with workers of this machine
  bool has_private_key = false;  // endpoint.private_key is set; else a fresh one is made
};

class MasterAgent final : private IoLoop::Protocol {
 public:
  static Status Create(MasterAgentOptions options, std::shared_ptr<MasterAgent>* out);
  ~MasterAgent() override;

  uint16_t port() const { return loop_.socket().port(); }
  const std::array<uint8_t, 32>& public_key() const { return public_key_; }

  // See MasterNode.
  void WorkerHasEnded(int32_t rank);
  // Tells every worker to end with `reason` and ends the I/O thread. Harmless when repeated.
  void Close(const std::string& reason);

  std::string StatusJson();

 private:
  MasterAgent(const MasterAgentOptions& options, std::unique_ptr<UdpSocket> socket);

  void HandleLinkEvent(int64_t now_ns, LinkEvent event) override;
  void HandleTimeout(int64_t now_ns) override { node_.HandleTimeout(now_ns); }
  int64_t NextTimeout() const override { return node_.NextTimeout(); }
  void Publish(int64_t now_ns) override;

  const std::array<uint8_t, 32> public_key_;
  IoLoop loop_;
  MasterNode node_;                 // the I/O thread's alone, as is what follows
  std::deque<std::string> events_;  // the latest, each a JSON object
  int64_t events_total_ = 0;
};

}  // namespace strom

#endif  // KERAS_STROM_NET_MASTER_AGENT_H_
