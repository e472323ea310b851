// From raw head outputs to candidates, a warp at a time.
#pragma once

#include "../heads.h"

namespace yolo {

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kInFlight = 16;  // loads a lane issues before it uses the first

__device__ inline float negative_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

template <typename T>
__device__ float load(const T* data, int64_t at) {
  return static_cast<float>(data[at]);
}

// How the raw class values of one prediction become scores.
struct Activation {
  float objectness, highest, sum;
  bool softmax, logistic;

  __device__ float score(float raw) const {
    const float probability = softmax    ? expf(raw - highest) / sum
                              : logistic ? 1.0f / (1.0f + expf(-raw))
                                         : raw;
    return objectness * probability;
  }

  // A higher raw value never scores less, so most values need no exponential.
  __device__ bool rising() const { return (softmax || logistic) && objectness > 0.0f; }
};

// The best class so far; ties go to the lower class because classes come in ascending order.
struct Best {
  float score, raw;
  int label;

  __device__ void offer(const Activation& activation, float x, int c) {
    if (label >= 0 && activation.rising() && x <= raw) {
      return;
    }
    const float candidate = activation.score(x);
    if (candidate > score) {
      score = candidate;
      raw = x;
      label = c;
    }
  }
};

// Calls use(c, x) for every class of this lane's prediction, the same c in all lanes; x is -inf in idle
// lanes.
template <typename T, typename Use>
__device__ void each_class(const T* data, int64_t at, int64_t step, int classes, bool open, Use&& use) {
  for (int from = 0; from < classes; from += kInFlight) {
    float x[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      x[k] = open && from + k < classes ? load(data, at + (from + k) * step) : negative_infinity();
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      if (from + k < classes) {
        use(from + k, x[k]);
      }
    }
  }
}

// Every lane reads its own prediction: neighbouring lanes read neighbouring cells of one plane.
template <typename T, typename Emit>
__device__ void scan_by_lane(const T* data,
                             int64_t at,
                             int64_t step,
                             int classes,
                             bool open,
                             Activation activation,
                             float threshold,
                             bool multi_label,
                             uint32_t index,
                             Emit& emit) {
  if (activation.softmax) {
    float highest = negative_infinity(), sum = 0.0f;
    each_class(data, at, step, classes, open, [&](int, float x) { highest = fmaxf(highest, x); });
    each_class(data, at, step, classes, open, [&](int, float x) { sum += expf(x - highest); });
    activation.highest = highest;
    activation.sum = sum;
  }
  if (multi_label) {
    each_class(data, at, step, classes, open, [&](int c, float x) {
      const float score = open ? activation.score(x) : 0.0f;
      emit(open && score > threshold, score, index + c);
    });
    return;
  }
  Best best = {threshold, 0.0f, -1};
  each_class(data, at, step, classes, open, [&](int c, float x) {
    if (open) {
      best.offer(activation, x, c);
    }
  });
  emit(best.label >= 0, best.score, index + best.label);
}

__device__ inline float warp_max(float x) {
  for (int delta = 16; delta > 0; delta /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, delta));
  }
  return x;
}

__device__ inline float warp_sum(float x) {
  for (int delta = 16; delta > 0; delta /= 2) {
    x += __shfl_xor_sync(kWholeWarp, x, delta);
  }
  return x;
}

__device__ inline uint64_t warp_max(uint64_t x) {
  for (int delta = 16; delta > 0; delta /= 2) {
    const uint64_t other = __shfl_xor_sync(kWholeWarp, x, delta);
    x = other > x ? other : x;
  }
  return x;
}

