// yolo::decode_boxes on CUDA: planes [channel][cell] in, rows [prediction][class] out, turned in shared
// memory so that both sides are coalesced. One launch for all heads of a network.
//
// The table in shared memory holds raw values, half types as pairs of classes: they go in and out a word at a
// time, and the activation is taken on the way out. The rest saves instructions: index arithmetic once a block,
// 8 bytes a load, all loads of a lane before the first use.
#include <algorithm>

#include "../activations.h"
#include "launch.cuh"
#include "scan.cuh"

namespace yolo {
namespace {

template <typename T>
constexpr int kPack = 4 / sizeof(T);  // classes of a word
template <typename T>
constexpr int kCells = 2 * kPack<T>;  // cells of an 8-byte load
template <typename T>
constexpr int kTile = 32 * kCells<T>;  // cells of one anchor that a block decodes: a load of a warp
constexpr int kWarps = 8;
constexpr int kBlock = 32 * kWarps;
static_assert(kBlock >= kTile<uint16_t>, "a thread an objectness");
constexpr int kMaxClasses = 128;  // classes turned at a time
constexpr int kLoads = 10;  // loads a lane issues before it uses the first: a warp's share of 80 classes
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kBlocksAtOnce = 4;  // sm_75 has no room for more threads
#else
constexpr int kBlocksAtOnce = 5;
#endif

struct Tiles {
  int per_anchor[kMaxHeads];
  int first[kMaxHeads + 1];
  unsigned vectors;  // bit i: neighbouring cells of head i can be loaded 8 bytes at a time
  int quads;  // groups of four classes a prediction, where all of a tile's scores are turned and stored at
              // once
  float per_quad;  // 1 / quads
};

enum class Mode { kLinear, kLogistic, kSoftmax };

struct Softmax {
  float highest, sum;
};

__device__ inline float fast_logistic(float x) { return fast_reciprocal(1.0f + fast_exp(-x)); }

template <Mode mode>
__device__ float probability(float x, const Softmax& softmax) {
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

// Neighbouring classes of one cell.
template <typename T>
union Word {
  uint32_t bits;
  T part[kPack<T>];

  __device__ Word() : bits(0) {}
  __device__ explicit Word(uint32_t from) : bits(from) {}
};

__device__ inline void swap(uint32_t& a, uint32_t& b) {
  const uint32_t first = a;
  a = b;
  b = first;
}

// One coordinate a thread: four neighbouring threads have tx, ty, tw, th and trade centres for sizes. `at`: box
// times four plus coordinate.
template <typename T>
__device__ void write_box(const Head& head, const Part<T>& part, int at, float t, float* boxes) {
  const int i = at / 4, k = at % 4;
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
    boxes[at] = k >= 2 ? other + 0.5f * value : value - 0.5f * other;
  }
}

// Words from one cell to the next: odd, so that no two lanes share a bank.
template <typename T>
__host__ __device__ constexpr int pitch_of(int classes) {
  return (classes + kPack<T> - 1) / kPack<T> | 1;
}

// Words of classes [0, some) into table[cell * pitch + word]: a warp reads neighbouring cells of a plane.
template <typename T>
__device__ void read_cells(const T* data, const Part<T>& part, int some, int pitch, uint32_t* table) {
  constexpr int kGroups = kTile<T> / 32;
  const int lane = threadIdx.x % 32, words = (some + kPack<T> - 1) / kPack<T>;
  for (int word = threadIdx.x / 32; word < words; word += kWarps) {
    Word<T> value[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        const int c = word * kPack<T> + j, cell = lane + 32 * g;
        value[g].part[j] = c < some && cell < part.n ? data[c * part.step + cell * part.cell_step] : T(0.0f);
      }
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      table[(lane + 32 * g) * pitch + word] = value[g].bits;
    }
  }
}

// Word k: value k of every load.
template <typename T>
__device__ void turn(const uint2 (&loads)[kPack<T>], uint32_t (&words)[kCells<T>]) {
  if constexpr (kPack<T> == 1) {
    words[0] = loads[0].x;
    words[1] = loads[0].y;
  } else {
    words[0] = __byte_perm(loads[0].x, loads[1].x, 0x5410);
    words[1] = __byte_perm(loads[0].x, loads[1].x, 0x7632);
    words[2] = __byte_perm(loads[0].y, loads[1].y, 0x5410);
    words[3] = __byte_perm(loads[0].y, loads[1].y, 0x7632);
  }
}

// The same, 8 bytes a load.
template <typename T>
__device__ void read_vectors(const T* data, const Part<T>& part, int some, int pitch, uint32_t* table) {
  constexpr int n = kCells<T>, kWords = kLoads / kPack<T>;
  const int lane = threadIdx.x % 32, words = (some + kPack<T> - 1) / kPack<T>;
  // Lanes of one bank start at different cells, so that no two of them meet.
  const int turned = lane * n / 32;
  const bool inside = n * lane < part.n;
  uint32_t* to[n];
#pragma unroll
  for (int k = 0; k < n; ++k) {
    to[k] = table + (n * lane + (k + turned) % n) * pitch;
  }
  for (int from = threadIdx.x / 32; from < words; from += kWarps * kWords) {
    uint2 loads[kWords][kPack<T>];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        const int c = (from + kWarps * i) * kPack<T> + j;
        loads[i][j] = make_uint2(0, 0);
        if (c < some && inside) {
          loads[i][j] = __ldg(reinterpret_cast<const uint2*>(data + c * part.step) + lane);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int word = from + kWarps * i;
      if (word < words) {
        uint32_t cell[n];
        turn<T>(loads[i], cell);
        if constexpr (n == 4) {
          if (turned & 2) {
            swap(cell[0], cell[2]);
            swap(cell[1], cell[3]);
          }
        }
        if (turned & 1) {
          const uint32_t first = cell[0];
#pragma unroll
          for (int k = 0; k + 1 < n; ++k) {
            cell[k] = cell[k + 1];
          }
          cell[n - 1] = first;
        }
#pragma unroll
        for (int k = 0; k < n; ++k) {
          to[k][word] = cell[k];
        }
      }
    }
  }
}

// Channels last needs no turning: a warp reads a few predictions' neighbouring classes and writes them.
template <Mode mode, typename T>
__device__ void copy_rows(const T* data,
                          const Part<T>& part,
                          int classes,
                          const float* confidence,
                          const Softmax* softmax,
                          float* scores) {
  constexpr int kRows = 4, kColumns = 3;
  for (int row = threadIdx.x / 32; row < part.n; row += kWarps * kRows) {
    for (int from = threadIdx.x % 32; from < classes; from += 32 * kColumns) {
      float x[kRows][kColumns];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
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
          const float factor = confidence[i];
#pragma unroll
          for (int k = 0; k < kColumns; ++k) {
            const int c = from + 32 * k;
            if (c < classes) {
              scores[i * classes + c] = factor * probability<mode>(x[r][k], softmax[i]);
            }
          }
        }
      }
    }
  }
}

