// The first block of a network, training: 3x3 convolution of three channels, batch norm, activation. Its picture is
// small and its output the largest tensor there is, so every pass computes the convolution again on matrix units from
// the picture and nothing but the activated output, and its gradient, touches the memory.
//
// A block walks over tiles of kTileHeight x kTileWidth pixels; a warp takes 16 neighbouring pixels of a row at once, as
// the 16 rows of `mma.m16n8k16`. A quarter warp `t` = lane % 4 holds the output channels of the two pixels `g` and
// `g + 8`, g = lane / 4, that lie side by side in memory: 2 kTiles channels from 2 kTiles t on. The columns of the
// matrix units are put in that order with the weights.
//
// The 27 inputs of an output are 15 pairs, five of each row of the picture: nine neighbouring numbers and one whose
// weight is 0. In `slot` 0 to 2 thread t has pair t of that row, in slot 3 the last pair of row t.
#pragma once

#include "norm.cuh"

namespace yolo {

constexpr int kStemThreads = 128, kStemWarps = kStemThreads / 32;
constexpr int kTileHeight = 16, kTileWidth = 32, kTilePixels = kTileHeight * kTileWidth;
constexpr int kStemInputs = 32;  // of an output, those that count for nothing among them
constexpr int kPatchRow = 3 * (kTileWidth + 2), kPatchRows = kTileHeight + 2;  // numbers of a tile and its rim
constexpr int kRowWords = (kPatchRow + 2) / 2;
constexpr int kCopyWords = kPatchRows * kRowWords + 8;  // the second copy starts 16 banks behind the first

// A tile of the picture twice, the second time one number earlier: a pair is one word of one of them.
struct Patch {
  uint32_t words[2 * kCopyWords];
};

// Of the input [N, H, W, 3].
struct Picture {
  int height, width;
  int64_t tiles;

  __device__ int tiles_across() const { return width / kTileWidth; }
  __device__ int tiles_down() const { return height / kTileHeight; }
};

// Which tile of which picture.
struct Tile {
  int64_t image;
  int top, left;

  __device__ Tile(const Picture& picture, int64_t index) {
    const int across = picture.tiles_across();
    const int64_t line = index / across;
    left = static_cast<int>(index - line * across) * kTileWidth;
    image = line / picture.tiles_down();
    top = static_cast<int>(line - image * picture.tiles_down()) * kTileHeight;
  }

  // Of the picture: pixels from the first.
  __device__ int64_t pixel(const Picture& picture, int row, int column) const {
    return (image * picture.height + top + row) * picture.width + left + column;
  }
};

template <typename T>
__device__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, Half>) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  __trap();  // yolo/ops/stem.py asks for the capability
#endif
}

// An 8 x 8 matrix of pairs' halves over the lanes of a warp, rows and columns exchanged.
__device__ inline uint32_t transposed(uint32_t pair) {
  uint32_t result = 0;
#if __CUDA_ARCH__ >= 800
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
#endif
  return result;
}

// What a thread keeps: where it reads and the weights of its outputs.
template <typename T, int kTiles>
struct Stem {
  static constexpr int channels = 8 * kTiles, own = 2 * kTiles;
  int g, t, warp;
  int pairs, last_pairs;       // words of a patch from which slots 0 to 2 and slot 3 count
  uint32_t weights[kTiles][4];  // of the columns of a tile, a pair of inputs a slot

