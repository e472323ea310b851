// The activations that follow a batch norm, and their derivatives, on CUDA (yolo/ops/norm.py has the formulas in
// PyTorch). The exponential and the reciprocal are the fast ones: a few units in the last place of float32.
#pragma once

#include <cuda_runtime.h>

namespace yolo {

enum class Act : int { kLinear = 0, kLeaky = 1, kMish = 2, kSilu = 3 };  // yolo/ops/norm.py has the names

__device__ inline float fast_exp(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.44269504f));
  return result;
}

__device__ inline float fast_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// tanh(softplus(z)) = n / (n + 2) with e = exp(z), n = e (e + 2); it is 1 in float32 long before z = 20.
struct MishParts {
  float e, inverse, gate;  // inverse: 1 / (n + 2)
};

__device__ inline MishParts mish_parts(float z) {
  const float e = fast_exp(z > 20.0f ? 20.0f : z), n = e * (e + 2.0f), inverse = fast_reciprocal(n + 2.0f);
  return {e, inverse, n * inverse};
}

template <Act act>
__device__ float activate(float z, float slope) {
  if constexpr (act == Act::kLeaky) {
    return z > 0.0f ? z : z * slope;
  } else if constexpr (act == Act::kMish) {
    return z * mish_parts(z).gate;
  } else if constexpr (act == Act::kSilu) {
    return z * fast_reciprocal(1.0f + fast_exp(-z));
  } else {
    return z;
  }
}

// grad times the derivative at z.
template <Act act>
__device__ float deactivate(float grad, float z, float slope) {
  if constexpr (act == Act::kLeaky) {
    return z > 0.0f ? grad : grad * slope;
  } else if constexpr (act == Act::kMish) {
    const MishParts m = mish_parts(z);
    // (1 - gate^2) logistic(z) = 4 e (e + 1) / (n + 2)^2
    return grad * fmaf(z * 4.0f * m.e * (m.e + 1.0f) * m.inverse, m.inverse, m.gate);
  } else if constexpr (act == Act::kSilu) {
    const float logistic = fast_reciprocal(1.0f + fast_exp(-z));
    return grad * logistic * fmaf(z, 1.0f - logistic, 1.0f);
  } else {
    return grad;
  }
}

}  // namespace yolo