// The scores of the whole table, four classes a store.
template <Mode mode, typename T>
__device__ void write_quads(int n,
                            const Tiles& tiles,
                            int pitch,
                            const uint32_t* table,
                            const float* confidence,
                            const Softmax* softmax,
                            float4* scores) {
  constexpr int kWords = 4 / kPack<T>;
  const int quads = tiles.quads, rows = quotient(kBlock, quads, tiles.per_quad), rest = kBlock - rows * quads;
  int row = quotient(threadIdx.x, quads, tiles.per_quad),
      column = static_cast<int>(threadIdx.x) - row * quads;
#pragma unroll 2
  for (int i = threadIdx.x; i < n * quads; i += kBlock) {
    const uint32_t* from = table + row * pitch + kWords * column;
    const float factor = confidence[row];
    float score[4];
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const Word<T> word(from[w]);
#pragma unroll
      for (int j = 0; j < kPack<T>; ++j) {
        score[w * kPack<T> + j] = factor * probability<mode>(static_cast<float>(word.part[j]), softmax[row]);
      }
    }
    scores[i] = make_float4(score[0], score[1], score[2], score[3]);
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
                             bool vectors,
                             const Tiles& tiles,
                             float* confidence,
                             const Softmax* softmax,
                             uint32_t* table,
                             float* scores) {
  const T* data = part.data + 5 * part.step;
  // Loaded before the classes but used after them, so that nothing waits for it.
  const int i = threadIdx.x;
  const float raw = i < part.n ? load(part.data, 4 * part.step + i * part.cell_step) : 0.0f;
  const auto keep_confidence = [&] {
    if (i < part.n) {
      confidence[i] = mode == Mode::kLinear ? raw : fast_logistic(raw);  // a softmax head's is logistic, too
    }
  };
  if (part.step == 1) {
    keep_confidence();
    __syncthreads();
    copy_rows<mode>(data, part, classes, confidence, softmax, scores);
    return;
  }
  const int width = min(classes, kMaxClasses), pitch = pitch_of<T>(width);
  for (int from = 0; from < classes; from += width) {
    const int some = min(width, classes - from);
    if (from > 0) {
      __syncthreads();
    }
    if (vectors) {
      read_vectors<T>(data + from * part.step, part, some, pitch, table);
    } else {
      read_cells<T>(data + from * part.step, part, some, pitch, table);
    }
    keep_confidence();
    __syncthreads();
    if (tiles.quads > 0) {
      write_quads<mode, T>(
          part.n, tiles, pitch, table, confidence, softmax, reinterpret_cast<float4*>(scores));
      return;
    }
    for (int row = threadIdx.x / 32; row < part.n; row += kWarps) {
#pragma unroll 4
      for (int c = threadIdx.x % 32; c < some; c += 32) {
        const Word<T> word(table[row * pitch + c / kPack<T>]);
        const auto x = static_cast<float>(word.part[c % kPack<T>]);
        scores[row * classes + from + c] = confidence[row] * probability<mode>(x, softmax[row]);
      }
    }
  }
}

