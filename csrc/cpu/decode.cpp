// yolo::decode_boxes on the CPU: blocks of predictions in parallel.
#include <algorithm>
#include <vector>

#include "../arguments.h"
#include "../dispatch.h"
#include "math.h"

namespace yolo {
namespace {

constexpr int kBlock = 64;    // predictions a task decodes
constexpr int kClasses = 32;  // classes transposed at a time

// Class probabilities of `n` predictions, `table[c * kBlock + i]`, from raw values.
void activate(const Head& head, int classes, int n, float* table) {
  if (has_softmax(head)) {
    float highest[kBlock], sum[kBlock] = {};
    std::copy(table, table + kBlock, highest);
    for (int c = 1; c < classes; ++c) {
      for (int i = 0; i < n; ++i) {
        highest[i] = std::fmax(highest[i], table[c * kBlock + i]);
      }
    }
    for (int c = 0; c < classes; ++c) {
      for (int i = 0; i < n; ++i) {
        table[c * kBlock + i] -= highest[i];
      }
    }
    exponential(table, static_cast<int64_t>(classes) * kBlock);
    for (int c = 0; c < classes; ++c) {
      for (int i = 0; i < n; ++i) {
        sum[i] += table[c * kBlock + i];
      }
    }
    for (int c = 0; c < classes; ++c) {
      for (int i = 0; i < n; ++i) {
        table[c * kBlock + i] /= sum[i];
      }
    }
  } else if (is_logistic(head)) {
    logistic(table, static_cast<int64_t>(classes) * kBlock);
  }
}

template <typename T>
void decode_block(
    const Heads& heads, const Head& head, int64_t image, int begin, int n, Box* boxes, float* scores) {
  const T* data = static_cast<const T*>(head.data);
  const int classes = heads.classes;
  float confidence[kBlock] = {};
  View at[kBlock];
  for (int i = 0; i < n; ++i) {
    at[i] = view(head, classes, image, begin + i);
    const T* t = data + at[i].box;
    const int64_t step = at[i].box_step;
    boxes[i] = decode_box(head,
                          static_cast<float>(t[0]),
                          static_cast<float>(t[step]),
                          static_cast<float>(t[2 * step]),
                          static_cast<float>(t[3 * step]),
                          begin + i);
    confidence[i] = objectness(head, static_cast<float>(data[at[i].objectness]));
  }
  // A softmax needs all classes at once; otherwise a few at a time stay in the cache.
  const int width = has_softmax(head) ? classes : std::min(classes, kClasses);
  std::vector<float> table(static_cast<size_t>(width) * kBlock, 0.0f);
  for (int from = 0; from < classes; from += width) {
    const int some = std::min(width, classes - from);
    for (int c = 0; c < some; ++c) {
      for (int i = 0; i < n; ++i) {
        table[c * kBlock + i] = static_cast<float>(data[at[i].classes + (from + c) * at[i].class_step]);
      }
    }
    activate(head, some, n, table.data());
    for (int i = 0; i < n; ++i) {
      float* row = scores + static_cast<int64_t>(i) * classes + from;
      for (int c = 0; c < some; ++c) {
        row[c] = confidence[i] * table[c * kBlock + i];
      }
    }
  }
}

std::tuple<Tensor, Tensor> decode_cpu(Tensors logits,
                                      std::vector<int64_t> layout,
                                      std::vector<double> numbers) {
  const Heads heads = make_heads(logits, layout, numbers);
  const int64_t images = heads.images, total = heads.total, classes = heads.classes;
  Tensor boxes = torch::stable::new_empty(logits[0], {images, total, 4}, ScalarType::Float);
  Tensor scores = torch::stable::new_empty(logits[0], {images, total, classes}, ScalarType::Float);
  auto* first_box = static_cast<Box*>(boxes.mutable_data_ptr());
  auto* first_score = static_cast<float*>(scores.mutable_data_ptr());
  with_type(logits[0].scalar_type(), [&](auto type) {
    for (int h = 0; h < heads.heads; ++h) {
      const Head& head = heads.head[h];
      const int64_t blocks = (head.count + kBlock - 1) / kBlock;
      torch::stable::parallel_for(0, images * blocks, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t image = i / blocks;
          const int from = static_cast<int>(i % blocks) * kBlock;
          const int64_t at = image * total + head.first + from;
          decode_block<decltype(type)>(heads,
                                       head,
                                       image,
                                       from,
                                       std::min(kBlock, head.count - from),
                                       first_box + at,
                                       first_score + at * classes);
        }
      });
    }
  });
  return {boxes, scores};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(yolo, CPU, m) { m.impl("decode_boxes", TORCH_BOX(&decode_cpu)); }

}  // namespace yolo
