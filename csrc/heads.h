// How a prediction is read out of a head's raw output, for both devices (yolo/ops/heads.py has the layouts).
#pragma once

#include <cstdint>

#include "boxes.h"

namespace yolo {

constexpr int kMaxHeads = 8;
constexpr int kMaxBoxes = 32;        // boxes a cell
constexpr float kSizeLimit = 16.0f;  // exp(16) anchors are 1e7 pixels; areas stay finite

enum Kind : int { kGrid = 0, kRegion = 1, kYolo = 2 };

struct Head {
  const void* data;
  int64_t image_stride, channel_stride, cell_stride;  // in elements
  int kind, boxes, width, cells;                      // boxes a cell; cells = height * width
  int count, first;                                   // predictions, and the index of the first of them
  bool softmax, squared, sqrt;
  float stride, xy_scale, xy_shift, extent;  // extent: pixels that a grid head's sizes are fractions of
  float prior[2 * kMaxBoxes];
};

struct Heads {
  int images, classes, total, heads;  // total: predictions an image
  Head head[kMaxHeads];
};

// Where the values of one prediction lie, in elements from Head::data.
struct View {
  int64_t box, objectness, classes, box_step, class_step;
};

YOLO_HD View view(const Head& head, int classes, int64_t image, int local) {
  const int64_t base = image * head.image_stride;
  if (head.kind == kGrid) {
    const int64_t cell = local / head.boxes;
    return {
        base + static_cast<int64_t>(head.cells) * (classes + head.boxes) + 4 * static_cast<int64_t>(local),
        base + static_cast<int64_t>(head.cells) * classes + local,
        base + cell * classes,
        1,
        1};
  }
  const int64_t at = base + (local / head.cells) * (5 + classes) * head.channel_stride +
                     (local % head.cells) * head.cell_stride;
  return {at,
          at + 4 * head.channel_stride,
          at + 5 * head.channel_stride,
          head.channel_stride,
          head.channel_stride};
}

YOLO_HD bool is_logistic(const Head& head) { return head.kind != kGrid && !head.squared; }

// No class of a logistic head scores more than its objectness.
YOLO_HD float objectness(const Head& head, float raw) {
  return is_logistic(head) ? 1.0f / (1.0f + expf(-raw)) : raw;
}

YOLO_HD bool has_softmax(const Head& head) { return head.softmax && !head.squared; }

YOLO_HD Box decode_box(const Head& head, float tx, float ty, float tw, float th, int local) {
  float cx, cy, w, h;
  if (head.kind == kGrid) {
    const int cell = local / head.boxes;
    cx = (tx + cell % head.width) * head.stride;
    cy = (ty + cell / head.width) * head.stride;
    w = (head.sqrt ? tw * tw : tw) * head.extent;
    h = (head.sqrt ? th * th : th) * head.extent;
  } else {
    const int cell = local % head.cells;
    const float* prior = head.prior + 2 * (local / head.cells);
    if (head.squared) {
      w = (2.0f * tw) * (2.0f * tw) * prior[0];
      h = (2.0f * th) * (2.0f * th) * prior[1];
    } else {
      tx = 1.0f / (1.0f + expf(-tx));
      ty = 1.0f / (1.0f + expf(-ty));
      w = expf(tw > kSizeLimit ? kSizeLimit : tw) * prior[0];  // a NaN stays one
      h = expf(th > kSizeLimit ? kSizeLimit : th) * prior[1];
    }
    cx = (head.xy_scale * tx - head.xy_shift + cell % head.width) * head.stride;
    cy = (head.xy_scale * ty - head.xy_shift + cell / head.width) * head.stride;
  }
  return {cx - 0.5f * w, cy - 0.5f * h, cx + 0.5f * w, cy + 0.5f * h};
}

// Which head a prediction belongs to.
YOLO_HD int find_head(const Heads& heads, int prediction) {
  int at = 0;
  while (at + 1 < heads.heads && prediction >= heads.head[at + 1].first) {
    ++at;
  }
  return at;
}

}  // namespace yolo
