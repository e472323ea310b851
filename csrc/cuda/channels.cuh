// Tensors as rows of pixels: [N, C, H, W] whose memory is [N, H, W, C], read 16 bytes at a time.
#pragma once

#include <cstdint>

#include "launch.cuh"

namespace yolo {

// Whether the memory of x is [N, H, W, C] without gaps; axes of one element have no say.
inline bool is_channels_last(const Tensor& x) {
  int64_t step = 1;
  for (const int axis : {1, 3, 2, 0}) {
    if (x.size(axis) != 1) {
      if (x.stride(axis) != step) {
        return false;
      }
      step *= x.size(axis);
    }
  }
  return true;
}

inline void check_channels_last(const Tensor& x, const char* name) {
  STD_TORCH_CHECK(x.dim() == 4, name, " must be [N, C, H, W], got ", x.dim(), " axes");
  STD_TORCH_CHECK(is_channels_last(x) && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0,
                  name,
                  " must be channels last, without gaps and aligned to 16 bytes");
}

// Vectors of 16 bytes in a pixel.
inline int64_t vectors_of(const Tensor& x) {
  const int64_t channels = x.size(1), lanes = 16 / static_cast<int64_t>(x.element_size());
  STD_TORCH_CHECK(
      channels > 0 && channels % lanes == 0, "wanted a multiple of ", lanes, " channels, got ", channels);
  return channels / lanes;
}

inline const uint4* vectors(const Tensor& x) { return static_cast<const uint4*>(x.const_data_ptr()); }

}  // namespace yolo