  // `kernel` is [channels][3][3][3] in any order of memory, `steps` are its strides.
  __device__ Stem(const float* kernel, const int4& steps)
      : g(static_cast<int>(threadIdx.x) % 32 / 4),
        t(static_cast<int>(threadIdx.x) % 4),
        warp(static_cast<int>(threadIdx.x) / 32) {
    const int start = (g & 1) * kCopyWords + (3 * g >> 1);
    pairs = start + t;
    last_pairs = start + (t < 3 ? t : 2) * kRowWords + 4;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int slot = 0; slot < 4; ++slot) {
        float pair[2] = {0.0f, 0.0f};
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int row = slot < 3 ? slot : t, place = slot < 3 ? 2 * t + e : 8 + e;
          if (row < 3 && place < 9) {
            pair[e] = kernel[column(j, g) * steps.x + place % 3 * steps.y + row * steps.z + place / 3 * steps.w];
          }
        }
        weights[j][slot] = pack_pair<T>(pair[0], pair[1]);
      }
    }
  }

  // The channel in column `n` of tile `j`.
  __device__ static int column(int j, int n) { return n / 2 * own + 2 * j + n % 2; }

  // Channel `k` of those that this thread holds: pair k / 2 of its words.
  __device__ int channel(int k) const { return t * own + k; }

  // Inputs of the 16 pixels from `strip` (of two) of `row` on, [slot][pixel g or g + 8].
  __device__ void gather(const Patch& patch, int row, int strip, uint32_t (&inputs)[4][2]) const {
    const uint32_t* words = patch.words + row * kRowWords + 24 * strip;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int slot = 0; slot < 3; ++slot) {
        inputs[slot][half] = words[pairs + slot * kRowWords + 12 * half];
      }
      const uint32_t last = words[last_pairs + 12 * half];
      inputs[3][half] = t < 3 ? last : 0;
    }
  }

  // Tile `j` of the outputs: channels 2 j and 2 j + 1 of pixel g, then of pixel g + 8.
  __device__ void convolve(const uint32_t (&inputs)[4][2], int j, float (&d)[4]) const {
    d[0] = d[1] = d[2] = d[3] = 0.0f;
#pragma unroll
    for (int slot = 0; slot < 4; slot += 2) {
      const uint32_t a[4] = {inputs[slot][0], inputs[slot][1], inputs[slot + 1][0], inputs[slot + 1][1]};
      const uint32_t b[2] = {weights[j][slot], weights[j][slot + 1]};
      mma<T>(d, a, b);
    }
  }
};

// The channels of a pixel that a thread holds, in pairs.
template <int kTiles>
struct alignas(4 * kTiles) Words {
  uint32_t pair[kTiles];
};

// Fills `patch` with the tile and the pixels around it; outside of the picture all is 0.
template <typename T>
__device__ void load_patch(const T* x, const Picture& picture, const Tile& tile, Patch& patch) {
  const auto* numbers = reinterpret_cast<const uint16_t*>(x);
  auto* first = reinterpret_cast<uint16_t*>(patch.words);
  auto* second = reinterpret_cast<uint16_t*>(patch.words + kCopyWords);
  for (int i = static_cast<int>(threadIdx.x); i < kPatchRows * 2 * kRowWords; i += kStemThreads) {
    const int row = i / (2 * kRowWords), at = i % (2 * kRowWords);
    const int y = tile.top + row - 1, column = tile.left + at / 3 - 1;
    const bool inside = at < kPatchRow && y >= 0 && y < picture.height && column >= 0 && column < picture.width;
    const uint16_t value = inside ? __ldg(numbers + tile.pixel(picture, row - 1, -1) * 3 + at) : 0;
    first[i] = value;
    if (at > 0) {
      second[i - 1] = value;
    }
    if (at == 2 * kRowWords - 1) {
      second[i] = 0;
    }
  }
}

// Calls use(inputs, first pixel of the strip) for all strips of 16 pixels of this warp.
template <typename T, int kTiles, typename Use>
__device__ void each_strip(const T* x, const Picture& picture, const Stem<T, kTiles>& stem, Patch& patch, Use&& use) {
  for (int64_t i = blockIdx.x; i < picture.tiles; i += gridDim.x) {
    const Tile tile(picture, i);
    __syncthreads();
    load_patch(x, picture, tile, patch);
    __syncthreads();
#pragma unroll 2
    for (int strip = stem.warp; strip < kTilePixels / 16; strip += kStemWarps) {
      uint32_t inputs[4][2];
      stem.gather(patch, strip / 2, strip % 2, inputs);
      use(inputs, tile.pixel(picture, strip / 2, strip % 2 * 16));
    }
  }
}

