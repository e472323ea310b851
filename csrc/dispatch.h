// One template instance per input type; arithmetic is float32 whatever the input.
#pragma once

#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

namespace yolo {

template <typename F>
void with_type(torch::headeronly::ScalarType type, F&& call) {
  using torch::headeronly::ScalarType;
  switch (type) {
    case ScalarType::Float:
      return call(float{});
    case ScalarType::Half:
      return call(torch::headeronly::Half{});
    case ScalarType::BFloat16:
      return call(torch::headeronly::BFloat16{});
    default:
      STD_TORCH_CHECK(false, "head outputs must be float16, bfloat16 or float32");
  }
}

}  // namespace yolo
