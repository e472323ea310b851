// yolo::decode_boxes on CUDA: planes [channel][cell] in, rows [prediction][class] out, turned in shared
// memory so that both sides are coalesced. One launch for all heads with planes, one for grid heads.
//
// A byte costs about as much time as three instructions here, so the kernel saves both: index arithmetic once
// a block, two cells a load, all loads of a lane before the first use.
#include <algorithm>

#include "launch.cuh"
#include "scan.cuh"

namespace yolo {
namespace {

constexpr int kTile = 64;  // cells of one anchor that a block decodes
constexpr int kWarps = 8;
constexpr int kBlock = 32 * kWarps;
constexpr int kMaxClasses = 128;  // classes turned at a time
constexpr int kLoads = 10;  // loads a lane issues before it uses the first: a warp's share of 80 classes
static_assert(kBlock == 4 * kTile, "a thread a coordinate");

struct Tiles {
  int per_anchor[kMaxHeads];
  int first[kMaxHeads + 1];
  unsigned pairs;  // bit i: two neighbouring cells of head i can be loaded at once
  int quads;  // groups of four classes a prediction, where all of a tile's scores are turned and stored at
              // once
  float per_quad;  // 1 / quads
};

enum class Mode { kLinear, kLogistic, kSoftmax };

struct Softmax {
  float highest, sum;
};

// Four instructions; the relative error is a few units in the last place, and |x| of them where the result is
// tiny.
__device__ inline float fast_logistic(float x) {
  float power, result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.44269504f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + power));
  return result;
}

template <Mode mode>
__device__ float activate(float x, const Softmax& softmax) {
  if constexpr (mode == Mode::kLogistic) {
    return fast_logistic(x);
  } else if constexpr (mode == Mode::kSoftmax) {
    return expf(x - softmax.highest) / softmax.sum;
  } else {
    return x;
  }
}

template <typename T>
__device__ Softmax measure_softmax(const T* data, int64_t step, int classes) {
  Softmax softmax = {negative_infinity(), 0.0f};
  for (int c = 0; c < classes; ++c) {
    softmax.highest = fmaxf(softmax.highest, load(data, c * step));
  }
  for (int c = 0; c < classes; ++c) {
    softmax.sum += expf(load(data, c * step) - softmax.highest);
  }
  return softmax;
}

// a / b by way of floating point, off by one at most before the correction.
__device__ inline int quotient(int a, int b, float one_over_b) {
  const int guess = static_cast<int>((static_cast<float>(a) + 0.5f) * one_over_b);
  return guess + (a >= (guess + 1) * b ? 1 : 0) - (a < guess * b ? 1 : 0);
}

// The cells of one anchor that a block decodes. Offsets within an anchor's planes fit 32 bits (checked on the
// host).
template <typename T>
struct Part {
  const T* data;  // tx of the first cell
  int step, cell_step, anchor, begin, n;
};

// One coordinate a thread: four neighbouring threads have tx, ty, tw, th and trade centres for sizes.
template <typename T>
__device__ void write_boxes(const Head& head, const Part<T>& part, float t, float* boxes) {
  const int i = threadIdx.x / 4, k = threadIdx.x % 4;
  float value;
  if (k >= 2) {
    const float factor = head.squared ? (2.0f * t) * (2.0f * t) : expf(t > kSizeLimit ? kSizeLimit : t);
    value = factor * head.prior[2 * part.anchor + k - 2];
  } else {
    const int cell = part.begin + i,
              row = quotient(cell, head.width, __frcp_rn(static_cast<float>(head.width)));
    const float offset = head.squared ? t : fast_logistic(t);
    value = (head.xy_scale * offset - head.xy_shift + (k == 0 ? cell - row * head.width : row)) * head.stride;
  }
  const float other = __shfl_xor_sync(kWholeWarp, value, 2);
  if (i < part.n) {
    boxes[threadIdx.x] = k >= 2 ? other + 0.5f * value : value - 0.5f * other;
  }
}

template <typename T>
__device__ float load_objectness(const Part<T>& part, int i) {
  return i < part.n ? load(part.data, 4 * part.step + i * part.cell_step) : 0.0f;
}

template <Mode mode>
__device__ float confidence(float raw) {
  return mode == Mode::kLinear ? raw : fast_logistic(raw);  // a softmax head's objectness is logistic
}

