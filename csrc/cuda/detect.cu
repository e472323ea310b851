// yolo::detect on CUDA: clear the counters, collect candidates with the whole device, suppress with a block
// an image.
//
// Candidates of an image go into a list of fixed length. When they do not fit, which takes an evaluation
// threshold, the block of that image reads the logits again instead of the list: slower, as exact, no more
// memory.
#include <algorithm>

#include "launch.cuh"
#include "suppress.cuh"

namespace yolo {
namespace {

constexpr int kCollectThreads = 128;
constexpr int64_t kCapacity = 65536;

struct List {
  uint64_t* keys;  // [images, capacity]
  unsigned* counts;
  unsigned capacity;
};

struct Append {
  uint64_t* keys;
  unsigned* count;
  unsigned capacity;

  __device__ void operator()(bool valid, float score, uint32_t index) const {
    const unsigned ballot = __ballot_sync(kWholeWarp, valid);
    if (ballot == 0) {
      return;
    }
    const int lane = threadIdx.x % 32;
    unsigned first = 0;
    if (lane == 0) {
      first = atomicAdd(count, static_cast<unsigned>(__popc(ballot)));
    }
    first = __shfl_sync(kWholeWarp, first, 0) + __popc(ballot & ((1u << lane) - 1));
    if (valid && first < capacity) {
      keys[first] = make_key(score, index);
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(kCollectThreads) collect_kernel(
    const __grid_constant__ Heads heads, const List list, float threshold, bool multi_label, int tiles) {
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * kCollectThreads + threadIdx.x) / 32;
  const int image = static_cast<int>(warp / tiles);
  if (image >= heads.images) {
    return;
  }
  const Append append = {
      list.keys + static_cast<int64_t>(image) * list.capacity, list.counts + image, list.capacity};
  const unsigned so_far = __shfl_sync(kWholeWarp, *reinterpret_cast<volatile unsigned*>(append.count), 0);
  if (so_far > list.capacity) {
    return;  // the list is of no use any more
  }
  scan_numbered_tile<T>(heads, image, static_cast<int>(warp % tiles), threshold, multi_label, append);
}

template <typename T>
struct LogitSource {
  const Heads& heads;
  const uint64_t* keys;
  unsigned count, capacity;
  int image, tiles;
  float threshold;
  bool multi_label;

  __device__ int64_t total() const { return count <= capacity ? static_cast<int64_t>(count) : -1; }

  template <typename Use>
  __device__ void each(Use&& use) const {
    if (count <= capacity) {
      for (unsigned i = threadIdx.x; i < count; i += kThreads) {
        use(true, keys[i]);
      }
      return;
    }
    const auto emit = [&](bool valid, float score, uint32_t index) { use(valid, make_key(score, index)); };
    for (int tile = threadIdx.x / 32; tile < tiles; tile += kThreads / 32) {
      scan_numbered_tile<T>(heads, image, tile, threshold, multi_label, emit);
    }
  }

  __device__ Box box(uint32_t index) const {
    const int prediction = static_cast<int>(index / heads.classes);
    const Head& head = heads.head[find_head(heads, prediction)];
    const View at = view(head, heads.classes, image, prediction - head.first);
    const T* t = static_cast<const T*>(head.data);
    return decode_box(head,
                      load(t, at.box),
                      load(t, at.box + at.box_step),
                      load(t, at.box + 2 * at.box_step),
                      load(t, at.box + 3 * at.box_step),
                      prediction - head.first);
  }

  __device__ int64_t label(uint32_t index) const { return static_cast<int64_t>(index % heads.classes); }
};

template <typename T>
__global__ void __launch_bounds__(kThreads) suppress_kernel(const __grid_constant__ Heads heads,
                                                            const List list,
                                                            const Options options,
                                                            float threshold,
                                                            bool multi_label,
                                                            int tiles) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int image = static_cast<int>(blockIdx.x);
  const LogitSource<T> source = {heads,
                                 list.keys + static_cast<int64_t>(image) * list.capacity,
                                 list.counts[image],
                                 list.capacity,
                                 image,
                                 tiles,
                                 threshold,
                                 multi_label};
  suppress(*reinterpret_cast<Shared*>(memory), source, options, image);
}

template <typename T>
void launch(const Heads& heads,
            const List& list,
            const Options& options,
            float threshold,
            bool multi_label,
            cudaStream_t stream) {
  const int tiles = count_tiles(heads);
  STD_CUDA_CHECK(cudaMemsetAsync(list.counts, 0, heads.images * sizeof(unsigned), stream));
  const int64_t threads = 32 * static_cast<int64_t>(heads.images) * tiles;
  if (threads > 0) {
    const auto blocks = static_cast<unsigned>((threads + kCollectThreads - 1) / kCollectThreads);
    collect_kernel<T><<<blocks, kCollectThreads, 0, stream>>>(heads, list, threshold, multi_label, tiles);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
  STD_CUDA_CHECK(
      cudaFuncSetAttribute(suppress_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
  suppress_kernel<T><<<static_cast<unsigned>(heads.images), kThreads, sizeof(Shared), stream>>>(
      heads, list, options, threshold, multi_label, tiles);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

Detections detect_cuda(Tensors logits,
                       std::vector<int64_t> layout,
                       std::vector<double> numbers,
                       double score_threshold,
                       double iou_threshold,
                       int64_t max_detections,
                       bool multi_label,
                       bool class_agnostic) {
  check_limits(iou_threshold, max_detections);
  const torch::stable::accelerator::DeviceGuard guard(logits.at(0).get_device_index());
  const Heads heads = make_heads(logits, layout, numbers);
  Detections result = make_detections(logits[0], heads.images, max_detections);
  if (heads.images == 0) {
    return result;
  }
  const int64_t images = heads.images;
  const int64_t possible = static_cast<int64_t>(heads.total) * (multi_label ? heads.classes : 1);
  const int64_t capacity = std::min(possible, kCapacity);
  const int64_t key_bytes = images * capacity * static_cast<int64_t>(sizeof(uint64_t));
  const int64_t next_bytes = images * max_detections * static_cast<int64_t>(sizeof(int));
  const Tensor workspace =
      make_workspace(logits[0], key_bytes + next_bytes + images * static_cast<int64_t>(sizeof(unsigned)));
  auto* memory = static_cast<unsigned char*>(workspace.mutable_data_ptr());
  const List list = {reinterpret_cast<uint64_t*>(memory),
                     reinterpret_cast<unsigned*>(memory + key_bytes + next_bytes),
                     static_cast<unsigned>(capacity)};
  const Options options = {static_cast<float>(iou_threshold),
                           class_agnostic,
                           static_cast<int>(max_detections),
                           first_rows(result),
                           reinterpret_cast<int*>(memory + key_bytes)};
  with_type(logits[0].scalar_type(), [&](auto type) {
    launch<decltype(type)>(
        heads, list, options, static_cast<float>(score_threshold), multi_label, current_stream(logits[0]));
  });
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(yolo, CUDA, m) { m.impl("detect", TORCH_BOX(&detect_cuda)); }

}  // namespace yolo
