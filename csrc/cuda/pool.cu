// yolo::max_pool_2x2 and its backward on CUDA: a block a row of the output, a thread 16 bytes of its pixels.
#include <algorithm>

#include "channels.cuh"
#include "vectors.cuh"

namespace yolo {
namespace {

constexpr int kPoolThreads = 256;

// Where a thread reads: the first of the 2 x 2 pixels of output vector i of a row, and the distance of the others.
struct Window {
  int64_t first, right, below;

  __device__ Window(int64_t row, int i, int width, int vectors)
      : first((2 * row * 2 * width + 2 * static_cast<int64_t>(i / vectors)) * vectors + i % vectors),
        right(vectors),
        below(static_cast<int64_t>(2) * width * vectors) {}

  __device__ int64_t at(int pixel) const { return first + (pixel & 1) * right + (pixel >> 1) * below; }
};

// Whether `value`, which comes later, takes the place of `best`: the first of equals stays, a NaN always wins.
__device__ bool wins(float value, float best) { return value > best || value != value; }

// The largest of a window, channel by channel, and which of the four pixels it is.
template <typename T>
struct Largest {
  static constexpr int n = kLanes<T>;
  float value[n];
  int from[n] = {};

  __device__ Largest(const uint4* x, const Window& window) {
    uint4 bits[4];
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      bits[p] = __ldg(x + window.at(p));
    }
    unpack<T>(bits[0], value);
#pragma unroll
    for (int p = 1; p < 4; ++p) {
      float other[n];
      unpack<T>(bits[p], other);
#pragma unroll
      for (int k = 0; k < n; ++k) {
        if (wins(other[k], value[k])) {
          value[k] = other[k];
          from[k] = p;
        }
      }
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(kPoolThreads)
    pool_kernel(int64_t rows, int width, int vectors, const uint4* __restrict__ x, uint4* __restrict__ y) {
  const int length = width * vectors;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (int i = static_cast<int>(threadIdx.x); i < length; i += kPoolThreads) {
      y[row * length + i] = pack<T>(Largest<T>(x, Window(row, i, width, vectors)).value);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kPoolThreads) pool_grad_kernel(int64_t rows,
                                                                 int width,
                                                                 int vectors,
                                                                 const uint4* __restrict__ grad,
                                                                 const uint4* __restrict__ x,
                                                                 uint4* __restrict__ dx) {
  constexpr int n = kLanes<T>;
  const int length = width * vectors;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (int i = static_cast<int>(threadIdx.x); i < length; i += kPoolThreads) {
      const Window window(row, i, width, vectors);
      float dy[n];
      unpack<T>(__ldg(grad + row * length + i), dy);
      const Largest<T> largest(x, window);
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        float value[n];
#pragma unroll
        for (int k = 0; k < n; ++k) {
          value[k] = largest.from[k] == p ? dy[k] : 0.0f;
        }
        dx[window.at(p)] = pack<T>(value);
      }
    }
  }
}

// Rows and row length of the output of x, with what the kernels count on.
struct Rows {
  int64_t count;
  int width, vectors;

  explicit Rows(const Tensor& x)
      : count(x.size(0) * (x.size(2) / 2)),
        width(static_cast<int>(x.size(3) / 2)),
        vectors(static_cast<int>(vectors_of(x))) {
    STD_TORCH_CHECK(x.size(2) % 2 == 0 && x.size(3) % 2 == 0 && x.size(3) / 2 * vectors <= INT32_MAX,
                    "wanted an even height and width, got ",
                    x.size(2),
                    " x ",
                    x.size(3));
  }

  bool none() const { return count == 0 || width == 0; }

  dim3 grid() const { return dim3(static_cast<unsigned>(std::min<int64_t>(count, 1 << 20))); }
};

using Guard = torch::stable::accelerator::DeviceGuard;

Tensor max_pool_cuda(Tensor x) {
  check_channels_last(x, "x");
  const Guard guard(x.get_device_index());
  const Rows rows(x);
  const Tensor pixels = torch::stable::new_empty(x, {x.size(0), x.size(2) / 2, x.size(3) / 2, x.size(1)});
  const Tensor y = torch::stable::transpose(torch::stable::transpose(pixels, 1, 3), 2, 3);  // [N, C, H / 2, W / 2]
  if (!rows.none()) {
    with_type(x.scalar_type(), [&](auto type) {
      pool_kernel<decltype(type)><<<rows.grid(), kPoolThreads, 0, current_stream(x)>>>(
          rows.count, rows.width, rows.vectors, vectors(x), static_cast<uint4*>(y.mutable_data_ptr()));
    });
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
  return y;
}

Tensor max_pool_backward_cuda(Tensor grad, Tensor x) {
  check_channels_last(x, "x");
  check_channels_last(grad, "grad");
  const Guard guard(x.get_device_index());
  const Rows rows(x);
  STD_TORCH_CHECK(grad.size(0) == x.size(0) && grad.size(1) == x.size(1) && 2 * grad.size(2) == x.size(2) &&
                      2 * grad.size(3) == x.size(3) && grad.scalar_type() == x.scalar_type() &&
                      grad.device() == x.device(),
                  "grad must have half the height and width of x, its other axes, its type and its device");
  Tensor dx = torch::stable::empty_like(x);
  if (!rows.none()) {
    with_type(x.scalar_type(), [&](auto type) {
      pool_grad_kernel<decltype(type)><<<rows.grid(), kPoolThreads, 0, current_stream(x)>>>(
          rows.count, rows.width, rows.vectors, vectors(grad), vectors(x), static_cast<uint4*>(dx.mutable_data_ptr()));
    });
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
  return dx;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(yolo, CUDA, m) {
  m.impl("max_pool_2x2", TORCH_BOX(&max_pool_cuda));
  m.impl("max_pool_2x2_backward", TORCH_BOX(&max_pool_backward_cuda));
}

}  // namespace yolo
