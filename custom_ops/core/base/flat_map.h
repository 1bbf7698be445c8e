// A map as one sorted array: what is read and copied far more often than it gets a new key. Its
// words are those of std::map, but what is inserted or erased moves all that lies behind it.
#ifndef KERAS_STROM_CORE_BASE_FLAT_MAP_H_
#define KERAS_STROM_CORE_BASE_FLAT_MAP_H_

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <stdexcept>
#include <utility>
#include <vector>

namespace strom {

template <typename Key, typename Value>
class FlatMap {
 public:
  using value_type = std::pair<Key, Value>;
  // The key of what an iterator shows stays as it is.
  using iterator = typename std::vector<value_type>::iterator;
  using const_iterator = typename std::vector<value_type>::const_iterator;

  FlatMap() = default;
  // Of a key that comes twice the first value is taken.
  FlatMap(std::initializer_list<value_type> entries) {
    for (const value_type& entry : entries) insert(entry);
  }

  iterator begin() { return entries_.begin(); }
  iterator end() { return entries_.end(); }
  const_iterator begin() const { return entries_.begin(); }
  const_iterator end() const { return entries_.end(); }
  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }

  const value_type& back() const { return entries_.back(); }  // the largest key's

  const_iterator find(const Key& key) const {
    const const_iterator place = lower_bound(key);
    return place != end() && place->first == key ? place : end();
  }
  iterator find(const Key& key) {
    const iterator place = lower_bound(key);
    return place != end() && place->first == key ? place : end();
  }
  bool contains(const Key& key) const { return find(key) != end(); }
  const_iterator lower_bound(const Key& key) const { return Lower(entries_, key); }
  iterator lower_bound(const Key& key) { return Lower(entries_, key); }

  // Throws std::out_of_range where the key is not there.
  const Value& at(const Key& key) const {
    const const_iterator place = find(key);
    if (place == end()) throw std::out_of_range("FlatMap::at: there is no such key");
    return place->second;
  }
  Value& operator[](const Key& key) { return try_emplace(key, Value()).first->second; }
  // The entry of the key, and whether it is new; one that is there stays as it is.
  std::pair<iterator, bool> try_emplace(const Key& key, Value value) {
    const iterator place = lower_bound(key);
    if (place != end() && place->first == key) return {place, false};
    return {entries_.insert(place, {key, std::move(value)}), true};
  }
  std::pair<iterator, bool> insert(value_type entry) {
    return try_emplace(entry.first, std::move(entry.second));
  }
  // Memory for so many entries: up to them nothing that is inserted can fail.
  void reserve(size_t size) { entries_.reserve(size); }

  iterator erase(const_iterator place) { return entries_.erase(place); }
  size_t erase(const Key& key) {
    const iterator place = find(key);
    if (place == end()) return 0;
    entries_.erase(place);
    return 1;
  }
  template <typename Predicate>
  friend size_t erase_if(FlatMap& map, Predicate predicate) {
    return std::erase_if(map.entries_, predicate);
  }
  void clear() { entries_.clear(); }

  friend bool operator==(const FlatMap&, const FlatMap&) = default;

 private:
  // Most keys are looked up in their order, or are new and the largest.
  template <typename Entries>
  static auto Lower(Entries& entries, const Key& key) {
    if (!entries.empty() && entries.back().first < key) return entries.end();
    return std::lower_bound(entries.begin(), entries.end(), key,
                            [](const value_type& entry, const Key& k) { return entry.first < k; });
  }

  std::vector<value_type> entries_;  // by ascending keys
};

}  // namespace strom

#endif  // KERAS_STROM_CORE_BASE_FLAT_MAP_H_
