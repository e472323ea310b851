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

// Two numbers of half precision in a word.
template <typename T>
__device__ void unpack_pair(uint32_t word, float& first, float& second) {
  if constexpr (std::is_same_v<T, Half>) {
    const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word));
    first = pair.x;
    second = pair.y;
  } else {  // bfloat16: the upper half of a float32
    first = __uint_as_float(word << 16);
    second = __uint_as_float(word & 0xffff0000u);
  }
}

template <typename T>
__device__ uint32_t pack_pair(float first, float second) {
  if constexpr (std::is_same_v<T, Half>) {
    const __half2 pair = __floats2half2_rn(first, second);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

template <typename T>
__device__ void unpack(const uint4& bits, float (&x)[kLanes<T>]) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      x[i] = __uint_as_float(words[i]);
    } else {
      unpack_pair<T>(words[i], x[2 * i], x[2 * i + 1]);
    }
  }
}

template <typename T>
__device__ uint4 pack(const float (&x)[kLanes<T>]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      words[i] = __float_as_uint(x[i]);
    } else {
      words[i] = pack_pair<T>(x[2 * i], x[2 * i + 1]);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace yolo
