// From the arguments of the operators to Heads, with the checks that keep memory safe. The full messages are
// Python's (yolo/ops/layout.py), which has seen the same arguments before.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <limits>
#include <tuple>
#include <vector>

#include "heads.h"

namespace yolo {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Tensors = std::vector<Tensor>;
using Detections = std::tuple<Tensor, Tensor, Tensor, Tensor>;  // boxes, scores, labels, count

constexpr size_t kLayoutInts = 7;  // a head: kind, classes, boxes, side, softmax, squared, sqrt

// A head is read through three strides; anything else (a slice of rows, say) is copied first.
inline Tensor readable(const Tensor& x, bool grid) {
  const bool plain = grid ? x.stride(1) == 1 : x.stride(2) == x.size(3) * x.stride(3);
  return plain ? x : torch::stable::contiguous(x);
}

// The tensors in `logits` are replaced where they had to be copied, and must outlive the result.
inline Heads make_heads(Tensors& logits,
                        const std::vector<int64_t>& layout,
                        const std::vector<double>& numbers) {
  STD_TORCH_CHECK(
      !logits.empty() && logits.size() <= kMaxHeads && layout.size() == kLayoutInts * logits.size(),
      "got ",
      logits.size(),
      " head outputs and ",
      layout.size(),
      " layout numbers; wanted 1 to ",
      kMaxHeads,
      " outputs with ",
      kLayoutInts,
      " numbers each");
  Heads heads{};
  heads.images = static_cast<int>(logits[0].size(0));
  heads.classes = static_cast<int>(layout[1]);
  heads.heads = static_cast<int>(logits.size());
  size_t at = 0;
  int64_t total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const int64_t* row = layout.data() + kLayoutInts * i;
    const bool grid = row[0] == kGrid;
    const int64_t boxes = row[2], side = row[3];
    const int64_t channels = grid ? side * side * (5 * boxes + row[1]) : boxes * (5 + row[1]);
    Tensor& x = logits[i];
    STD_TORCH_CHECK(row[0] >= kGrid && row[0] <= kYolo && row[1] == heads.classes && row[1] > 0 &&
                        boxes > 0 && boxes <= kMaxBoxes,
                    "head ",
                    i,
                    ": wanted a kind of 0 to 2, the classes of head 0 and 1 to ",
                    kMaxBoxes,
                    " boxes a cell, got ",
                    row[0],
                    ", ",
                    row[1],
                    " and ",
                    boxes);
    STD_TORCH_CHECK(x.dim() == (grid ? 2 : 4) && x.size(1) == channels && x.size(0) == heads.images,
                    "head ",
                    i,
                    ": wanted ",
                    heads.images,
                    " images of ",
                    channels,
                    " channels");
    STD_TORCH_CHECK(x.scalar_type() == logits[0].scalar_type() && x.device() == logits[0].device(),
                    "head ",
                    i,
                    ": wanted the type and device of head 0");
    x = readable(x, grid);
    Head& head = heads.head[i];
    const size_t priors = grid ? 0 : 2 * static_cast<size_t>(boxes);
    STD_TORCH_CHECK(at + 2 + priors <= numbers.size(), "head ", i, ": wanted ", priors / 2, " anchors");
    head.data = x.const_data_ptr();
    head.image_stride = x.stride(0);
    head.channel_stride = x.stride(1);
    head.cell_stride = grid ? 0 : x.stride(3);
    head.kind = static_cast<int>(row[0]);
    head.boxes = static_cast<int>(boxes);
    head.width = static_cast<int>(grid ? side : x.size(3));
    head.softmax = row[4] != 0;
    head.squared = row[5] != 0;
    head.sqrt = row[6] != 0;
    head.stride = static_cast<float>(numbers[at]);
    head.xy_scale = static_cast<float>(numbers[at + 1]);
    head.xy_shift = static_cast<float>(0.5 * (numbers[at + 1] - 1.0));
    head.extent = static_cast<float>(numbers[at] * static_cast<double>(side));
    for (size_t k = 0; k < priors; ++k) {
      head.prior[k] = static_cast<float>(numbers[at + 2 + k]);
    }
    at += 2 + priors;
    const int64_t cells = grid ? side * side : x.size(2) * x.size(3);
    head.cells = static_cast<int>(cells);
    head.count = static_cast<int>(cells * boxes);
    head.first = static_cast<int>(total);
    total += cells * boxes;
    STD_TORCH_CHECK(total * heads.classes <= std::numeric_limits<int32_t>::max(),
                    "an image has more than 2^31 predictions times classes");
  }
  heads.total = static_cast<int>(total);
  return heads;
}

inline Detections make_detections(const Tensor& like, int64_t images, int64_t rows) {
  return {torch::stable::new_empty(like, {images, rows, 4}, ScalarType::Float),
          torch::stable::new_empty(like, {images, rows}, ScalarType::Float),
          torch::stable::new_empty(like, {images, rows}, ScalarType::Long),
          torch::stable::new_empty(like, {images}, ScalarType::Long)};
}

// The rows of one image in the result.
struct Rows {
  Box* boxes;
  float* scores;
  int64_t* labels;
  int64_t* count;
};

inline Rows first_rows(const Detections& result) {
  return {static_cast<Box*>(std::get<0>(result).mutable_data_ptr()),
          static_cast<float*>(std::get<1>(result).mutable_data_ptr()),
          static_cast<int64_t*>(std::get<2>(result).mutable_data_ptr()),
          static_cast<int64_t*>(std::get<3>(result).mutable_data_ptr())};
}

YOLO_HD Rows rows_of(const Rows& first, int64_t image, int64_t limit) {
  return {first.boxes + image * limit,
          first.scores + image * limit,
          first.labels + image * limit,
          first.count + image};
}

inline void check_limits(double iou_threshold, int64_t max_detections) {
  STD_TORCH_CHECK(iou_threshold >= 0.0 && iou_threshold <= 1.0,
                  "iou_threshold must lie between 0 and 1, got ",
                  iou_threshold);
  STD_TORCH_CHECK(max_detections >= 1 && max_detections <= std::numeric_limits<int32_t>::max(),
                  "max_detections must be at least 1, got ",
                  max_detections);
}

inline void check_boxes(const Tensor& boxes, const Tensor& scores, const Tensor& labels) {
  STD_TORCH_CHECK(boxes.dim() == 3 && boxes.size(2) == 4 && scores.dim() == 2 && labels.dim() == 2,
                  "boxes must be [N, M, 4], scores and labels [N, M]");
  STD_TORCH_CHECK(scores.size(0) == boxes.size(0) && scores.size(1) == boxes.size(1) &&
                      labels.size(0) == boxes.size(0) && labels.size(1) == boxes.size(1),
                  "scores and labels must be [",
                  boxes.size(0),
                  ", ",
                  boxes.size(1),
                  "] like boxes");
  STD_TORCH_CHECK(boxes.scalar_type() == ScalarType::Float && scores.scalar_type() == ScalarType::Float &&
                      labels.scalar_type() == ScalarType::Long,
                  "boxes and scores must be float32 and labels int64");
  STD_TORCH_CHECK(scores.device() == boxes.device() && labels.device() == boxes.device(),
                  "scores and labels must be on the device of boxes");
  STD_TORCH_CHECK(boxes.size(1) <= std::numeric_limits<int32_t>::max(), "an image has more than 2^31 boxes");
}

}  // namespace yolo
