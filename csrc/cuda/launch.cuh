// What every host function of a CUDA operator needs.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>

#include "../arguments.h"
#include "../dispatch.h"

namespace yolo {

inline cudaStream_t current_stream(const Tensor& x) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

// Device memory that lives until the call returns; the caching allocator keeps it valid in stream order.
inline Tensor make_workspace(const Tensor& like, int64_t bytes) {
  return torch::stable::new_empty(like, {bytes}, ScalarType::Byte);
}

}  // namespace yolo
