// Batch norm and activation over [rows, channels], row by row: sums over rows first, then one pass that applies
// them, forward as backward. Every pass reads each tensor once, 16 bytes a load.
//
// A block has a thread for each of a few neighbouring vectors (16 bytes) of each of a few rows, and walks down
// the rows, so that what belongs to a channel stays in registers. Sums of a block go to memory; a small kernel
// adds them up in a fixed order, in float64. Products and sums are fused by name: the build forbids the compiler to.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../activations.h"
#include "vectors.cuh"

namespace yolo {

constexpr int kNormThreads = 512;
constexpr int kMaxColumns = 16;  // vectors of a row that a block takes

// A tensor [rows][vectors of 16 bytes] and how a grid walks over it.
struct Walk {
  int64_t rows, chunks;  // a chunk: the rows that a block takes at once
  int vectors, columns, lines;  // columns: vectors a block takes; lines: rows it has threads for

  // Rows that the block at `x` of `blocks` has walked over.
  __device__ int64_t rows_of(int64_t x, int64_t blocks, int64_t chunk_rows) const {
    const int64_t mine = (chunks - x + blocks - 1) / blocks;
    return mine * chunk_rows - ((chunks - 1) % blocks == x ? chunks * chunk_rows - rows : 0);
  }
};

// Where a thread stands: `column` in vectors of a row, `line` below the first row of a chunk.
struct Place {
  int column, line;
  bool active;

  __device__ explicit Place(const Walk& walk)
      : column(static_cast<int>(blockIdx.y) * walk.columns + static_cast<int>(threadIdx.x) % walk.columns),
        line(static_cast<int>(threadIdx.x) / walk.columns),
        active(line < walk.lines && column < walk.vectors) {}
};

template <int n>
struct Count {
  static constexpr int value = n;
};

// The vectors of kRows rows of kTensors tensors that a thread holds.
template <int kTensors, int kRows>
struct Held {
  uint4 bits[kTensors][kRows];
};

// Calls use(Count<n>, at, held) for n vectors at, at + step, ... of this thread and each of `tensors`, kRows at a
// time while a chunk is whole. The next ones are under way meanwhile: the memory never waits for the arithmetic.
// Backwards, the second pass over a tensor meets first what the first pass has left in the cache.
template <int kTensors, int kRows, bool kBackwards, typename Use>
__device__ void each_row(const Walk& walk, const Place& place, const uint4* const (&tensors)[kTensors], Use&& use) {
  const int64_t chunk_rows = kRows * walk.lines, step = static_cast<int64_t>(walk.lines) * walk.vectors;
  const int64_t whole = walk.rows / chunk_rows;  // the last of the chunks may be smaller
  const auto load = [&](auto count, int64_t at, auto& held) {
#pragma unroll
    for (int r = 0; r < decltype(count)::value; ++r) {
#pragma unroll
      for (int t = 0; t < kTensors; ++t) {
        held.bits[t][r] = __ldg(tensors[t] + at + r * step);
      }
    }
  };
  const auto rest = [&] {
    Held<kTensors, 1> held;
    for (int64_t row = whole * chunk_rows + place.line; row < walk.rows; row += walk.lines) {
      const int64_t at = row * walk.vectors + place.column;
      load(Count<1>{}, at, held);
      use(Count<1>{}, at, held);
    }
  };
  const auto start = [&](int64_t i) {
    const int64_t chunk = kBackwards ? walk.chunks - 1 - i : i;
    return (chunk * chunk_rows + place.line) * walk.vectors + place.column;
  };
  const Count<kRows> all;
  int64_t i = blockIdx.x;
  const int64_t blocks = gridDim.x, end = kBackwards ? walk.chunks : whole;
  if (kBackwards && i == 0 && whole < walk.chunks) {
    rest();
    i += blocks;
  }
  Held<kTensors, kRows> one, other;
  if (i < end) {
    load(all, start(i), one);
  }
  for (; i < end; i += 2 * blocks) {
    const bool more = i + blocks < end;
    if (more) {
      load(all, start(i + blocks), other);
    }
    use(all, start(i), one);
    if (more) {
      if (i + 2 * blocks < end) {
        load(all, start(i + 2 * blocks), one);
      }
      use(all, start(i + blocks), other);
    }
  }
  if (!kBackwards && whole < walk.chunks && (walk.chunks - 1) % blocks == blockIdx.x) {
    rest();
  }
}

// Adds up two numbers a channel over the lines of a block: use(channel in the block's columns, a, b).
template <int n, typename Use>
__device__ void add_lines(const Walk& walk, const float (&a)[n], const float (&b)[n], Use&& use) {
  __shared__ float table[2 * n][kNormThreads];
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int k = 0; k < n; ++k) {
    table[2 * k][thread] = a[k];
    table[2 * k + 1][thread] = b[k];
  }
  __syncthreads();
  for (int i = thread; i < n * walk.columns; i += kNormThreads) {
    const int k = i / walk.columns, column = i % walk.columns;
    float sum_a = 0.0f, sum_b = 0.0f;
    for (int line = 0; line < walk.lines; ++line) {
      sum_a += table[2 * k][line * walk.columns + column];
      sum_b += table[2 * k + 1][line * walk.columns + column];
    }
    const int vector = static_cast<int>(blockIdx.y) * walk.columns + column;
    if (vector < walk.vectors) {
      use(vector * n + k, sum_a, sum_b);
    }
  }
}

