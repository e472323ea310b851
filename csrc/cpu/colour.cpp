// yolo::vary_colour on the CPU: blocks of pixels, as planes so that the compiler vectorises.
#include "../colour.h"

#include <algorithm>

#include "math.h"

namespace yolo {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int kBlock = 256;  // pixels a task varies at a time

YOLO_VECTORISED void vary_block(float* __restrict r, float* __restrict g, float* __restrict b, Colour colour) {
  for (int i = 0; i < kBlock; ++i) {
    vary(r[i], g[i], b[i], colour);
  }
}

void vary_some(const uint8_t* in, Pixels from, uint8_t* out, Pixels to, int n, Colour colour) {
  float planes[3][kBlock] = {};
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < n; ++i) {
      planes[c][i] = in[c * from.channel + i * from.pixel];
    }
  }
  vary_block(planes[0], planes[1], planes[2], colour);
  for (int c = 0; c < 3; ++c) {
    for (int i = 0; i < n; ++i) {
      out[c * to.channel + i * to.pixel] = static_cast<uint8_t>(planes[c][i]);
    }
  }
}

Tensor vary_colour_cpu(const Tensor& images, const Tensor& colours) {
  const Tensor x = checked_images(images, colours);
  Tensor result = torch::stable::empty_like(x);
  const Pixels from = pixels_of(x), to = pixels_of(result);
  const auto* in = static_cast<const uint8_t*>(x.const_data_ptr());
  auto* out = static_cast<uint8_t*>(result.mutable_data_ptr());
  const auto* colour = static_cast<const Colour*>(colours.const_data_ptr());
  const int64_t pixels = x.size(2) * x.size(3), blocks = (pixels + kBlock - 1) / kBlock;
  torch::stable::parallel_for(0, x.size(0) * blocks, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = i / blocks, first = i % blocks * kBlock;
      vary_some(in + image * from.image + first * from.pixel,
                from,
                out + image * to.image + first * to.pixel,
                to,
                static_cast<int>(std::min<int64_t>(kBlock, pixels - first)),
                colour[image]);
    }
  });
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(yolo, CPU, m) { m.impl("vary_colour", TORCH_BOX(&vary_colour_cpu)); }

}  // namespace yolo
