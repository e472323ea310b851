// yolo::decode_boxes on CUDA: planes [channel][cell] in, rows [prediction][class] out, turned in shared memory so
// that both sides are coalesced. One launch for all heads.
#include <algorithm>

#include "launch.cuh"
#include "scan.cuh"

namespace yolo {
namespace {

constexpr int kTile = 64;  // predictions a block decodes
constexpr int kWarps = 8;
constexpr int kMaxClasses = 128;  // classes turned at a time

struct Tiles {
  int per_anchor[kMaxHeads];  // tiles of one anchor's cells (of all predictions in a grid head)
  int first[kMaxHeads + 1];
};

struct Softmax {
  float highest, sum;
};

__device__ float activate(const Head& head, float x, const Softmax& softmax) {
  if (has_softmax(head)) {
    return expf(x - softmax.highest) / softmax.sum;
  }
  return is_logistic(head) ? 1.0f / (1.0f + expf(-x)) : x;
}

// Where prediction i of the tile keeps its values, relative to the first one's; grid heads go box by box.
__device__ int64_t class_offset(const Head& head, int classes, int begin, int i) {
  return head.kind == kGrid ? static_cast<int64_t>((begin + i) / head.boxes - begin / head.boxes) * classes
                            : i * head.cell_stride;
}

// Reads classes [from, from + some) of the tile's predictions into table[i * pitch + c]. Planes: a warp reads a
// plane's neighbouring cells.
template <typename T>
__device__ void read_planes(const Head& head,
                            const T* data,
                            int classes,
                            int begin,
                            int n,
                            int some,
                            int pitch,
                            const Softmax* softmax,
                            float* table) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t step = head.kind == kGrid ? 1 : head.channel_stride;
  const int64_t near = class_offset(head, classes, begin, lane), far = class_offset(head, classes, begin, lane + 32);
#pragma unroll 5
  for (int c = warp; c < some; c += kWarps) {
    const float x = lane < n ? load(data, c * step + near) : 0.0f;
    const float y = lane + 32 < n ? load(data, c * step + far) : 0.0f;
    table[lane * pitch + c] = activate(head, x, softmax[lane]);
    table[(lane + 32) * pitch + c] = activate(head, y, softmax[lane + 32]);
  }
}

// The same for two cells a load; every plane of the head starts at an even element.
template <typename T>
__device__ void read_pairs(const Head& head,
                           const T* data,
                           int n,
                           int some,
                           int pitch,
                           const Softmax* softmax,
                           float* table) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  struct alignas(2 * sizeof(T)) Pair {
    T x, y;
  };
#pragma unroll 5
  for (int c = warp; c < some; c += kWarps) {
    Pair pair = {T(0.0f), T(0.0f)};
    if (2 * lane < n) {
      pair = *reinterpret_cast<const Pair*>(data + c * head.channel_stride + 2 * lane);
    }
    table[2 * lane * pitch + c] = activate(head, static_cast<float>(pair.x), softmax[2 * lane]);
    table[(2 * lane + 1) * pitch + c] = activate(head, static_cast<float>(pair.y), softmax[2 * lane + 1]);
  }
}

