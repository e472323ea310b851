// yolo::vary_colour on CUDA: a thread a pixel.
#include "../colour.h"

#include <algorithm>

#include "launch.cuh"

namespace yolo {
namespace {

constexpr int kBlock = 256;

__global__ void __launch_bounds__(kBlock) vary_kernel(
    const uint8_t* in, Pixels from, uint8_t* out, Pixels to, int64_t images, int64_t pixels, const Colour* colours) {
  for (int64_t image = blockIdx.y; image < images; image += gridDim.y) {
    const Colour colour = colours[image];
    for (int64_t i = blockIdx.x * static_cast<int64_t>(kBlock) + threadIdx.x; i < pixels;
         i += static_cast<int64_t>(gridDim.x) * kBlock) {
      const uint8_t* p = in + image * from.image + i * from.pixel;
      float r = p[0], g = p[from.channel], b = p[2 * from.channel];
      vary(r, g, b, colour);
      uint8_t* q = out + image * to.image + i * to.pixel;
      q[0] = static_cast<uint8_t>(r);
      q[to.channel] = static_cast<uint8_t>(g);
      q[2 * to.channel] = static_cast<uint8_t>(b);
    }
  }
}

Tensor vary_colour_cuda(const Tensor& images, const Tensor& colours) {
  const torch::stable::accelerator::DeviceGuard guard(images.get_device_index());
  const Tensor x = checked_images(images, colours);
  Tensor result = torch::stable::empty_like(x);
  const int64_t count = x.size(0), pixels = x.size(2) * x.size(3);
  if (count == 0 || pixels == 0) {
    return result;
  }
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>((pixels + kBlock - 1) / kBlock, 1 << 20)),
                  static_cast<unsigned>(std::min<int64_t>(count, 65535)));
  vary_kernel<<<grid, kBlock, 0, current_stream(x)>>>(static_cast<const uint8_t*>(x.const_data_ptr()),
                                                      pixels_of(x),
                                                      static_cast<uint8_t*>(result.mutable_data_ptr()),
                                                      pixels_of(result),
                                                      count,
                                                      pixels,
                                                      static_cast<const Colour*>(colours.const_data_ptr()));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(yolo, CUDA, m) { m.impl("vary_colour", TORCH_BOX(&vary_colour_cuda)); }

}  // namespace yolo
