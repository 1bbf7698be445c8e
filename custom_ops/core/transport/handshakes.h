// What a responder spends on opening HELLOs, whose cookies are valid: each costs an X25519
// agreement. One that was of a wrong secret is known again without that; and there are so many a
// second, of addresses that have sent such ones far fewer, so that a flood of them takes little of
// the processor and nothing of the others' joins. An IPv6 network of 64 bits counts as one address:
// who has one of it has as a rule them all.
#ifndef KERAS_STROM_CORE_TRANSPORT_HANDSHAKES_H_
#define KERAS_STROM_CORE_TRANSPORT_HANDSHAKES_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>

#include "core/base/link_layer.h"
#include "core/base/mapped_ipv4.h"
#include "core/base/types.h"
#include "core/transport/crypto.h"

namespace strom {

class Handshakes {
 public:
  static constexpr size_t kMostRefused = 1024;    // HELLOs that are known again
  static constexpr size_t kMostSuspected = 1024;  // addresses
  static constexpr int64_t kIntervalNs = 2'000'000;
  static constexpr int64_t kSuspectedIntervalNs = 50'000'000;
  static constexpr int64_t kBurst = 64;  // at once, after a rest
  static constexpr int64_t kSuspectedNs = 10'000'000'000;

  bool IsRefused(const Digest& hello) const { return refused_.contains(hello); }

  // Whether there is time for another from this address now; then it counts.
  [[nodiscard]] bool MayOpen(int64_t now_ns, const Address& from) {
    const auto suspected = suspected_.find(Sender(from));
    const bool is_suspected = suspected != suspected_.end() && now_ns < suspected->second;
    const int64_t interval_ns = is_suspected ? kSuspectedIntervalNs : kIntervalNs;
    const int64_t burst = is_suspected ? 1 : kBurst;
    int64_t& spent_until_ns = is_suspected ? suspected_until_ns_ : until_ns_;
    spent_until_ns = std::max(spent_until_ns, now_ns);
    if (spent_until_ns - now_ns > (burst - 1) * interval_ns) return false;
    spent_until_ns += interval_ns;
    return true;
  }

  // The HELLO of this hash was opened in vain.
  void NoteRefused(int64_t now_ns, const Address& from, const Digest& hello) {
    if (refused_.insert(hello).second) order_.push_back(hello);
    if (order_.size() > kMostRefused) {
      refused_.erase(order_.front());
      order_.pop_front();
    }
    const std::array<uint8_t, 16> sender = Sender(from);
    if (suspected_.size() >= kMostSuspected && !suspected_.contains(sender)) {
      std::erase_if(suspected_, [&](const auto& entry) { return entry.second <= now_ns; });
      if (suspected_.size() >= kMostSuspected) suspected_.erase(suspected_.begin());
    }
    suspected_[sender] = now_ns + kSuspectedNs;
  }

 private:
  static std::array<uint8_t, 16> Sender(const Address& from) {
    std::array<uint8_t, 16> sender = from.ip;
    if (!IsMappedIpv4(from)) std::fill(sender.begin() + 8, sender.end(), uint8_t{0});
    return sender;
  }

  std::set<Digest> refused_;
  std::deque<Digest> order_;
  std::map<std::array<uint8_t, 16>, int64_t> suspected_;  // until when
  int64_t until_ns_ = 0, suspected_until_ns_ = 0;         // time that is spent
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_TRANSPORT_HANDSHAKES_H_