// Channels last: a warp reads one prediction's neighbouring classes.
template <typename T>
__device__ void read_rows(const Head& head,
                          const T* data,
                          int n,
                          int some,
                          int pitch,
                          const Softmax* softmax,
                          float* table) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 2
  for (int i = warp; i < n; i += kWarps) {
#pragma unroll 4
    for (int c = lane; c < some; c += 32) {
      table[i * pitch + c] = activate(head, load(data, i * head.cell_stride + c), softmax[i]);
    }
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

template <typename T>
bool plane_pairs(const Head& head) {
  return head.kind != kGrid && head.cell_stride == 1 && head.channel_stride % 2 == 0 && head.image_stride % 2 == 0 &&
         reinterpret_cast<uintptr_t>(head.data) % (2 * sizeof(T)) == 0;
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) decode_kernel(const __grid_constant__ Heads heads,
                                                             const __grid_constant__ Tiles tiles,
                                                             unsigned pairs,
                                                             Box* __restrict__ boxes,
                                                             float* __restrict__ scores) {
  extern __shared__ float table[];
  __shared__ float confidence[kTile];
  __shared__ Softmax softmax[kTile];
  const int classes = heads.classes;
  const int64_t image = blockIdx.x / tiles.first[heads.heads];
  int tile = static_cast<int>(blockIdx.x % tiles.first[heads.heads]);
  int at = 0;
  while (tile >= tiles.first[at + 1]) {
    ++at;
  }
  const Head& head = heads.head[at];
  tile -= tiles.first[at];
  const int anchor = tile / tiles.per_anchor[at], block = tile % tiles.per_anchor[at];
  const int begin = head.kind == kGrid ? block * kTile : anchor * head.cells + block * kTile;
  const int n = min(kTile, (head.kind == kGrid ? head.count : (anchor + 1) * head.cells) - begin);
  const T* data = static_cast<const T*>(head.data);
  const int64_t out = image * heads.total + head.first + begin;
  const View first = view(head, classes, image, begin);
  const int i = threadIdx.x;
  if (i < n) {
    const View own = view(head, classes, image, begin + i);
    boxes[out + i] = decode_box(head,
                                load(data, own.box),
                                load(data, own.box + own.box_step),
                                load(data, own.box + 2 * own.box_step),
                                load(data, own.box + 3 * own.box_step),
                                begin + i);
    confidence[i] = objectness(head, load(data, own.objectness));
    if (has_softmax(head)) {
      softmax[i] = measure_softmax(data + own.classes, own.class_step, classes);
    }
  }
  const int width = min(classes, kMaxClasses), pitch = width | 1;  // odd: no two lanes share a bank
  for (int from = 0; from < classes; from += width) {
    const int some = min(width, classes - from);
    const T* part = data + first.classes + from * first.class_step;
    if (from > 0 || has_softmax(head)) {
      __syncthreads();
    }
    if (head.kind != kGrid && head.channel_stride == 1) {
      read_rows(head, part, n, some, pitch, softmax, table);
    } else if (pairs >> at & 1u) {
      read_pairs(head, part, n, some, pitch, softmax, table);
    } else {
      read_planes(head, part, classes, begin, n, some, pitch, softmax, table);
    }
    __syncthreads();
    for (int row = threadIdx.x / 32; row < n; row += kWarps) {
      const float factor = confidence[row];
      float* to = scores + (out + row) * classes + from;
#pragma unroll 4
      for (int c = threadIdx.x % 32; c < some; c += 32) {
        to[c] = factor * table[row * pitch + c];
      }
    }
  }
}

template <typename T>
void launch(const Heads& heads, Box* boxes, float* scores, cudaStream_t stream) {
  Tiles tiles = {};
  unsigned pairs = 0;
  for (int i = 0; i < heads.heads; ++i) {
    const Head& head = heads.head[i];
    const bool grid = head.kind == kGrid;
    tiles.per_anchor[i] = ((grid ? head.count : head.cells) + kTile - 1) / kTile;
    tiles.first[i + 1] = tiles.first[i] + tiles.per_anchor[i] * (grid ? 1 : head.boxes);
    pairs |= (sizeof(T) == 2 && plane_pairs<T>(head)) ? 1u << i : 0u;
  }
  const int64_t blocks = static_cast<int64_t>(heads.images) * tiles.first[heads.heads];
  STD_TORCH_CHECK(blocks <= std::numeric_limits<int32_t>::max(), "too many predictions for one launch");
  if (blocks == 0) {
    return;
  }
  const size_t bytes = sizeof(float) * kTile * (std::min(heads.classes, kMaxClasses) | 1);
  decode_kernel<T>
      <<<static_cast<unsigned>(blocks), 32 * kWarps, bytes, stream>>>(heads, tiles, pairs, boxes, scores);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

std::tuple<Tensor, Tensor> decode_cuda(Tensors logits, std::vector<int64_t> layout, std::vector<double> numbers) {
  STD_TORCH_CHECK(!logits.empty(), "got no head outputs");
  const torch::stable::accelerator::DeviceGuard guard(logits[0].get_device_index());
  const Heads heads = make_heads(logits, layout, numbers);
  const int64_t images = heads.images, total = heads.total, classes = heads.classes;
  Tensor boxes = torch::stable::new_empty(logits[0], {images, total, 4}, ScalarType::Float);
  Tensor scores = torch::stable::new_empty(logits[0], {images, total, classes}, ScalarType::Float);
  with_type(logits[0].scalar_type(), [&](auto type) {
    launch<decltype(type)>(heads,
                           static_cast<Box*>(boxes.mutable_data_ptr()),
                           static_cast<float*>(scores.mutable_data_ptr()),
                           current_stream(logits[0]));
  });
  return {boxes, scores};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(yolo, CUDA, m) { m.impl("decode_boxes", TORCH_BOX(&decode_cuda)); }

}  // namespace yolo
