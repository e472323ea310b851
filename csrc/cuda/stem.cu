// yolo::stem_* on CUDA, the steps of a network's first block (yolo/ops/stem.py says what each returns).
#include <algorithm>
#include <limits>

#include "channels.cuh"
#include "stem.cuh"
#include "tables.cuh"

namespace yolo {
namespace {

using Guard = torch::stable::accelerator::DeviceGuard;

// The picture and the weights of the convolution, with what the kernels count on.
struct Input {
  Tensor x, kernel;
  Picture picture;
  int64_t channels, pixels;
  int4 steps;

  Input(Tensor x_, Tensor kernel_) : x(std::move(x_)), kernel(std::move(kernel_)) {
    check_channels_last(x, "x");
    STD_TORCH_CHECK(kernel.dim() == 4 && kernel.size(1) == 3 && kernel.size(2) == 3 && kernel.size(3) == 3 &&
                        (kernel.size(0) == 16 || kernel.size(0) == 32) && kernel.scalar_type() == ScalarType::Float &&
                        kernel.device() == x.device(),
                    "kernel must be [16 or 32, 3, 3, 3], float32 and on the device of x");
    STD_TORCH_CHECK(x.size(0) > 0 && x.size(1) == 3 && x.size(2) > 0 && x.size(3) > 0 &&
                        x.size(2) % kTileHeight == 0 && x.size(3) % kTileWidth == 0 &&
                        std::max(x.size(2), x.size(3)) <= std::numeric_limits<int>::max(),
                    "x must be [N, 3, H, W] with H a multiple of ",
                    kTileHeight,
                    " and W of ",
                    kTileWidth,
                    ", got ",
                    x.size(0),
                    " x ",
                    x.size(1),
                    " x ",
                    x.size(2),
                    " x ",
                    x.size(3));
    channels = kernel.size(0);
    pixels = x.size(0) * x.size(2) * x.size(3);
    picture = {static_cast<int>(x.size(2)), static_cast<int>(x.size(3)), pixels / kTilePixels};
    steps = strides(kernel);
  }

  static int4 strides(const Tensor& kernel) {
    return {static_cast<int>(kernel.stride(0)),
            static_cast<int>(kernel.stride(1)),
            static_cast<int>(kernel.stride(2)),
            static_cast<int>(kernel.stride(3))};
  }

  // Calls call(number type, std::integral_constant<int, kTiles>).
  template <typename Call>
  void dispatch(Call&& call) const {
    const auto with_tiles = [&](auto type) {
      channels == 16 ? call(type, std::integral_constant<int, 2>{}) : call(type, std::integral_constant<int, 4>{});
    };
    switch (x.scalar_type()) {
      case ScalarType::Half:
        return with_tiles(Half{});
      case ScalarType::BFloat16:
        return with_tiles(BFloat16{});
      default:
        STD_TORCH_CHECK(false, "x must be float16 or bfloat16");
    }
  }

  // Blocks that fit on the device at once, at most one a tile.
  template <typename Kernel>
  int blocks(Kernel* kernel_function) const {
    int each = 0;
    const auto error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel_function, kStemThreads, 0);
    STD_TORCH_CHECK(error == cudaSuccess, "cannot plan: ", cudaGetErrorString(error));
    const int64_t together = static_cast<int64_t>(std::max(each, 1)) * multiprocessors(x);
    return static_cast<int>(std::min(together, picture.tiles));
  }

  template <typename T>
  const T* numbers() const {
    return static_cast<const T*>(x.const_data_ptr());
  }

  Tensor make_partial(int blocks, int64_t numbers) const {
    return torch::stable::new_empty(x, {blocks, numbers}, ScalarType::Float);
  }

  dim3 finish_grid(int64_t numbers) const {
    return dim3(static_cast<unsigned>((numbers + kFinishSide - 1) / kFinishSide));
  }
};

// What every pass after the first one reads.
struct StemPass {
  Input input;
  Tensor weight, bias, statistics;
  Act act;
  float slope;

  StemPass(Tensor x, Tensor kernel, Tensor weight_, Tensor bias_, Tensor statistics_, int64_t act_, double slope_)
      : input(std::move(x), std::move(kernel)),
        weight(std::move(weight_)),
        bias(std::move(bias_)),
        statistics(std::move(statistics_)),
        act(to_act(act_)),
        slope(act == Act::kLinear ? 1.0f : static_cast<float>(slope_)) {
    STD_TORCH_CHECK(act != Act::kSilu, "there is no kernel of the first block with SiLU");
    check_table(weight, input.x, input.channels, "weight");
    check_table(bias, input.x, input.channels, "bias");
    check_table(statistics, input.x, 3 * input.channels, "statistics");
  }

  // Calls call(number type, tiles, std::integral_constant<Act>). Few kernels, each is compiled for many devices:
  // nothing behind the norm is a leaky activation of slope 1.
  template <typename Call>
  void dispatch(Call&& call) const {
    input.dispatch([&](auto type, auto tiles) {
      act == Act::kMish ? call(type, tiles, std::integral_constant<Act, Act::kMish>{})
                        : call(type, tiles, std::integral_constant<Act, Act::kLeaky>{});
    });
  }

