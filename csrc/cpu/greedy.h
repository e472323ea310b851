// Class-aware greedy suppression of one image.
#pragma once

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <vector>

#include "../arguments.h"

namespace yolo {

// The boxes kept so far that may suppress each other, coordinate by coordinate so that the loop vectorises.
class Kept {
 public:
  bool suppresses(const Box& box, float size, float threshold) const {
    constexpr size_t kStep = 16;
    size_t i = 0;
    for (; i + kStep <= areas_.size(); i += kStep) {
      int hit = 0;
      for (size_t k = i; k < i + kStep; ++k) {
        hit |= test(k, box, size, threshold);
      }
      if (hit != 0) {
        return true;
      }
    }
    for (; i < areas_.size(); ++i) {
      if (test(i, box, size, threshold)) {
        return true;
      }
    }
    return false;
  }

  void add(const Box& box, float size) {
    x1_.push_back(box.x1);
    y1_.push_back(box.y1);
    x2_.push_back(box.x2);
    y2_.push_back(box.y2);
    areas_.push_back(size);
  }

 private:
  // The same operations as overlaps(), with comparisons that compile to min and max (all values are finite).
  bool test(size_t k, const Box& box, float size, float threshold) const {
    const float left = x1_[k] > box.x1 ? x1_[k] : box.x1, right = x2_[k] < box.x2 ? x2_[k] : box.x2;
    const float top = y1_[k] > box.y1 ? y1_[k] : box.y1, bottom = y2_[k] < box.y2 ? y2_[k] : box.y2;
    const float w = right - left > 0.0f ? right - left : 0.0f, h = bottom - top > 0.0f ? bottom - top : 0.0f;
    const float intersection = w * h;
    return intersection > threshold * (areas_[k] + size - intersection);
  }

  std::vector<float> x1_, y1_, x2_, y2_, areas_;
};

// Sorts only as many keys as it takes to keep `limit` boxes. `keys` is reordered.
template <typename BoxOf, typename LabelOf>
void suppress(std::vector<uint64_t>& keys,
              const BoxOf& box_of,
              const LabelOf& label_of,
              float iou_threshold,
              bool class_agnostic,
              int64_t limit,
              const Rows& rows) {
  std::unordered_map<int64_t, Kept> groups;
  const std::greater<uint64_t> best_first;
  int64_t kept = 0;
  size_t batch = 1024;
  for (size_t begin = 0; begin < keys.size() && kept < limit; batch *= 2) {
    const size_t end = std::min(begin + batch, keys.size());
    if (end < keys.size()) {
      std::nth_element(keys.begin() + begin, keys.begin() + end, keys.end(), best_first);
    }
    std::sort(keys.begin() + begin, keys.begin() + end, best_first);
    for (; begin < end && kept < limit; ++begin) {
      const uint32_t index = key_index(keys[begin]);
      const Box box = box_of(index);
      if (!is_finite(box)) {
        continue;
      }
      const int64_t label = label_of(index);
      const float size = area(box);
      Kept& group = groups[class_agnostic ? 0 : label];
      if (group.suppresses(box, size, iou_threshold)) {
        continue;
      }
      group.add(box, size);
      rows.boxes[kept] = box;
      rows.scores[kept] = key_score(keys[begin]);
      rows.labels[kept] = label;
      ++kept;
    }
    begin = end;
  }
  std::fill(rows.boxes + kept, rows.boxes + limit, Box{0.0f, 0.0f, 0.0f, 0.0f});
  std::fill(rows.scores + kept, rows.scores + limit, 0.0f);
  std::fill(rows.labels + kept, rows.labels + limit, int64_t{0});
  *rows.count = kept;
}

}  // namespace yolo