template <Mode mode, typename T>
__global__ void __launch_bounds__(kBlock, kBlocksAtOnce) planes_kernel(const __grid_constant__ Heads heads,
                                                                       const __grid_constant__ Tiles tiles,
                                                                       Box* __restrict__ boxes,
                                                                       float* __restrict__ scores) {
  extern __shared__ uint32_t table[];
  __shared__ float confidence[kTile<T>];
  __shared__ Softmax softmax[kTile<T>];
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
  const int begin = tile * kTile<T>;
  const Part<T> part = {static_cast<const T*>(head.data) + image * head.image_stride +
                            anchor * (5 + classes) * head.channel_stride + begin * head.cell_stride,
                        static_cast<int>(head.channel_stride),
                        static_cast<int>(head.cell_stride),
                        anchor,
                        begin,
                        min(kTile<T>, head.cells - begin)};
  if constexpr (mode == Mode::kSoftmax) {
    const int i = threadIdx.x;
    if (i < part.n) {
      softmax[i] = measure_softmax(part.data + 5 * part.step + i * part.cell_step, part.step, classes);
    }
    __syncthreads();
  }
  const int64_t out = image * heads.total + head.first + anchor * head.cells + begin;
  constexpr int kCoordinates = 4 * kTile<T> / kBlock;
  float t[kCoordinates];
#pragma unroll
  for (int k = 0; k < kCoordinates; ++k) {
    const int at_box = threadIdx.x + k * kBlock, box = at_box / 4;
    t[k] = box < part.n ? load(part.data, at_box % 4 * part.step + box * part.cell_step) : 0.0f;
  }
  float* to = scores + out * classes;
  write_scores<mode>(part, classes, tiles.vectors >> at & 1u, tiles, confidence, softmax, table, to);
#pragma unroll
  for (int k = 0; k < kCoordinates; ++k) {
    write_box(head, part, threadIdx.x + k * kBlock, t[k], reinterpret_cast<float*>(boxes + out));
  }
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
    scores[out * heads.classes + c] =
        factor *
        (has_softmax(head) ? probability<Mode::kSoftmax>(x, softmax) : probability<Mode::kLinear>(x, softmax));
  }
}