  void check_grad(const Tensor& grad) const {
    const Tensor& x = input.x;
    check_channels_last(grad, "grad");
    STD_TORCH_CHECK(grad.size(0) == x.size(0) && grad.size(1) == input.channels && grad.size(2) == x.size(2) &&
                        grad.size(3) == x.size(3) && grad.scalar_type() == x.scalar_type() &&
                        grad.device() == x.device(),
                    "grad must have the shape of the output and the type and device of x");
  }
};

Tensor stem_sums_cuda(Tensor x, Tensor kernel) {
  const Guard guard(x.get_device_index());
  const Input input(x, kernel);
  Tensor sums = torch::stable::new_empty(x, {2, input.channels}, ScalarType::Double);
  input.dispatch([&](auto type, auto tiles) {
    using T = decltype(type);
    const auto run = stem_moments_kernel<T, tiles.value>;
    const int blocks = input.blocks(run);
    const Tensor partial = input.make_partial(blocks, 2 * input.channels);
    const cudaStream_t stream = current_stream(x);
    run<<<blocks, kStemThreads, 0, stream>>>(
        input.picture, input.numbers<T>(), floats(kernel), input.steps, results(partial));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
    Walk walk = {};
    walk.rows = input.pixels;
    walk.chunks = input.picture.tiles;
    finish_moments_kernel<<<input.finish_grid(input.channels), dim3(kFinishSide, kFinishSide), 0, stream>>>(
        walk,
        kTilePixels,
        blocks,
        static_cast<int>(input.channels),
        0.0,
        floats(partial),
        static_cast<double*>(sums.mutable_data_ptr()),
        nullptr);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return sums;
}

Tensor stem_norm_act_cuda(
    Tensor x, Tensor kernel, Tensor weight, Tensor bias, Tensor statistics, int64_t act, double slope) {
  const Guard guard(x.get_device_index());
  const StemPass pass(x, kernel, weight, bias, statistics, act, slope);
  const Input& input = pass.input;
  const Tensor rows = torch::stable::new_empty(x, {x.size(0), x.size(2), x.size(3), input.channels});
  const Tensor y = torch::stable::transpose(torch::stable::transpose(rows, 1, 3), 2, 3);  // [N, C, H, W]
  pass.dispatch([&](auto type, auto tiles, auto constant) {
    using T = decltype(type);
    const auto run = stem_apply_kernel<T, tiles.value, constant.value>;
    auto* to = static_cast<Words<tiles.value>*>(y.mutable_data_ptr());
    run<<<input.blocks(run), kStemThreads, 0, current_stream(x)>>>(input.picture,
                                                                  input.numbers<T>(),
                                                                  floats(kernel),
                                                                  input.steps,
                                                                  floats(statistics),
                                                                  floats(weight),
                                                                  floats(bias),
                                                                  pass.slope,
                                                                  to);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return y;
}

Tensor stem_grad_sums_cuda(
    Tensor grad, Tensor x, Tensor kernel, Tensor weight, Tensor bias, Tensor statistics, int64_t act, double slope) {
  const Guard guard(x.get_device_index());
  const StemPass pass(x, kernel, weight, bias, statistics, act, slope);
  pass.check_grad(grad);
  const Input& input = pass.input;
  Tensor sums = torch::stable::new_empty(x, {2, input.channels}, ScalarType::Float);
  pass.dispatch([&](auto type, auto tiles, auto constant) {
    using T = decltype(type);
    const auto run = stem_sums_kernel<T, tiles.value, constant.value>;
    const int blocks = input.blocks(run);
    const Tensor partial = input.make_partial(blocks, 2 * input.channels);
    const cudaStream_t stream = current_stream(x);
    run<<<blocks, kStemThreads, 0, stream>>>(input.picture,
                                             static_cast<const Words<tiles.value>*>(grad.const_data_ptr()),
                                             input.numbers<T>(),
                                             floats(kernel),
                                             input.steps,
                                             floats(statistics),
                                             floats(weight),
                                             floats(bias),
                                             pass.slope,
                                             results(partial));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
    finish_sums_kernel<<<input.finish_grid(input.channels), dim3(kFinishSide, kFinishSide), 0, stream>>>(
        blocks, static_cast<int>(input.channels), floats(partial), results(sums));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return sums;
}

Tensor stem_grad_cuda(Tensor grad,
                      Tensor x,
                      Tensor kernel,
                      Tensor weight,
                      Tensor bias,
                      Tensor statistics,
                      Tensor means,
                      int64_t act,
                      double slope) {
  const Guard guard(x.get_device_index());
  const StemPass pass(x, kernel, weight, bias, statistics, act, slope);
  pass.check_grad(grad);
  const Input& input = pass.input;
  check_table(means, x, 2 * input.channels, "means");
  Tensor found = torch::stable::empty_like(kernel);
  pass.dispatch([&](auto type, auto tiles, auto constant) {
    using T = decltype(type);
    const auto run = stem_grad_kernel<T, tiles.value, constant.value>;
    const int blocks = input.blocks(run);
    const int64_t numbers = kStemInputs * input.channels;
    const Tensor partial = input.make_partial(blocks, numbers);
    const cudaStream_t stream = current_stream(x);
    run<<<blocks, kStemThreads, 0, stream>>>(input.picture,
                                             static_cast<const Words<tiles.value>*>(grad.const_data_ptr()),
                                             input.numbers<T>(),
                                             floats(kernel),
                                             input.steps,
                                             floats(statistics),
                                             floats(weight),
                                             floats(bias),
                                             floats(means),
                                             pass.slope,
                                             results(partial));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
    finish_stem_kernel<<<input.finish_grid(numbers / 2), dim3(kFinishSide, kFinishSide), 0, stream>>>(
        blocks, static_cast<int>(input.channels), floats(partial), Input::strides(found), results(found));
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return found;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(yolo, CUDA, m) {
  m.impl("stem_sums", TORCH_BOX(&stem_sums_cuda));
  m.impl("stem_norm_act", TORCH_BOX(&stem_norm_act_cuda));
  m.impl("stem_grad_sums", TORCH_BOX(&stem_grad_sums_cuda));
  m.impl("stem_grad", TORCH_BOX(&stem_grad_cuda));
}

}  // namespace yolo