// Scores of classes [0, some) from `data` on into table[i * pitch + c]: a warp reads neighbouring cells of a
// plane.
template <Mode mode, typename T>
__device__ void read_cells(
    const T* data, const Part<T>& part, int some, int pitch, const Softmax* softmax, float* table) {
  const int lane = threadIdx.x % 32;
  const float near_raw = load_objectness(part, lane), far_raw = load_objectness(part, lane + 32);
  for (int from = threadIdx.x / 32; from < some; from += kWarps * kLoads / 2) {
    float x[kLoads / 2], y[kLoads / 2];
#pragma unroll
    for (int k = 0; k < kLoads / 2; ++k) {
      const int c = from + kWarps * k, at = c * part.step + lane * part.cell_step;
      x[k] = c < some && lane < part.n ? load(data, at) : 0.0f;
      y[k] = c < some && lane + 32 < part.n ? load(data, at + 32 * part.cell_step) : 0.0f;
    }
    const float near = confidence<mode>(near_raw), far = confidence<mode>(far_raw);
#pragma unroll
    for (int k = 0; k < kLoads / 2; ++k) {
      const int c = from + kWarps * k;
      if (c < some) {
        table[lane * pitch + c] = near * activate<mode>(x[k], softmax[lane]);
        table[(lane + 32) * pitch + c] = far * activate<mode>(y[k], softmax[lane + 32]);
      }
    }
  }
}

// The same with two cells a load.
template <Mode mode, typename T>
__device__ void read_pairs(
    const T* data, const Part<T>& part, int some, int pitch, const Softmax* softmax, float* table) {
  struct alignas(2 * sizeof(T)) Pair {
    T x, y;
  };
  const int lane = threadIdx.x % 32;
  // Half of the lanes store their second cell first: even and odd cells lie in different banks.
  const bool swap = lane >= 16;
  const int first = 2 * lane + (swap ? 1 : 0), second = 2 * lane + (swap ? 0 : 1);
  const bool inside = 2 * lane < part.n;
  const float first_raw = load_objectness(part, first), second_raw = load_objectness(part, second);
  for (int from = threadIdx.x / 32; from < some; from += kWarps * kLoads) {
    Pair pair[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int c = from + kWarps * k;
      pair[k] = {T(0.0f), T(0.0f)};
      if (c < some && inside) {
        pair[k] = *reinterpret_cast<const Pair*>(data + c * part.step + 2 * lane);
      }
    }
    const float first_confidence = confidence<mode>(first_raw),
                second_confidence = confidence<mode>(second_raw);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int c = from + kWarps * k;
      if (c < some) {
        const float x = static_cast<float>(swap ? pair[k].y : pair[k].x);
        const float y = static_cast<float>(swap ? pair[k].x : pair[k].y);
        table[first * pitch + c] = first_confidence * activate<mode>(x, softmax[first]);
        table[second * pitch + c] = second_confidence * activate<mode>(y, softmax[second]);
      }
    }
  }
}

