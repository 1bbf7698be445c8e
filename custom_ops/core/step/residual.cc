#include "core/step/residual.h"

#include <vector>

#include "core/step/step_kernels.h"

namespace strom {

const StepKernel kScalarStepKernel = MakeStepKernel<ScalarStep>("scalar");

namespace {

std::vector<StepKernel> KernelsOfThisProcessor() {
  std::vector<StepKernel> kernels = {kScalarStepKernel, kBlocksStepKernel};
#if defined(STROM_X86)
  if (HasAvx2()) kernels.push_back(kAvx2StepKernel);
  if (HasAvx512()) kernels.push_back(kAvx512StepKernel);
#elif defined(STROM_NEON)
  kernels.push_back(kNeonStepKernel);
#endif
  return kernels;
}

}  // namespace

std::span<const StepKernel> StepKernels() {
  static const std::vector<StepKernel> kernels = KernelsOfThisProcessor();
  return kernels;
}

const StepKernel* FindStepKernel(std::string_view name) {
  for (const StepKernel& kernel : StepKernels()) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

}  // namespace strom