// All lanes read one prediction after the other, a class each.
template <typename T, typename Emit>
__device__ void scan_by_warp(const T* data,
                             int64_t at,
                             int64_t step,
                             int classes,
                             unsigned open,
                             Activation own,
                             float threshold,
                             bool multi_label,
                             uint32_t index,
                             Emit& emit) {
  const int lane = threadIdx.x % 32;
  uint64_t winner = 0;  // of this lane's own prediction
  for (unsigned left = open; left != 0; left &= left - 1) {
    const int source = __ffs(left) - 1;
    const T* row = data + __shfl_sync(kWholeWarp, at, source);
    const uint32_t first = __shfl_sync(kWholeWarp, index, source);
    Activation activation = own;
    activation.objectness = __shfl_sync(kWholeWarp, own.objectness, source);
    if (activation.softmax) {
      float highest = negative_infinity(), sum = 0.0f;
      for (int c = lane; c < classes; c += 32) {
        highest = fmaxf(highest, load(row, c * step));
      }
      activation.highest = warp_max(highest);
      for (int c = lane; c < classes; c += 32) {
        sum += expf(load(row, c * step) - activation.highest);
      }
      activation.sum = warp_sum(sum);
    }
    if (multi_label) {
      for (int from = 0; from < classes; from += 32) {
        const int c = from + lane;
        const float score = c < classes ? activation.score(load(row, c * step)) : 0.0f;
        emit(c < classes && score > threshold, score, first + c);
      }
      continue;
    }
    Best best = {threshold, 0.0f, -1};
#pragma unroll 4
    for (int c = lane; c < classes; c += 32) {
      best.offer(activation, load(row, c * step), c);
    }
    const uint64_t key =
        warp_max(best.label < 0 ? 0 : make_key(best.score, static_cast<uint32_t>(best.label)));
    winner = lane == source ? key : winner;
  }
  if (!multi_label) {
    emit(winner != 0, key_score(winner), index + key_index(winner));
  }
}

// The 32 predictions from `begin` on of one head, in one image. `emit(valid, score, index)` is called by the
// whole warp at once; the index is prediction * classes + class.
template <typename T, typename Emit>
__device__ void scan_tile(const Heads& heads,
                          const Head& head,
                          int image,
                          int begin,
                          float threshold,
                          bool multi_label,
                          Emit& emit) {
  constexpr int kMany = 6;  // from here on 80 loads a lane cost less than a round of the warp per prediction
  const int local = begin + threadIdx.x % 32;
  const T* data = static_cast<const T*>(head.data);
  View at = {0, 0, 0, 0, 0};
  Activation activation = {0.0f, 0.0f, 1.0f, has_softmax(head), is_logistic(head)};
  bool open = local < head.count;
  if (open) {
    at = view(head, heads.classes, image, local);
    activation.objectness = objectness(head, load(data, at.objectness));
    open = !activation.logistic || activation.objectness > threshold;
  }
  const unsigned ballot = __ballot_sync(kWholeWarp, open);
  if (ballot == 0) {
    return;
  }
  const int64_t step = head.kind == kGrid ? 1 : head.channel_stride;
  const uint32_t index = static_cast<uint32_t>(head.first + local) * heads.classes;
  if (step != 1 && __popc(ballot) >= kMany) {
    scan_by_lane(
        data, at.classes, step, heads.classes, open, activation, threshold, multi_label, index, emit);
  } else {
    scan_by_warp(
        data, at.classes, step, heads.classes, ballot, activation, threshold, multi_label, index, emit);
  }
}

// Tiles of 32 predictions of all heads, numbered through.
YOLO_HD int count_tiles(const Heads& heads) {
  int tiles = 0;
  for (int i = 0; i < heads.heads; ++i) {
    tiles += (heads.head[i].count + 31) / 32;
  }
  return tiles;
}

template <typename T, typename Emit>
__device__ void scan_numbered_tile(
    const Heads& heads, int image, int tile, float threshold, bool multi_label, Emit& emit) {
  int at = 0;
  for (; at + 1 < heads.heads; ++at) {
    const int tiles = (heads.head[at].count + 31) / 32;
    if (tile < tiles) {
      break;
    }
    tile -= tiles;
  }
  scan_tile<T>(heads, heads.head[at], image, tile * 32, threshold, multi_label, emit);
}

}  // namespace yolo
