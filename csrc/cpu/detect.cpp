// yolo::detect on the CPU: candidates are collected in parallel over stretches of predictions, suppressed in
// parallel over images.
#include "../dispatch.h"
#include "greedy.h"

namespace yolo {
namespace {

constexpr int64_t kStretch = 2048;  // predictions a task looks at

// A raw value below this cannot pass `probability` through a logistic; the margin covers rounding.
float logit_floor(float probability) {
  if (!(probability > 0.0f && probability < 1.0f)) {
    return -std::numeric_limits<float>::infinity();
  }
  const float logit = std::log(probability / (1.0f - probability));
  return logit - 1e-3f * (1.0f + std::fabs(logit));
}

template <typename T>
class Collector {
 public:
  Collector(const Heads& heads, int head, float threshold, bool multi_label, std::vector<uint64_t>& keys)
      : heads_(heads),
        head_(heads.head[head]),
        data_(static_cast<const T*>(head_.data)),
        threshold_(threshold),
        floor_(logit_floor(threshold)),
        multi_label_(multi_label),
        keys_(keys) {}

  void run(int64_t image, int begin, int end) {
    while (begin < end) {  // one anchor at a time: its objectness values lie evenly spaced
      const int stop =
          head_.kind == kGrid ? begin + 1 : std::min(end, (begin / head_.cells + 1) * head_.cells);
      const View at = view(head_, heads_.classes, image, begin);
      for (int64_t i = 0; begin < stop; ++begin, ++i) {
        const float raw = static_cast<float>(data_[at.objectness + i * head_.cell_stride]);
        if (is_logistic(head_) && threshold_ > 0.0f && !(raw > floor_)) {
          continue;
        }
        const float objectness_value = objectness(head_, raw);
        if (is_logistic(head_) && !(objectness_value > threshold_)) {
          continue;
        }
        classes(
            data_ + at.classes + i * head_.cell_stride, at.class_step, objectness_value, head_.first + begin);
      }
    }
  }

 private:
  void classes(const T* raw, int64_t step, float objectness_value, int prediction) {
    const bool softmax = has_softmax(head_);
    float highest = 0.0f, sum = 1.0f;
    if (softmax) {
      highest = -std::numeric_limits<float>::infinity();
      for (int c = 0; c < heads_.classes; ++c) {
        highest = std::fmax(highest, static_cast<float>(raw[c * step]));
      }
      sum = 0.0f;
      for (int c = 0; c < heads_.classes; ++c) {
        sum += std::exp(static_cast<float>(raw[c * step]) - highest);
      }
    }
    const bool rising =
        (softmax || is_logistic(head_)) && objectness_value > 0.0f;  // higher values score higher
    const float bar = is_logistic(head_) && !softmax ? logit_floor(threshold_ / objectness_value)
                                                     : -std::numeric_limits<float>::infinity();
    float best = threshold_, best_raw = -std::numeric_limits<float>::infinity();
    int label = -1;
    for (int c = 0; c < heads_.classes; ++c) {
      const float x = static_cast<float>(raw[c * step]);
      if (x < bar || (!multi_label_ && rising && label >= 0 && x <= best_raw)) {
        continue;
      }
      const float probability = softmax              ? std::exp(x - highest) / sum
                                : is_logistic(head_) ? 1.0f / (1.0f + std::exp(-x))
                                                     : x;
      const float score = objectness_value * probability;
      if (score > best) {
        if (multi_label_) {
          keys_.push_back(make_key(score, static_cast<uint32_t>(prediction * heads_.classes + c)));
          continue;
        }
        best = score;
        best_raw = x;
        label = c;
      }
    }
    if (label >= 0) {
      keys_.push_back(make_key(best, static_cast<uint32_t>(prediction * heads_.classes + label)));
    }
  }

  const Heads& heads_;
  const Head& head_;
  const T* data_;
  const float threshold_, floor_;
  const bool multi_label_;
  std::vector<uint64_t>& keys_;
};

struct Task {
  int64_t image;
  int head, begin, end;
};

std::vector<Task> make_tasks(const Heads& heads) {
  std::vector<Task> tasks;
  for (int64_t image = 0; image < heads.images; ++image) {
    for (int head = 0; head < heads.heads; ++head) {
      const int count = heads.head[head].count;
      for (int begin = 0; begin < count; begin += kStretch) {
        tasks.push_back({image, head, begin, static_cast<int>(std::min<int64_t>(begin + kStretch, count))});
      }
    }
  }
  return tasks;
}

template <typename T>
void detect_images(const Heads& heads,
                   float threshold,
                   float iou_threshold,
                   int64_t max_detections,
                   bool multi_label,
                   bool class_agnostic,
                   const Rows& first) {
  const std::vector<Task> tasks = make_tasks(heads);
  std::vector<std::vector<uint64_t>> found(tasks.size());
  torch::stable::parallel_for(0, static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Collector<T>(heads, tasks[i].head, threshold, multi_label, found[i])
          .run(tasks[i].image, tasks[i].begin, tasks[i].end);
    }
  });
  const int64_t each = heads.images > 0 ? static_cast<int64_t>(tasks.size()) / heads.images : 0;
  torch::stable::parallel_for(0, heads.images, 1, [&](int64_t begin, int64_t end) {
    for (int64_t image = begin; image < end; ++image) {
      std::vector<uint64_t> keys;
      for (int64_t i = image * each; i < (image + 1) * each; ++i) {
        keys.insert(keys.end(), found[i].begin(), found[i].end());
      }
      const auto box_of = [&](uint32_t index) {
        const int prediction = static_cast<int>(index / heads.classes);
        const Head& head = heads.head[find_head(heads, prediction)];
        const View at = view(head, heads.classes, image, prediction - head.first);
        const T* t = static_cast<const T*>(head.data) + at.box;
        return decode_box(head,
                          static_cast<float>(t[0]),
                          static_cast<float>(t[at.box_step]),
                          static_cast<float>(t[2 * at.box_step]),
                          static_cast<float>(t[3 * at.box_step]),
                          prediction - head.first);
      };
      suppress(
          keys,
          box_of,
          [&](uint32_t index) { return static_cast<int64_t>(index % heads.classes); },
          iou_threshold,
          class_agnostic,
          max_detections,
          rows_of(first, image, max_detections));
    }
  });
}

Detections detect_cpu(Tensors logits,
                      std::vector<int64_t> layout,
                      std::vector<double> numbers,
                      double score_threshold,
                      double iou_threshold,
                      int64_t max_detections,
                      bool multi_label,
                      bool class_agnostic) {
  check_limits(iou_threshold, max_detections);
  const Heads heads = make_heads(logits, layout, numbers);
  Detections result = make_detections(logits[0], heads.images, max_detections);
  with_type(logits[0].scalar_type(), [&](auto type) {
    detect_images<decltype(type)>(heads,
                                  static_cast<float>(score_threshold),
                                  static_cast<float>(iou_threshold),
                                  max_detections,
                                  multi_label,
                                  class_agnostic,
                                  first_rows(result));
  });
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(yolo, CPU, m) { m.impl("detect", TORCH_BOX(&detect_cpu)); }

}  // namespace yolo