// Adds up two numbers a channel over a block, `a` and `b` of the thread's own channels: use(channel, a, b).
template <typename T, int kTiles, typename Use>
__device__ void add_warps(const Stem<T, kTiles>& stem,
                          const float (&a)[2 * kTiles],
                          const float (&b)[2 * kTiles],
                          Use&& use) {
  __shared__ float table[2][kStemWarps][8 * kTiles];
#pragma unroll
  for (int k = 0; k < stem.own; ++k) {
    float sum[2] = {a[k], b[k]};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], step);
      }
      if (stem.g == 0) {
        table[i][stem.warp][stem.channel(k)] = sum[i];
      }
    }
  }
  __syncthreads();
  const int channel = static_cast<int>(threadIdx.x);
  if (channel < stem.channels) {
    float sum[2] = {0.0f, 0.0f};
    for (int i = 0; i < 2; ++i) {
      for (int warp = 0; warp < kStemWarps; ++warp) {
        sum[i] += table[i][warp][channel];
      }
    }
    use(channel, sum[0], sum[1]);
  }
}

// As moments_kernel (norm.cuh), of the convolution; deviations are from the block's first pixel.
template <typename T, int kTiles>
__global__ void __launch_bounds__(kStemThreads) stem_moments_kernel(Picture picture,
                                                                   const T* __restrict__ x,
                                                                   const float* __restrict__ kernel,
                                                                   int4 steps,
                                                                   float* __restrict__ partial) {
  __shared__ Patch patch;
  const Stem<T, kTiles> stem(kernel, steps);
  float shift[2 * kTiles], sum[2 * kTiles] = {}, square[2 * kTiles] = {};
  {
    load_patch(x, picture, Tile(picture, blockIdx.x), patch);
    __syncthreads();
    uint32_t inputs[4][2];
    stem.gather(patch, 0, 0, inputs);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      float d[4];
      stem.convolve(inputs, j, d);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        shift[2 * j + e] = __shfl_sync(0xffffffffu, d[e], stem.t);
      }
    }
  }
  each_strip<T, kTiles>(x, picture, stem, patch, [&](const auto& inputs, int64_t) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      float d[4];
      stem.convolve(inputs, j, d);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k = 2 * j + i % 2;
        const float deviation = d[i] - shift[k];
        sum[k] += deviation;
        square[k] = fmaf(deviation, deviation, square[k]);
      }
    }
  });
  __shared__ float from[8 * kTiles];
  if (threadIdx.x < 4) {
#pragma unroll
    for (int k = 0; k < stem.own; ++k) {
      from[stem.channel(k)] = shift[k];
    }
  }
  const int64_t mine = (picture.tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;
  const auto pixels = static_cast<float>(mine * kTilePixels);
  float* out = partial + static_cast<int64_t>(blockIdx.x) * 2 * stem.channels;
  add_warps(stem, sum, square, [&](int channel, float s, float q) {
    const float mean = s / pixels;
    out[channel] = from[channel] + mean;
    out[stem.channels + channel] = fmaxf(q - mean * s, 0.0f) + (q - q);  // a NaN stays one
  });
}

// What the passes know of a thread's channels (compare Channels in norm.cuh).
template <int n>
struct StemNorm {
  float mean[n], scale[n], bias[n];  // z = (x - mean) scale + bias

  template <typename T, int kTiles>
  __device__ StemNorm(const Stem<T, kTiles>& stem, const float* statistics, const float* weight, const float* shift) {
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const int c = stem.channel(k);
      mean[k] = statistics[c];
      scale[k] = statistics[stem.channels + c] * weight[c];
      bias[k] = shift[c];
    }
  }
};