template <typename T>
bool loads_vectors(const Head& head) {
  return head.cell_stride == 1 && head.channel_stride % kCells<T> == 0 && head.image_stride % kCells<T> == 0 &&
         head.cells % kCells<T> == 0 && reinterpret_cast<uintptr_t>(head.data) % 8 == 0;
}

Mode mode_of(const Head& head) {
  return has_softmax(head) ? Mode::kSoftmax : is_logistic(head) ? Mode::kLogistic : Mode::kLinear;
}

// All heads of one mode in one launch; a network's heads are alike.
template <Mode mode, typename T>
void launch_planes(const Heads& heads, Box* boxes, float* scores, cudaStream_t stream) {
  Tiles tiles = {};
  tiles.quads = heads.classes % 4 == 0 && heads.classes <= kMaxClasses ? heads.classes / 4 : 0;
  tiles.per_quad = 1.0f / static_cast<float>(std::max(tiles.quads, 1));
  for (int i = 0; i < heads.heads; ++i) {
    const Head& head = heads.head[i];
    const bool mine = head.kind != kGrid && mode_of(head) == mode;
    tiles.per_anchor[i] = (head.cells + kTile<T> - 1) / kTile<T>;
    tiles.first[i + 1] = tiles.first[i] + (mine ? tiles.per_anchor[i] * head.boxes : 0);
    tiles.vectors |= loads_vectors<T>(head) ? 1u << i : 0u;
  }
  const int blocks = tiles.first[heads.heads];
  if (blocks > 0) {
    const size_t bytes = sizeof(uint32_t) * kTile<T> * pitch_of<T>(std::min(heads.classes, kMaxClasses));
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(heads.images));
    planes_kernel<mode, T><<<grid, kBlock, bytes, stream>>>(heads, tiles, boxes, scores);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
}

template <typename T>
void launch_grids(const Heads& heads, Box* boxes, float* scores, cudaStream_t stream) {
  for (int i = 0; i < heads.heads; ++i) {
    if (heads.head[i].kind == kGrid) {
      const dim3 grid((heads.head[i].count + kBlock - 1) / kBlock, static_cast<unsigned>(heads.images));
      grid_kernel<T><<<grid, kBlock, 0, stream>>>(heads, i, boxes, scores);
      STD_CUDA_KERNEL_LAUNCH_CHECK();
    }
  }
}

template <typename T>
void launch(const Heads& heads, Box* boxes, float* scores, cudaStream_t stream) {
  STD_TORCH_CHECK(heads.images <= 65535, "at most 65,535 images are decoded together, got ", heads.images);
  for (int i = 0; i < heads.heads; ++i) {
    const Head& head = heads.head[i];
    STD_TORCH_CHECK((5 + heads.classes) * head.channel_stride + head.cells * head.cell_stride <=
                        std::numeric_limits<int32_t>::max(),
                    "head ",
                    i,
                    " has more than 2^31 values an anchor");
  }
  launch_grids<T>(heads, boxes, scores, stream);
  launch_planes<Mode::kLinear, T>(heads, boxes, scores, stream);
  launch_planes<Mode::kLogistic, T>(heads, boxes, scores, stream);
  launch_planes<Mode::kSoftmax, T>(heads, boxes, scores, stream);
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
