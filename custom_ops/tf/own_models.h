// A worker's own model beside what all workers share, where it trains on its full progress: the
// variables then hold x = G + r, G being the sum of all updates and r the residual.
//
// Most of the time G is kept nowhere, for it is x - r. Where somebody looks at a variable outside
// of training steps it shows G, and x is held here until training goes on, so that it does to the
// last bit. Modes in which replicas must agree in every bit keep G as well: x - r is G within
// rounding.
#ifndef KERAS_STROM_TF_OWN_MODELS_H_
#define KERAS_STROM_TF_OWN_MODELS_H_

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "capi/strom.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"

namespace keras_strom {

struct OwnModel {
  enum class State {
    kShared,  // the variable holds G, and no x is known
    kOwn,     // the variable holds x
    kShown,   // the variable shows G; training will go on from x
  };
  State state = State::kShared;
  // Of kOwn: G, in modes that keep it; of kShown: x, unless the variable was assigned.
  tensorflow::Tensor other;
  // Of kShown: what the variable shows. While it is held, nothing else can lie at its address.
  tensorflow::Tensor shown;

  // Whether a variable that shows G has been assigned another value since: `now` is its value.
  bool WasAssigned(const tensorflow::Tensor& now) const {
    return state == State::kShown && now.data() != shown.data() &&
           (now.TotalBytes() != shown.TotalBytes() ||
            std::memcmp(now.data(), shown.data(), now.TotalBytes()) != 0);
  }
};

// Variables go by their flat offset; lives as long as the replica's ops.
class OwnModels : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override { return "workers' own models of keras-strom"; }

  OwnModel Get(int64_t offset) const;
  // Gives the variable's model away: until Put, its state is kShared.
  OwnModel Take(int64_t offset);
  void Put(int64_t offset, OwnModel model);

  static absl::Status Find(tensorflow::OpKernelContext* context, strom_handle replica,
                           tensorflow::core::RefCountPtr<OwnModels>* models);

 private:
  mutable std::mutex mutex_;
  std::map<int64_t, OwnModel> models_;  // guarded by mutex_
};

}  // namespace keras_strom

#endif  // KERAS_STROM_TF_OWN_MODELS_H_
