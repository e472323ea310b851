// Exponential and logistic over arrays, written so that the compiler vectorises them; about one unit in the
// last place. Arguments are clamped to where float32 has normal results; a NaN stays a NaN.
#pragma once

#include <cstdint>
#include <cstring>

namespace yolo {

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define YOLO_VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define YOLO_VECTORISED
#endif

inline float exponential(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // ln 2 in two parts
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits - 0x4b400000u + 127u) << 23;  // 2^n
  float scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  return p * scale;
}

[[maybe_unused]] YOLO_VECTORISED static void exponential(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    x[i] = exponential(x[i]);
  }
}

[[maybe_unused]] YOLO_VECTORISED static void logistic(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    x[i] = 1.0f / (1.0f + exponential(-x[i]));
  }
}

}  // namespace yolo
