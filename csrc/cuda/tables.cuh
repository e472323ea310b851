// What the host functions of training operators share: float32 tables of channels, activations, multiprocessors.
#pragma once

#include "../activations.h"
#include "launch.cuh"

namespace yolo {

inline int multiprocessors(const Tensor& x) {
  int count = 0;
  const auto error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, x.get_device_index());
  STD_TORCH_CHECK(error == cudaSuccess, "cannot count multiprocessors: ", cudaGetErrorString(error));
  return count;
}

inline const float* floats(const Tensor& x) { return static_cast<const float*>(x.const_data_ptr()); }

inline float* results(const Tensor& x) { return static_cast<float*>(x.mutable_data_ptr()); }

inline void check_table(const Tensor& table, const Tensor& x, int64_t numbers, const char* name) {
  STD_TORCH_CHECK(table.numel() == numbers && table.scalar_type() == ScalarType::Float && table.is_contiguous() &&
                      table.device() == x.device(),
                  name,
                  " must be ",
                  numbers,
                  " float32 numbers on the device of x");
}

inline Act to_act(int64_t index) {
  STD_TORCH_CHECK(index >= 0 && index <= 3, "act must be 0 to 3, got ", index);
  return static_cast<Act>(index);
}

}  // namespace yolo
