// Boxes and their overlap, for both devices. Lengths in pixels, exclusive right and bottom edges.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define YOLO_HD __host__ __device__ inline
#else
#define YOLO_HD inline
#endif

namespace yolo {

struct alignas(16) Box {
  float x1, y1, x2, y2;
};

YOLO_HD float area(const Box& box) { return fmaxf(box.x2 - box.x1, 0.0f) * fmaxf(box.y2 - box.y1, 0.0f); }

// Infinity minus itself and NaN are not zero, so this is one test for all four.
YOLO_HD bool is_finite(const Box& box) {
  return (box.x1 - box.x1) + (box.y1 - box.y1) + (box.x2 - box.x2) + (box.y2 - box.y2) == 0.0f;
}

// IoU strictly above the threshold, without a division; the PyTorch reference does the same operations.
YOLO_HD bool overlaps(const Box& a, float area_a, const Box& b, float area_b, float threshold) {
  const float w = fmaxf(fminf(a.x2, b.x2) - fmaxf(a.x1, b.x1), 0.0f);
  const float h = fmaxf(fminf(a.y2, b.y2) - fmaxf(a.y1, b.y1), 0.0f);
  const float intersection = w * h;
  return intersection > threshold * (area_a + area_b - intersection);
}

// A candidate as one number: sorting keys downwards sorts by score, and equal scores by ascending index.
YOLO_HD uint64_t make_key(float score, uint32_t index) {
  score += 0.0f;  // -0 and 0 are equal scores
  uint32_t bits;
  memcpy(&bits, &score, sizeof(bits));
  bits = (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;  // the order of floats as the order of integers
  return static_cast<uint64_t>(bits) << 32 | (0xffffffffu - index);
}

YOLO_HD uint32_t key_index(uint64_t key) { return 0xffffffffu - static_cast<uint32_t>(key); }

YOLO_HD float key_score(uint64_t key) {
  uint32_t bits = static_cast<uint32_t>(key >> 32);
  bits = (bits & 0x80000000u) ? bits & 0x7fffffffu : ~bits;
  float score;
  memcpy(&score, &bits, sizeof(score));
  return score;
}

}  // namespace yolo
