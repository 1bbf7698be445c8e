// What the ops of one replica keep between their runs, in TensorFlow's resources of their device.
#ifndef KERAS_STROM_TF_REPLICA_RESOURCE_H_
#define KERAS_STROM_TF_REPLICA_RESOURCE_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "capi/strom.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace keras_strom {

inline std::string NameOfReplicas(const char* name, strom_handle replica) {
  return absl::StrCat(name, "_of_replica_", replica);
}

// The replica's `Resource`, made by its default constructor where there is none so far. `name` is
// that kind's own.
template <typename Resource>
absl::Status FindOfReplica(tensorflow::OpKernelContext* context, const char* name,
                           strom_handle replica,
                           tensorflow::core::RefCountPtr<Resource>* resource) {
  Resource* found = nullptr;
  TF_RETURN_IF_ERROR(context->resource_manager()->LookupOrCreate<Resource>(
      "keras_strom", NameOfReplicas(name, replica), &found, [](Resource** created) {
        *created = new Resource;
        return absl::OkStatus();
      }));
  resource->reset(found);
  return absl::OkStatus();
}

// Lets go of it, if it is there; who still holds it keeps it.
template <typename Resource>
void ForgetOfReplica(tensorflow::OpKernelContext* context, const char* name, strom_handle replica) {
  // The only error is that it is not there.
  context->resource_manager()
      ->Delete<Resource>("keras_strom", NameOfReplicas(name, replica))
      .IgnoreError();
}

}  // namespace keras_strom

#endif  // KERAS_STROM_TF_REPLICA_RESOURCE_H_
