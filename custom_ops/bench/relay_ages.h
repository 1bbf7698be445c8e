// How old the updates of a soak were as a worker got them: of those that were made once training
// had settled, for while workers start one after another their first parameters hold up what comes.
#ifndef KERAS_STROM_BENCH_RELAY_AGES_H_
#define KERAS_STROM_BENCH_RELAY_AGES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace strom::bench {

class UpdateAges {
 public:
  // Before the first update: those that are made earlier do not count.
  void CountFrom(int64_t settled_ns) { settled_ns_ = settled_ns; }

  void Add(int64_t made_ns, int64_t now_ns) {
    if (made_ns < settled_ns_) return;
    ages_us_.push_back(static_cast<double>(now_ns - made_ns) / 1e3);
  }

  // [p50, p99, max] in microseconds; [] = none has counted.
  std::string Json() {
    if (ages_us_.empty()) return "[]";
    std::sort(ages_us_.begin(), ages_us_.end());
    const size_t last = ages_us_.size() - 1;
    std::string text;
    for (const size_t place : {last / 2, last * 99 / 100, last}) {
      text += (text.empty() ? "" : ", ") + std::to_string(ages_us_[place]);
    }
    return "[" + text + "]";
  }

 private:
  int64_t settled_ns_ = 0;
  std::vector<double> ages_us_;
};

}  // namespace strom::bench

#endif  // KERAS_STROM_BENCH_RELAY_AGES_H_