// Mean and sum of squared deviations of a block's rows. Deviations are from the block's first row: no
// cancellation between large squares.
template <typename T, int kRows>
__global__ void __launch_bounds__(kNormThreads)
    moments_kernel(Walk walk, const uint4* __restrict__ x, float* __restrict__ partial) {
  constexpr int n = kLanes<T>;
  const Place place(walk);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows * walk.lines;
  float shift[n] = {}, sum[n] = {}, square[n] = {};
  if (place.active) {
    unpack<T>(__ldg(x + first * walk.vectors + place.column), shift);
    each_row<1, kRows, false>(walk, place, {x}, [&](auto count, int64_t, const auto& held) {
#pragma unroll
      for (int r = 0; r < decltype(count)::value; ++r) {
        float value[n];
        unpack<T>(held.bits[0][r], value);
#pragma unroll
        for (int k = 0; k < n; ++k) {
          const float deviation = value[k] - shift[k];
          sum[k] += deviation;
          square[k] = fmaf(deviation, deviation, square[k]);
        }
      }
    });
  }
  const int channels = walk.vectors * n;
  const auto rows = static_cast<float>(walk.rows_of(blockIdx.x, gridDim.x, kRows * walk.lines));
  float* out = partial + static_cast<int64_t>(blockIdx.x) * 2 * channels;
  add_lines<n>(walk, sum, square, [&](int channel, float s, float q) {
    const float from = static_cast<float>(reinterpret_cast<const T*>(x)[first * channels + channel]);
    const float mean = s / rows;
    out[channel] = from + mean;
    out[channels + channel] = fmaxf(q - mean * s, 0.0f) + (q - q);  // a NaN stays one
  });
}

// What the passes know of the channels of a thread's vector.
template <int n>
struct Channels {
  float mean[n], scale[n], bias[n];  // z = (x - mean) scale + bias

  __device__ Channels(const Place& place,
                      int channels,
                      const float* statistics,
                      const float* weight,
                      const float* shift) {
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const int c = place.column * n + k;
      mean[k] = statistics[c];
      scale[k] = statistics[channels + c] * weight[c];
      bias[k] = shift[c];
    }
  }
};

