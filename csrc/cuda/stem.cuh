// The first block of a network, training: 3x3 convolution of three channels, batch norm, activation. Its picture is
// small and its output the largest tensor there is, so every pass computes the convolution again on matrix units from
// the picture and nothing but the activated output, and its gradient, touches the memory.
//
// A block walks over tiles of kTileHeight x kTileWidth pixels; a warp takes 16 neighbouring pixels of a row at once, as
// the 16 rows of `mma.m16n8k16`. Thread `t` of the four of group `g` (lane % 4, lane / 4) holds channels that lie side
// by side in memory, 2 kTiles from 2 kTiles t on, of pixels `g` and `g + 8`: the columns of the matrix units are put in
// that order with the weights.
//
// The 27 inputs of an output are 15 pairs, five of each row of the picture: nine neighbouring numbers and one whose
// weight is 0. In `slot` 0 to 2 thread t has pair t of that row, in slot 3 the last pair of row t.
#pragma once

#include <cuda_pipeline.h>

#include "norm.cuh"

namespace yolo {

constexpr int kStemThreads = 128, kStemWarps = kStemThreads / 32;
constexpr int kTileHeight = 16, kTileWidth = 32, kTilePixels = kTileHeight * kTileWidth;
constexpr int kStrips = kTilePixels / 16 / kStemWarps;  // of a tile, a warp
constexpr int kStemInputs = 32;  // of an output, those that count for nothing among them
constexpr int kPatchRows = kTileHeight + 2;
constexpr int kRowVectors = 3 * kTileWidth / 8 + 2, kRowWords = 4 * kRowVectors;  // a vector more on either side

// A tile of the picture and the pixels around it, as they lie in memory: 16 bytes left of the tile, it, 16 bytes more.
struct Patch {
  uint4 vectors[kPatchRows * kRowVectors];
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
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
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
  int pairs, last_pairs;  // words of a patch from which slots 0 to 2 and slot 3 count
  uint32_t select;  // of two words the pair: every other pixel starts in the middle of a word
  uint32_t weights[kTiles][4];  // of the columns of a tile, a pair of inputs a slot

  // `kernel` is [channels][3][3][3] in any order of memory, `steps` are its strides.
  __device__ Stem(const float* kernel, const int4& steps)
      : g(static_cast<int>(threadIdx.x) % 32 / 4),
        t(static_cast<int>(threadIdx.x) % 4),
        warp(static_cast<int>(threadIdx.x) / 32) {
    const int start = (3 * g + 5) / 2;  // the first number of pixel 0 is the upper half of word 2
    select = g % 2 == 0 ? 0x5432 : 0x3210;
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
    const uint32_t* words = reinterpret_cast<const uint32_t*>(patch.vectors) + row * kRowWords + 24 * strip;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int slot = 0; slot < 3; ++slot) {
        inputs[slot][half] = pair(words + pairs + slot * kRowWords + 12 * half);
      }
      const uint32_t last = pair(words + last_pairs + 12 * half);
      inputs[3][half] = t < 3 ? last : 0;
    }
  }

  __device__ uint32_t pair(const uint32_t* words) const { return __byte_perm(words[0], words[1], select); }

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

// Starts to fill `patch` with the tile and the pixels around it; outside of the picture all is 0.
template <typename T>
__device__ void fetch_patch(const T* x, const Picture& picture, const Tile& tile, Patch& patch) {
  for (int i = static_cast<int>(threadIdx.x); i < kPatchRows * kRowVectors; i += kStemThreads) {
    const int row = i / kRowVectors, at = i % kRowVectors, y = tile.top + row - 1;
    const bool inside = y >= 0 && y < picture.height && (at > 0 || tile.left > 0) &&
                        (at < kRowVectors - 1 || tile.left + kTileWidth < picture.width);
    const T* from = inside ? x + tile.pixel(picture, row - 1, 0) * 3 + 8 * (at - 1) : x;
    __pipeline_memcpy_async(patch.vectors + i, from, 16, inside ? 0 : 16);
  }
}

// The channels of two pixels of a strip that a thread holds.
template <int kTiles>
struct Outputs {
  Words<kTiles> of[2];

  // `map` is [pixels][4] of Words.
  template <typename T>
  __device__ void load(const Words<kTiles>* map, int64_t pixel, const Stem<T, kTiles>& stem) {
    of[0] = map[(pixel + stem.g) * 4 + stem.t];
    of[1] = map[(pixel + stem.g + 8) * 4 + stem.t];
  }

