// yolo::nms on the CPU: images in parallel.
#include "greedy.h"

namespace yolo {
namespace {

Detections nms_cpu(const Tensor& boxes,
                   const Tensor& scores,
                   const Tensor& labels,
                   double iou_threshold,
                   double score_threshold,
                   int64_t max_detections,
                   bool class_agnostic) {
  check_boxes(boxes, scores, labels);
  check_limits(iou_threshold, max_detections);
  const Tensor b = torch::stable::contiguous(boxes), s = torch::stable::contiguous(scores),
               l = torch::stable::contiguous(labels);
  const int64_t images = boxes.size(0), total = boxes.size(1);
  Detections result = make_detections(boxes, images, max_detections);
  const Rows first = first_rows(result);
  const auto* all_boxes = static_cast<const Box*>(b.const_data_ptr());
  const auto* all_scores = static_cast<const float*>(s.const_data_ptr());
  const auto* all_labels = static_cast<const int64_t*>(l.const_data_ptr());
  const auto bar = static_cast<float>(score_threshold);
  torch::stable::parallel_for(0, images, 1, [&](int64_t begin, int64_t end) {
    for (int64_t image = begin; image < end; ++image) {
      std::vector<uint64_t> keys;
      for (int64_t i = 0; i < total; ++i) {
        const float score = all_scores[image * total + i];
        if (score > bar) {
          keys.push_back(make_key(score, static_cast<uint32_t>(i)));
        }
      }
      suppress(
          keys,
          [&](uint32_t index) { return all_boxes[image * total + index]; },
          [&](uint32_t index) { return all_labels[image * total + index]; },
          static_cast<float>(iou_threshold),
          class_agnostic,
          max_detections,
          rows_of(first, image, max_detections));
    }
  });
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(yolo, CPU, m) { m.impl("nms", TORCH_BOX(&nms_cpu)); }

}  // namespace yolo
