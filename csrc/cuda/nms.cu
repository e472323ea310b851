// yolo::nms on CUDA: a block an image, one launch.
#include "launch.cuh"
#include "suppress.cuh"

namespace yolo {
namespace {

struct TensorSource {
  const Box* boxes;
  const float* scores;
  const int64_t* labels;
  int count;
  float threshold;

  __device__ int64_t total() const { return -1; }

  template <typename Use>
  __device__ void each(Use&& use) const {
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const float score = scores[i];
      use(score > threshold, make_key(score, static_cast<uint32_t>(i)));
    }
  }

  __device__ Box box(uint32_t index) const { return boxes[index]; }
  __device__ int64_t label(uint32_t index) const { return labels[index]; }
};

__global__ void __launch_bounds__(kThreads) nms_kernel(TensorSource source, Options options) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * source.count;
  source.boxes += first;
  source.scores += first;
  source.labels += first;
  suppress(*reinterpret_cast<Shared*>(memory), source, options, static_cast<int>(blockIdx.x));
}

Detections nms_cuda(const Tensor& boxes,
                    const Tensor& scores,
                    const Tensor& labels,
                    double iou_threshold,
                    double score_threshold,
                    int64_t max_detections,
                    bool class_agnostic) {
  check_boxes(boxes, scores, labels);
  check_limits(iou_threshold, max_detections);
  const torch::stable::accelerator::DeviceGuard guard(boxes.get_device_index());
  const Tensor b = torch::stable::contiguous(boxes), s = torch::stable::contiguous(scores),
               l = torch::stable::contiguous(labels);
  const int64_t images = boxes.size(0);
  Detections result = make_detections(boxes, images, max_detections);
  if (images == 0) {
    return result;
  }
  const Tensor next = make_workspace(boxes, images * max_detections * static_cast<int64_t>(sizeof(int)));
  const TensorSource source = {static_cast<const Box*>(b.const_data_ptr()),
                               static_cast<const float*>(s.const_data_ptr()),
                               static_cast<const int64_t*>(l.const_data_ptr()),
                               static_cast<int>(boxes.size(1)),
                               static_cast<float>(score_threshold)};
  const Options options = {static_cast<float>(iou_threshold),
                           class_agnostic,
                           static_cast<int>(max_detections),
                           first_rows(result),
                           static_cast<int*>(next.mutable_data_ptr())};
  STD_CUDA_CHECK(
      cudaFuncSetAttribute(nms_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
  nms_kernel<<<static_cast<unsigned>(images), kThreads, sizeof(Shared), current_stream(boxes)>>>(source,
                                                                                                 options);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(yolo, CUDA, m) { m.impl("nms", TORCH_BOX(&nms_cuda)); }

}  // namespace yolo
