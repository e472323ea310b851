// 16 bytes of a row, and the float32 numbers in them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstdint>
#include <type_traits>

namespace yolo {

template <typename T>
constexpr int kLanes = 16 / sizeof(T);  // numbers in 16 bytes

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

template <typename T>
__device__ void unpack(const uint4& bits, float (&x)[kLanes<T>]) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, Half>) {
      const float2 pair = __half22float2(reinterpret_cast<const __half2&>(words[i]));
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    } else if constexpr (std::is_same_v<T, BFloat16>) {  // the upper half of a float32
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    } else {
      x[i] = __uint_as_float(words[i]);
    }
  }
}

template <typename T>
__device__ uint4 pack(const float (&x)[kLanes<T>]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, Half>) {
      const __half2 pair = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
      words[i] = reinterpret_cast<const uint32_t&>(pair);
    } else if constexpr (std::is_same_v<T, BFloat16>) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
      words[i] = reinterpret_cast<const uint32_t&>(pair);
    } else {
      words[i] = __float_as_uint(x[i]);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace yolo