// Channels last needs no turning: a warp reads a few predictions' neighbouring classes and writes them.
template <Mode mode, typename T>
__device__ void copy_rows(
    const T* data, const Part<T>& part, int classes, const Softmax* softmax, float* scores) {
  constexpr int kRows = 4, kColumns = 3;
  for (int row = threadIdx.x / 32; row < part.n; row += kWarps * kRows) {
    for (int from = threadIdx.x % 32; from < classes; from += 32 * kColumns) {
      float x[kRows][kColumns], raw[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        raw[r] = load_objectness(part, row + kWarps * r);
#pragma unroll
        for (int k = 0; k < kColumns; ++k) {
          const int i = row + kWarps * r, c = from + 32 * k;
          x[r][k] = i < part.n && c < classes ? load(data, i * part.cell_step + c) : 0.0f;
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int i = row + kWarps * r;
        if (i < part.n) {
          const float factor = confidence<mode>(raw[r]);
#pragma unroll
          for (int k = 0; k < kColumns; ++k) {
            const int c = from + 32 * k;
            if (c < classes) {
              scores[i * classes + c] = factor * activate<mode>(x[r][k], softmax[i]);
            }
          }
        }
      }
    }
  }
}

// The whole table, four classes a store.
__device__ inline void write_quads(int n, const Tiles& tiles, int pitch, const float* table, float4* scores) {
  const int quads = tiles.quads, rows = quotient(kBlock, quads, tiles.per_quad), rest = kBlock - rows * quads;
  int row = quotient(threadIdx.x, quads, tiles.per_quad),
      column = static_cast<int>(threadIdx.x) - row * quads;
#pragma unroll 2
  for (int i = threadIdx.x; i < n * quads; i += kBlock) {
    const float* from = table + row * pitch + 4 * column;
    scores[i] = make_float4(from[0], from[1], from[2], from[3]);
    column += rest;
    row += rows;
    if (column >= quads) {
      column -= quads;
      ++row;
    }
  }
}

template <Mode mode, typename T>
__device__ void write_scores(const Part<T>& part,
                             int classes,
                             bool pairs,
                             const Tiles& tiles,
                             const Softmax* softmax,
                             float* table,
                             float* scores) {
  const T* data = part.data + 5 * part.step;
  if (part.step == 1) {
    copy_rows<mode>(data, part, classes, softmax, scores);
    return;
  }
  const int width = min(classes, kMaxClasses), pitch = width | 1;  // odd: no two lanes share a bank
  for (int from = 0; from < classes; from += width) {
    const int some = min(width, classes - from);
    if (from > 0) {
      __syncthreads();
    }
    if (pairs) {
      read_pairs<mode>(data + from * part.step, part, some, pitch, softmax, table);
    } else {
      read_cells<mode>(data + from * part.step, part, some, pitch, softmax, table);
    }
    __syncthreads();
    if (tiles.quads > 0) {
      write_quads(part.n, tiles, pitch, table, reinterpret_cast<float4*>(scores));
      return;
    }
    for (int row = threadIdx.x / 32; row < part.n; row += kWarps) {
#pragma unroll 4
      for (int c = threadIdx.x % 32; c < some; c += 32) {
        scores[row * classes + from + c] = table[row * pitch + c];
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kBlock, 6) planes_kernel(const __grid_constant__ Heads heads,
                                                           const __grid_constant__ Tiles tiles,
                                                           Box* __restrict__ boxes,
                                                           float* __restrict__ scores) {
  extern __shared__ float table[];
  __shared__ Softmax softmax[kTile];
  const int classes = heads.classes;
  int tile = static_cast<int>(blockIdx.x), anchor = 0;
  const int64_t image = blockIdx.y;
  int at = 0;
  while (tile >= tiles.first[at + 1]) {
    ++at;
  }
  const Head& head = heads.head[at];
  for (tile -= tiles.first[at]; tile >= tiles.per_anchor[at]; tile -= tiles.per_anchor[at]) {
    ++anchor;
  }
  const int begin = tile * kTile;
  const Part<T> part = {static_cast<const T*>(head.data) + image * head.image_stride +
                            anchor * (5 + classes) * head.channel_stride + begin * head.cell_stride,
                        static_cast<int>(head.channel_stride),
                        static_cast<int>(head.cell_stride),
                        anchor,
                        begin,
                        min(kTile, head.cells - begin)};
  if (has_softmax(head)) {
    const int i = threadIdx.x;
    if (i < part.n) {
      softmax[i] = measure_softmax(part.data + 5 * part.step + i * part.cell_step, part.step, classes);
    }
    __syncthreads();
  }
  const int64_t out = image * heads.total + head.first + anchor * head.cells + begin;
  const int box = threadIdx.x / 4, coordinate = threadIdx.x % 4;
  const float t = box < part.n ? load(part.data, coordinate * part.step + box * part.cell_step) : 0.0f;
  float* to = scores + out * classes;
  const bool pairs = tiles.pairs >> at & 1u;
  if (has_softmax(head)) {
    write_scores<Mode::kSoftmax>(part, classes, pairs, tiles, softmax, table, to);
  } else if (is_logistic(head)) {
    write_scores<Mode::kLogistic>(part, classes, pairs, tiles, softmax, table, to);
  } else {
    write_scores<Mode::kLinear>(part, classes, pairs, tiles, softmax, table, to);
  }
  write_boxes(head, part, t, reinterpret_cast<float*>(boxes + out));
}

// YOLOv1 predicts about a hundred boxes: a thread each.
template <typename T>
__global__ void __launch_bounds__(kBlock) grid_kernel(const __grid_constant__ Heads heads,
                                                      int which,
                                                      Box* __restrict__ boxes,
                                                      float* __restrict__ scores) {
  const Head& head = heads.head[which];
  const int local = static_cast<int>(blockIdx.x) * kBlock + threadIdx.x;
  const int64_t image = blockIdx.y;
  if (local >= head.count) {
    return;
  }
  const T* data = static_cast<const T*>(head.data);
  const View at = view(head, heads.classes, image, local);
  const int64_t out = image * heads.total + head.first + local;
  boxes[out] = decode_box(head,
                          load(data, at.box),
                          load(data, at.box + 1),
                          load(data, at.box + 2),
                          load(data, at.box + 3),
                          local);
  const float factor = load(data, at.objectness);
  const Softmax softmax =
      has_softmax(head) ? measure_softmax(data + at.classes, 1, heads.classes) : Softmax{0.0f, 1.0f};
  for (int c = 0; c < heads.classes; ++c) {
    const float x = load(data, at.classes + c);
    const float probability =
        has_softmax(head) ? activate<Mode::kSoftmax>(x, softmax) : activate<Mode::kLinear>(x, softmax);
    scores[out * heads.classes + c] = factor * probability;
  }
}

template <typename T>
bool loads_pairs(const Head& head) {
  return head.cell_stride == 1 && head.channel_stride % 2 == 0 && head.image_stride % 2 == 0 &&
         reinterpret_cast<uintptr_t>(head.data) % (2 * sizeof(T)) == 0;
}

template <typename T>
void launch(const Heads& heads, Box* boxes, float* scores, cudaStream_t stream) {
  constexpr int64_t kFar = std::numeric_limits<int32_t>::max();
  STD_TORCH_CHECK(heads.images <= 65535, "at most 65,535 images are decoded together, got ", heads.images);
  const auto images = static_cast<unsigned>(heads.images);
  Tiles tiles = {};
  tiles.quads = heads.classes % 4 == 0 && heads.classes <= kMaxClasses ? heads.classes / 4 : 0;
  tiles.per_quad = 1.0f / static_cast<float>(std::max(tiles.quads, 1));
  for (int i = 0; i < heads.heads; ++i) {
    const Head& head = heads.head[i];
    tiles.first[i + 1] = tiles.first[i];
    if (head.count == 0) {
      tiles.per_anchor[i] = 1;
    } else if (head.kind == kGrid) {
      grid_kernel<T>
          <<<dim3((head.count + kBlock - 1) / kBlock, images), kBlock, 0, stream>>>(heads, i, boxes, scores);
      STD_CUDA_KERNEL_LAUNCH_CHECK();
    } else {
      STD_TORCH_CHECK((5 + heads.classes) * head.channel_stride + head.cells * head.cell_stride <= kFar,
                      "head ",
                      i,
                      " has more than 2^31 values an anchor");
      tiles.per_anchor[i] = (head.cells + kTile - 1) / kTile;
      tiles.first[i + 1] += tiles.per_anchor[i] * head.boxes;
      tiles.pairs |= loads_pairs<T>(head) ? 1u << i : 0u;
    }
  }
  const int blocks = tiles.first[heads.heads];
  if (blocks > 0) {
    const size_t bytes = sizeof(float) * kTile * (std::min(heads.classes, kMaxClasses) | 1);
    planes_kernel<T>
        <<<dim3(static_cast<unsigned>(blocks), images), kBlock, bytes, stream>>>(heads, tiles, boxes, scores);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

std::tuple<Tensor, Tensor> decode_cuda(Tensors logits,
                                       std::vector<int64_t> layout,
                                       std::vector<double> numbers) {
  STD_TORCH_CHECK(!logits.empty(), "got no head outputs");
  const torch::stable::accelerator::DeviceGuard guard(logits[0].get_device_index());
  const Heads heads = make_heads(logits, layout, numbers);
  const int64_t images = heads.images, total = heads.total, classes = heads.classes;
  Tensor boxes = torch::stable::new_empty(logits[0], {images, total, 4}, ScalarType::Float);
  Tensor scores = torch::stable::new_empty(logits[0], {images, total, classes}, ScalarType::Float);
  if (images > 0) {
    with_type(logits[0].scalar_type(), [&](auto type) {
      launch<decltype(type)>(heads,
                             static_cast<Box*>(boxes.mutable_data_ptr()),
                             static_cast<float*>(scores.mutable_data_ptr()),
                             current_stream(logits[0]));
    });
  }
  return {boxes, scores};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(yolo, CUDA, m) { m.impl("decode_boxes", TORCH_BOX(&decode_cuda)); }

}  // namespace yolo