template <typename T, Act act, bool kResidual, int kRows>
__global__ void __launch_bounds__(kNormThreads)
    apply_kernel(Walk walk,
                 const uint4* __restrict__ x,
                 const uint4* __restrict__ residual,
                 const float* __restrict__ statistics,
                 const float* __restrict__ weight,
                 const float* __restrict__ bias,
                 float slope,
                 uint4* __restrict__ y) {
  constexpr int n = kLanes<T>;
  const Place place(walk);
  if (!place.active) {
    return;
  }
  const Channels<n> channel(place, walk.vectors * n, statistics, weight, bias);
  const int64_t step = static_cast<int64_t>(walk.lines) * walk.vectors;
  const auto use = [&](auto count, int64_t at, const auto& held) {
#pragma unroll
    for (int r = 0; r < decltype(count)::value; ++r) {
      float value[n];
      unpack<T>(held.bits[0][r], value);
#pragma unroll
      for (int k = 0; k < n; ++k) {
        value[k] = activate<act>(fmaf(value[k] - channel.mean[k], channel.scale[k], channel.bias[k]), slope);
      }
      if constexpr (kResidual) {
        float other[n];
        unpack<T>(held.bits[1][r], other);
#pragma unroll
        for (int k = 0; k < n; ++k) {
          value[k] += other[k];
        }
      }
      y[at + r * step] = pack<T>(value);
    }
  };
  if constexpr (kResidual) {
    each_row<2, kRows, true>(walk, place, {x, residual}, use);
  } else {
    each_row<1, kRows, true>(walk, place, {x}, use);
  }
}

// Of a block's rows: the sums of the gradient at the norm's output and of its product with the normalised x.
template <typename T, Act act, int kRows>
__global__ void __launch_bounds__(kNormThreads)
    sums_kernel(Walk walk,
                const uint4* __restrict__ grad,
                const uint4* __restrict__ x,
                const float* __restrict__ statistics,
                const float* __restrict__ weight,
                const float* __restrict__ bias,
                float slope,
                float* __restrict__ partial) {
  constexpr int n = kLanes<T>;
  const Place place(walk);
  const int channels = walk.vectors * n;
  float sum[n] = {}, product[n] = {};
  if (place.active) {
    const Channels<n> channel(place, channels, statistics, weight, bias);
    each_row<2, kRows, false>(walk, place, {x, grad}, [&](auto count, int64_t, const auto& held) {
#pragma unroll
      for (int r = 0; r < decltype(count)::value; ++r) {
        float value[n], dz[n];
        unpack<T>(held.bits[0][r], value);
        unpack<T>(held.bits[1][r], dz);
#pragma unroll
        for (int k = 0; k < n; ++k) {
          const float deviation = value[k] - channel.mean[k];
          const float z = fmaf(deviation, channel.scale[k], channel.bias[k]);
          const float d = deactivate<act>(dz[k], z, slope);
          sum[k] += d;
          product[k] = fmaf(d, deviation, product[k]);
        }
      }
    });
  }
  float* out = partial + static_cast<int64_t>(blockIdx.x) * 2 * channels;
  add_lines<n>(walk, sum, product, [&](int c, float s, float p) {
    out[c] = s;
    out[channels + c] = p * statistics[channels + c];
  });
}

// dx = weight rstd (dz - mean(dz) - xhat mean(dz xhat)); the means are sums times 1 / count.
template <typename T, Act act, int kRows>
__global__ void __launch_bounds__(kNormThreads)
    grad_kernel(Walk walk,
                const uint4* __restrict__ grad,
                const uint4* __restrict__ x,
                const float* __restrict__ statistics,
                const float* __restrict__ weight,
                const float* __restrict__ bias,
                const float* __restrict__ sums,
                float per_count,
                float slope,
                uint4* __restrict__ dx) {
  constexpr int n = kLanes<T>;
  const Place place(walk);
  if (!place.active) {
    return;
  }
  const int channels = walk.vectors * n;
  const Channels<n> channel(place, channels, statistics, weight, bias);
  float slant[n], offset[n];
#pragma unroll
  for (int k = 0; k < n; ++k) {
    const int c = place.column * n + k;
    offset[k] = -channel.scale[k] * (sums[c] * per_count);
    slant[k] = -channel.scale[k] * statistics[channels + c] * (sums[channels + c] * per_count);
  }
  const int64_t step = static_cast<int64_t>(walk.lines) * walk.vectors;
  each_row<2, kRows, true>(walk, place, {x, grad}, [&](auto count, int64_t at, const auto& held) {
#pragma unroll
    for (int r = 0; r < decltype(count)::value; ++r) {
      float value[n], dz[n];
      unpack<T>(held.bits[0][r], value);
      unpack<T>(held.bits[1][r], dz);
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const float deviation = value[k] - channel.mean[k];
        const float z = fmaf(deviation, channel.scale[k], channel.bias[k]);
        const float d = deactivate<act>(dz[k], z, slope);
        value[k] = fmaf(channel.scale[k], d, fmaf(slant[k], deviation, offset[k]));
      }
      dx[at + r * step] = pack<T>(value);
    }
  });
}