template <typename T, int kTiles, Act act>
__global__ void __launch_bounds__(kStemThreads) stem_apply_kernel(Picture picture,
                                                                 const T* __restrict__ x,
                                                                 const float* __restrict__ kernel,
                                                                 int4 steps,
                                                                 const float* __restrict__ statistics,
                                                                 const float* __restrict__ weight,
                                                                 const float* __restrict__ bias,
                                                                 float slope,
                                                                 Words<kTiles>* __restrict__ y) {
  __shared__ Patch patch;
  const Stem<T, kTiles> stem(kernel, steps);
  const StemNorm<2 * kTiles> norm(stem, statistics, weight, bias);
  each_strip<T, kTiles>(x, picture, stem, patch, [&](const auto& inputs, int64_t pixel) {
    Words<kTiles> result[2];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      float d[4];
      stem.convolve(inputs, j, d);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k = 2 * j + i % 2;
        d[i] = activate<act>(fmaf(d[i] - norm.mean[k], norm.scale[k], norm.bias[k]), slope);
      }
      result[0].pair[j] = pack_pair<T>(d[0], d[1]);
      result[1].pair[j] = pack_pair<T>(d[2], d[3]);
    }
    y[(pixel + stem.g) * 4 + stem.t] = result[0];
    y[(pixel + stem.g + 8) * 4 + stem.t] = result[1];
  });
}

// Reads the gradient of the outputs of a strip.
template <typename T, int kTiles>
__device__ void load_grad(const Words<kTiles>* grad, int64_t pixel, const Stem<T, kTiles>& stem, Words<kTiles> (&to)[2]) {
  to[0] = grad[(pixel + stem.g) * 4 + stem.t];
  to[1] = grad[(pixel + stem.g + 8) * 4 + stem.t];
}

// As sums_kernel (norm.cuh).
template <typename T, int kTiles, Act act>
__global__ void __launch_bounds__(kStemThreads) stem_sums_kernel(Picture picture,
                                                                const Words<kTiles>* __restrict__ grad,
                                                                const T* __restrict__ x,
                                                                const float* __restrict__ kernel,
                                                                int4 steps,
                                                                const float* __restrict__ statistics,
                                                                const float* __restrict__ weight,
                                                                const float* __restrict__ bias,
                                                                float slope,
                                                                float* __restrict__ partial) {
  __shared__ Patch patch;
  const Stem<T, kTiles> stem(kernel, steps);
  const StemNorm<2 * kTiles> norm(stem, statistics, weight, bias);
  float sum[2 * kTiles] = {}, product[2 * kTiles] = {};
  each_strip<T, kTiles>(x, picture, stem, patch, [&](const auto& inputs, int64_t pixel) {
    Words<kTiles> dy[2];
    load_grad(grad, pixel, stem, dy);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      float d[4], dz[4];
      stem.convolve(inputs, j, d);
      unpack_pair<T>(dy[0].pair[j], dz[0], dz[1]);
      unpack_pair<T>(dy[1].pair[j], dz[2], dz[3]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k = 2 * j + i % 2;
        const float deviation = d[i] - norm.mean[k];
        const float grown = deactivate<act>(dz[i], fmaf(deviation, norm.scale[k], norm.bias[k]), slope);
        sum[k] += grown;
        product[k] = fmaf(grown, deviation, product[k]);
      }
    }
  });
  float* out = partial + static_cast<int64_t>(blockIdx.x) * 2 * stem.channels;
  add_warps(stem, sum, product, [&](int channel, float s, float p) {
    out[channel] = s;
    out[stem.channels + channel] = p * statistics[stem.channels + channel];
  });
}