  template <typename T>
  __device__ void store(Words<kTiles>* map, int64_t pixel, const Stem<T, kTiles>& stem) const {
    map[(pixel + stem.g) * 4 + stem.t] = of[0];
    map[(pixel + stem.g + 8) * 4 + stem.t] = of[1];
  }
};

// Calls use(inputs, first pixel, gradients) for all strips of 16 pixels of this warp. The next patch and the next
// gradients are under way meanwhile.
template <bool kGrad, typename T, int kTiles, typename Use>
__device__ void each_strip(const T* x,
                           const Words<kTiles>* grad,
                           const Picture& picture,
                           const Stem<T, kTiles>& stem,
                           Patch (&patches)[2],
                           Use&& use) {
  int64_t index = blockIdx.x;
  Tile tile(picture, index);
  const auto pixel_of = [&](const Tile& of, int n) {
    const int strip = n * kStemWarps + stem.warp;
    return of.pixel(picture, strip / 2, strip % 2 * 16);
  };
  Outputs<kTiles> dy, coming;
  if constexpr (kGrad) {
    coming.load(grad, pixel_of(tile, 0), stem);
  }
  fetch_patch(x, picture, tile, patches[0]);
  __pipeline_commit();
  for (int at = 0; index < picture.tiles; at ^= 1) {
    index += gridDim.x;
    const bool more = index < picture.tiles;
    const Tile next(picture, more ? index : blockIdx.x);
    if (more) {
      fetch_patch(x, picture, next, patches[at ^ 1]);
    }
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
#pragma unroll 2
    for (int n = 0; n < kStrips; ++n) {
      if constexpr (kGrad) {
        dy = coming;
        coming.load(grad, n + 1 < kStrips ? pixel_of(tile, n + 1) : pixel_of(next, 0), stem);
      }
      const int strip = n * kStemWarps + stem.warp;
      uint32_t inputs[4][2];
      stem.gather(patches[at], strip / 2, strip % 2, inputs);
      use(inputs, pixel_of(tile, n), dy);
    }
    __syncthreads();
    tile = next;
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
  __shared__ Patch patches[2];
  const Stem<T, kTiles> stem(kernel, steps);
  float shift[2 * kTiles], sum[2 * kTiles] = {}, square[2 * kTiles] = {};
  {
    fetch_patch(x, picture, Tile(picture, blockIdx.x), patches[0]);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    uint32_t inputs[4][2];
    stem.gather(patches[0], 0, 0, inputs);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      float d[4];
      stem.convolve(inputs, j, d);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        shift[2 * j + e] = __shfl_sync(0xffffffffu, d[e], stem.t);
      }
    }
    __syncthreads();
  }
  each_strip<false, T, kTiles>(x, nullptr, picture, stem, patches, [&](const auto& inputs, int64_t, const auto&) {
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
  __shared__ Patch patches[2];
  const Stem<T, kTiles> stem(kernel, steps);
  const StemNorm<2 * kTiles> norm(stem, statistics, weight, bias);
  each_strip<false, T, kTiles>(x, nullptr, picture, stem, patches, [&](const auto& inputs, int64_t pixel, const auto&) {
    Outputs<kTiles> result;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      float d[4];
      stem.convolve(inputs, j, d);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int k = 2 * j + i % 2;
        d[i] = activate<act>(fmaf(d[i] - norm.mean[k], norm.scale[k], norm.bias[k]), slope);
      }
      result.of[0].pair[j] = pack_pair<T>(d[0], d[1]);
      result.of[1].pair[j] = pack_pair<T>(d[2], d[3]);
    }
    result.store(y, pixel, stem);
  });
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
  __shared__ Patch patches[2];
  const Stem<T, kTiles> stem(kernel, steps);
  const StemNorm<2 * kTiles> norm(stem, statistics, weight, bias);
  float sum[2 * kTiles] = {}, product[2 * kTiles] = {};
  each_strip<true, T, kTiles>(x, grad, picture, stem, patches, [&](const auto& inputs, int64_t, const auto& dy) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      float d[4], dz[4];
      stem.convolve(inputs, j, d);
      unpack_pair<T>(dy.of[0].pair[j], dz[0], dz[1]);
      unpack_pair<T>(dy.of[1].pair[j], dz[2], dz[3]);
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
__global__ void __launch_bounds__(kStemThreads, kTiles == 4 ? 3 : 4) stem_grad_kernel(Picture picture,
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
  __shared__ Patch patches[2];
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
  each_strip<true, T, kTiles>(x, grad, picture, stem, patches, [&](const auto& inputs, int64_t, const auto& dy) {
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
        unpack_pair<T>(dy.of[0].pair[j], dz[0], dz[1]);
        unpack_pair<T>(dy.of[1].pair[j], dz[2], dz[3]);
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