constexpr int kFinishSide = 32;  // channels and slices of blocks of a finishing block

// Adds up two numbers a channel over the blocks, in float64: use(channel, a, b) once a channel. `read` turns what
// block i has left into what is added.
template <typename Read, typename Use>
__device__ void add_blocks(int blocks, int channels, const float* partial, Read&& read, Use&& use) {
  __shared__ double table[2][kFinishSide][kFinishSide + 1];
  const int channel = static_cast<int>(blockIdx.x) * kFinishSide + static_cast<int>(threadIdx.x);
  double a = 0.0, b = 0.0;
  if (channel < channels) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.y); i < blocks; i += kFinishSide) {
      const float* from = partial + static_cast<int64_t>(i) * 2 * channels + channel;
      read(i, from[0], from[channels], a, b);
    }
  }
  table[0][threadIdx.y][threadIdx.x] = a;
  table[1][threadIdx.y][threadIdx.x] = b;
  __syncthreads();
  if (threadIdx.y == 0 && channel < channels) {
    a = b = 0.0;
    for (int i = 0; i < kFinishSide; ++i) {
      a += table[0][i][threadIdx.x];
      b += table[1][i][threadIdx.x];
    }
    use(channel, a, b);
  }
}

// Sum and sum of squares [2][channels], or mean, 1 / sqrt(variance + eps) and unbiased variance [3][channels].
static __global__ void __launch_bounds__(kFinishSide* kFinishSide) finish_moments_kernel(Walk walk,
                                                                                 int64_t chunk_rows,
                                                                                 int blocks,
                                                                                 int channels,
                                                                                 double eps,
                                                                                 const float* __restrict__ partial,
                                                                                 double* __restrict__ sums,
                                                                                 float* __restrict__ statistics) {
  add_blocks(
      blocks,
      channels,
      partial,
      [&](int i, float block_mean, float deviations, double& sum, double& square) {
        const auto rows = static_cast<double>(walk.rows_of(i, blocks, chunk_rows));
        const double mean = block_mean;
        sum += rows * mean;
        square += deviations + rows * mean * mean;
      },
      [&](int channel, double sum, double square) {
        if (sums != nullptr) {
          sums[channel] = sum;
          sums[channels + channel] = square;
          return;
        }
        const auto rows = static_cast<double>(walk.rows);
        const double mean = sum / rows, raw = square / rows - mean * mean, variance = raw < 0.0 ? 0.0 : raw;
        statistics[channel] = static_cast<float>(mean);
        statistics[channels + channel] = static_cast<float>(1.0 / sqrt(variance + eps));
        statistics[2 * channels + channel] = static_cast<float>(variance * (rows / (rows - 1.0)));
      });
}

static __global__ void __launch_bounds__(kFinishSide* kFinishSide)
    finish_sums_kernel(int blocks, int channels, const float* __restrict__ partial, float* __restrict__ sums) {
  add_blocks(
      blocks,
      channels,
      partial,
      [](int, float first, float second, double& a, double& b) {
        a += first;
        b += second;
      },
      [&](int channel, double a, double b) {
        sums[channel] = static_cast<float>(a);
        sums[channels + channel] = static_cast<float>(b);
      });
}

}  // namespace yolo
