// A pixel through HSV and back, in float32: the arithmetic of yolo/ops/colour.py, operation by operation.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cmath>

#include "boxes.h"

namespace yolo {

struct Colour {
  float turn, saturation, exposure;  // a row of `colours`
};

// One channel of a colour; `n` is 5, 3 and 1 for red, green and blue.
YOLO_HD float channel(float n, float hue, float value, float chroma) {
  const float turned = n + hue;
  const float k = turned - 6.0f * floorf(turned / 6.0f);
  float part = k < 4.0f - k ? k : 4.0f - k;
  part = part > 0.0f ? part : 0.0f;  // written so that a NaN ends here
  part = part < 1.0f ? part : 1.0f;
  return rintf(value - chroma * part);
}

YOLO_HD void vary(float& r, float& g, float& b, const Colour& colour) {
  const float rg = r > g ? r : g, low_rg = r > g ? g : r;
  const float high = rg > b ? rg : b, low = low_rg < b ? low_rg : b;
  const float range = high - low, divisor = range > 0.0f ? range : 1.0f;
  const float from_red = (g - b) / divisor, from_green = 2.0f + (b - r) / divisor,
              from_blue = 4.0f + (r - g) / divisor;
  const float other = g == high ? from_green : from_blue, hue = r == high ? from_red : other;
  float saturation = range / (high > 0.0f ? high : 1.0f) * colour.saturation;
  saturation = saturation > 0.0f ? saturation : 0.0f;
  saturation = saturation < 1.0f ? saturation : 1.0f;
  float value = high * colour.exposure;
  value = value > 0.0f ? value : 0.0f;
  value = value < 255.0f ? value : 255.0f;
  const float turned = hue + 6.0f * colour.turn, chroma = value * saturation;
  r = channel(5.0f, turned, value, chroma);
  g = channel(3.0f, turned, value, chroma);
  b = channel(1.0f, turned, value, chroma);
}

// Where the pixels of a batch lie: [N, 3, H, W] of any layout whose rows follow each other.
struct Pixels {
  int64_t image, channel, pixel;  // strides
};

inline Pixels pixels_of(const torch::stable::Tensor& x) { return {x.stride(0), x.stride(1), x.stride(3)}; }

// `images`, copied where its rows do not follow each other.
inline torch::stable::Tensor checked_images(const torch::stable::Tensor& images,
                                            const torch::stable::Tensor& colours) {
  using torch::headeronly::ScalarType;
  STD_TORCH_CHECK(images.dim() == 4 && images.size(1) == 3 && images.scalar_type() == ScalarType::Byte,
                  "images must be uint8 [N, 3, H, W]");
  STD_TORCH_CHECK(colours.dim() == 2 && colours.size(0) == images.size(0) && colours.size(1) == 3 &&
                      colours.scalar_type() == ScalarType::Float && colours.is_contiguous() &&
                      colours.device() == images.device(),
                  "colours must be float32 [N, 3] on the device of images");
  const bool rows_follow = images.size(2) <= 1 || images.stride(2) == images.size(3) * images.stride(3);
  return rows_follow ? images : torch::stable::contiguous(images);
}

}  // namespace yolo