// The gradient of the weights, of a block's pixels: [inputs][channels], as grad_kernel (norm.cuh) and a product with
// the inputs over all pixels. Both factors have pixels as rows and are transposed for it.
template <typename T, int kTiles, Act act>
__global__ void __launch_bounds__(kStemThreads) stem_grad_kernel(Picture picture,
                                                                const Words<kTiles>* __restrict__ grad,
                                                                const T* __restrict__ x,
                                                                const float* __restrict__ kernel,
                                                                int4 steps,
                                                                const float* __restrict__ statistics,
                                                                const float* __restrict__ weight,
                                                                const float* __restrict__ bias,
                                                                const float* __restrict__ means,
                                                                float slope,
                                                                float* __restrict__ partial) {
  __shared__ Patch patch;
  const Stem<T, kTiles> stem(kernel, steps);
  const StemNorm<2 * kTiles> norm(stem, statistics, weight, bias);
  float slant[2 * kTiles], offset[2 * kTiles];
#pragma unroll
  for (int k = 0; k < stem.own; ++k) {
    const int c = stem.channel(k);
    offset[k] = -norm.scale[k] * means[c];
    slant[k] = -norm.scale[k] * statistics[stem.channels + c] * means[stem.channels + c];
  }
  float total[kTiles / 2][4][4] = {};  // [two tiles][slot]
  each_strip<T, kTiles>(x, picture, stem, patch, [&](const auto& inputs, int64_t pixel) {
    Words<kTiles> dy[2];
    load_grad(grad, pixel, stem, dy);
    uint32_t b[4][2];
#pragma unroll
    for (int slot = 0; slot < 4; ++slot) {
      b[slot][0] = transposed(inputs[slot][0]);
      b[slot][1] = transposed(inputs[slot][1]);
    }
#pragma unroll
    for (int two = 0; two < kTiles / 2; ++two) {
      uint32_t a[4];
#pragma unroll
      for (int each = 0; each < 2; ++each) {
        const int j = 2 * two + each;
        float d[4], dz[4];
        stem.convolve(inputs, j, d);
        unpack_pair<T>(dy[0].pair[j], dz[0], dz[1]);
        unpack_pair<T>(dy[1].pair[j], dz[2], dz[3]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int k = 2 * j + i % 2;
          const float deviation = d[i] - norm.mean[k];
          const float grown = deactivate<act>(dz[i], fmaf(deviation, norm.scale[k], norm.bias[k]), slope);
          d[i] = fmaf(norm.scale[k], grown, fmaf(slant[k], deviation, offset[k]));
        }
        a[each] = transposed(pack_pair<T>(d[0], d[1]));
        a[2 + each] = transposed(pack_pair<T>(d[2], d[3]));
      }
#pragma unroll
      for (int slot = 0; slot < 4; ++slot) {
        mma<T>(total[two][slot], a, b[slot]);
      }
    }
  });

  __shared__ float table[kStemInputs * 8 * kTiles];
  for (int warp = 0; warp < kStemWarps; ++warp) {  // in turn: the order of a sum is always the same
    __syncthreads();
    if (stem.warp == warp) {
#pragma unroll
      for (int two = 0; two < kTiles / 2; ++two) {
#pragma unroll
        for (int slot = 0; slot < 4; ++slot) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int input = slot * 8 + 2 * stem.t + i % 2;
            float& place = table[input * stem.channels + stem.column(2 * two + i / 2, stem.g)];
            place = warp == 0 ? total[two][slot][i] : place + total[two][slot][i];
          }
        }
      }
    }
  }
  __syncthreads();
  float* out = partial + static_cast<int64_t>(blockIdx.x) * kStemInputs * stem.channels;
  for (int i = static_cast<int>(threadIdx.x); i < kStemInputs * stem.channels; i += kStemThreads) {
    out[i] = table[i];
  }
}

// Adds up what the blocks have left into the gradient [channels][3][3][3] of the strides `steps`.
static __global__ void __launch_bounds__(kFinishSide* kFinishSide) finish_stem_kernel(int blocks,
                                                                                     int channels,
                                                                                     const float* __restrict__ partial,
                                                                                     int4 steps,
                                                                                     float* __restrict__ grad) {
  const int half = kStemInputs / 2 * channels;
  const auto write = [&](int index, double value) {
    const int input = index / channels, slot = input / 8, t = input % 8 / 2, e = input % 2;
    const int row = slot < 3 ? slot : t, place = slot < 3 ? 2 * t + e : 8 + e;
    if (row < 3 && place < 9) {
      grad[index % channels * steps.x + place % 3 * steps.y + row * steps.z + place / 3 * steps.w] =
          static_cast<float>(value);
    }
  };
  add_blocks(
      blocks,
      half,
      partial,
      [](int, float first, float second, double& a, double& b) {
        a += first;
        b += second;
      },
      [&](int index, double a, double b) {
        write(index, a);
        write(index + half, b);
      });
}

}  // namespace yolo
