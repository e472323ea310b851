// Greedy suppression of one image by one block: exact, deterministic, in fixed memory for any number of
// candidates.
//
// Candidates are taken in batches, best first. A batch is found by histograms over the range of keys that is
// left (a radix select) unless everything left fits; it is sorted in shared memory and goes through in
// chunks: a candidate of a chunk is first tested against the boxes kept before, then the chunk's survivors
// against each other. It ends when enough boxes are kept, which is usually in the first batch.
//
// A Source offers  total(): how many candidates, or -1 for not counted;  each(use): calls use(valid, key) for
// all of them, every thread of the block taking part;  box(index);  label(index).
#pragma once

#include "../arguments.h"
#include "scan.cuh"

namespace yolo {

constexpr int kThreads = 1024;
constexpr int kBatch = 2048;  // keys sorted at a time
constexpr int kBins = 2048;
constexpr int kGroup = 256;  // survivors compared with each other at a time
constexpr int kWords = kGroup / 32;
constexpr int kChains = 256;

struct Shared {
  uint64_t keys[kBatch];
  union {
    unsigned bins[kBins];
    Box boxes[kThreads];  // survivors of the chunk, best first, and what belongs to them
  };
  int64_t labels[kThreads];
  float areas[kThreads];
  float scores[kThreads];
  unsigned suppressors[kGroup * (kWords + 1)];  // bit i of row j: i suppresses j; a word of padding a row
  unsigned alive[2][kWords];
  int chains[kChains];  // newest kept box of the labels that share a chain
  unsigned per_warp[32];
  uint64_t extremes[2];
  unsigned counter, found, found_count;
};
static_assert(sizeof(Shared) <= 64 * 1024, "more shared memory than a block of sm_75 has");

struct Options {
  float iou_threshold;
  bool class_agnostic;
  int limit;
  Rows rows;  // of the first image
  int* next;  // [images, limit]: the box kept before in the same chain, or -1
};

// Sum over the threads before this one; `all` becomes the sum over all. Ends with a barrier.
__device__ inline unsigned exclusive_sum(Shared& s, unsigned value, unsigned& all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned running = value;
  for (int delta = 1; delta < 32; delta *= 2) {
    const unsigned other = __shfl_up_sync(kWholeWarp, running, delta);
    running += lane >= delta ? other : 0;
  }
  if (lane == 31) {
    s.per_warp[warp] = running;
  }
  __syncthreads();
  unsigned before = 0, total = 0;
  for (int i = 0; i < kThreads / 32; ++i) {
    before += i < warp ? s.per_warp[i] : 0;
    total += s.per_warp[i];
  }
  all = total;
  __syncthreads();
  return before + running - value;
}

// Bitonic, downwards; `size` is a power of two of at least 64. Pairs up to 32 apart stay within a warp's 64
// keys.
__device__ inline void sort_keys(uint64_t* keys, int size) {
  for (int width = 2; width <= size; width *= 2) {
    for (int apart = width / 2; apart > 0; apart /= 2) {
      for (int i = threadIdx.x; i < size / 2; i += kThreads) {
        const int a = 2 * i - (i & (apart - 1)), b = a + apart;
        const bool down = (a & width) == 0;
        const uint64_t x = keys[a], y = keys[b];
        if ((x < y) == down) {
          keys[a] = y;
          keys[b] = x;
        }
      }
      if (apart > 32 || (apart == 1 && width > 32)) {
        __syncthreads();
      } else {
        __syncwarp();
      }
    }
  }
  __syncthreads();
}

// What is left of the candidates: those with bottom <= key < top.
struct Range {
  uint64_t bottom, top;
  unsigned count;
};

template <typename Source>
__device__ Range measure(Shared& s, const Source& source) {
  if (threadIdx.x == 0) {
    s.extremes[0] = ~0ull;
    s.extremes[1] = 0;
    s.counter = 0;
  }
  __syncthreads();
  uint64_t low = ~0ull, high = 0;
  unsigned count = 0;
  source.each([&](bool valid, uint64_t key) {
    if (valid) {
      low = key < low ? key : low;
      high = key > high ? key : high;
      ++count;
    }
  });
  if (count > 0) {
    atomicMin(reinterpret_cast<unsigned long long*>(&s.extremes[0]), low);
    atomicMax(reinterpret_cast<unsigned long long*>(&s.extremes[1]), high);
    atomicAdd(&s.counter, count);
  }
  __syncthreads();
  const Range range = {s.extremes[0], s.extremes[1] + 1, s.counter};
  __syncthreads();
  return range;
}

// The largest part [cut, range.top) of the range, found bin by bin, that is between half a batch and a batch.
template <typename Source>
__device__ uint64_t find_cut(Shared& s, const Source& source, const Range& range) {
  uint64_t bottom = range.bottom, top = range.top;
  unsigned taken = 0;
  while (true) {
    const int bits =
        64 - __clzll(static_cast<long long>(top - bottom - 1));  // bins of 2^shift keys cover the range
    const int shift = bits > 11 ? bits - 11 : 0;
    static_assert(kBins == 1 << 11 && kBins == 2 * kThreads, "two bins a thread");
    s.bins[threadIdx.x] = 0;
    s.bins[threadIdx.x + kThreads] = 0;
    __syncthreads();
    source.each([&](bool valid, uint64_t key) {
      if (valid && key >= bottom && key < top) {
        atomicAdd(&s.bins[(key - bottom) >> shift], 1u);
      }
    });
    __syncthreads();
    const int high_bin = kBins - 1 - 2 * threadIdx.x;
    const unsigned high_count = s.bins[high_bin], low_count = s.bins[high_bin - 1];
    unsigned all;
    const unsigned above = taken + exclusive_sum(s, high_count + low_count, all);
    // Exactly one bin does not fit any more: this one, or the one below it, or another thread's.
    if (above <= kBatch && above + high_count > kBatch) {
      s.found = high_bin;
      s.found_count = above;
    } else if (above + high_count <= kBatch && above + high_count + low_count > kBatch) {
      s.found = high_bin - 1;
      s.found_count = above + high_count;
    }
    __syncthreads();
    const uint64_t cut = bottom + ((static_cast<uint64_t>(s.found) + 1) << shift);
    const unsigned count = s.found_count;
    const uint64_t lower = bottom + (static_cast<uint64_t>(s.found) << shift);
    __syncthreads();
    if (count >= kBatch / 2 || shift == 0) {
      return cut < top ? cut : top;
    }
    taken = count;
    top = cut < top ? cut : top;
    bottom = lower;
  }
}

// Puts the keys of [cut, range.top) into shared memory, sorted downwards; returns how many.
template <typename Source>
__device__ int gather(Shared& s, const Source& source, uint64_t cut, uint64_t top) {
  if (threadIdx.x == 0) {
    s.counter = 0;
  }
  __syncthreads();
  source.each([&](bool valid, uint64_t key) {
    if (valid && key >= cut && key < top) {
      s.keys[atomicAdd(&s.counter, 1u)] = key;
    }
  });
  __syncthreads();
  const int count = static_cast<int>(s.counter);
  int size = 64;
  while (size < count) {
    size *= 2;
  }
  for (int i = count + threadIdx.x; i < size; i += kThreads) {
    s.keys[i] = 0;
  }
  __syncthreads();
  sort_keys(s.keys, size);
  return count;
}

// Whether a box kept before, not older than `oldest`, suppresses this one.
__device__ inline bool is_suppressed(const Shared& s,
                                     const Options& options,
                                     const Rows& rows,
                                     const int* next,
                                     int oldest,
                                     int kept,
                                     const Box& box,
                                     float size,
                                     int64_t label) {
  if (options.class_agnostic) {
    for (int k = oldest; k < kept; ++k) {
      const Box other = rows.boxes[k];
      if (overlaps(other, area(other), box, size, options.iou_threshold)) {
        return true;
      }
    }
    return false;
  }
  for (int k = s.chains[label & (kChains - 1)]; k >= oldest; k = next[k]) {
    if (rows.labels[k] == label) {
      const Box other = rows.boxes[k];
      if (overlaps(other, area(other), box, size, options.iou_threshold)) {
        return true;
      }
    }
  }
  return false;
}

// Survivors [from, from + count) of the chunk against each other, then into the result. Returns the kept
// boxes.
__device__ inline int keep_group(Shared& s,
                                 const Options& options,
                                 const Rows& rows,
                                 int* next,
                                 int from,
                                 int count,
                                 int oldest,
                                 int kept) {
  const int j = threadIdx.x % kGroup, part = threadIdx.x / kGroup;
  constexpr int kParts = kThreads / kGroup, kEach = kWords / kParts;
  const bool mine = j < count;
  const Box box = s.boxes[from + (mine ? j : 0)];
  const float size = s.areas[from + (mine ? j : 0)];
  const int64_t label = s.labels[from + (mine ? j : 0)];
  for (int word = part * kEach; word < (part + 1) * kEach; ++word) {
    unsigned bits = 0;
    const int stop = mine ? min(j, 32 * word + 32) : 0;
    for (int i = 32 * word; i < stop; ++i) {
      const bool same = options.class_agnostic || s.labels[from + i] == label;
      if (same && overlaps(s.boxes[from + i], s.areas[from + i], box, size, options.iou_threshold)) {
        bits |= 1u << (i % 32);
      }
    }
    s.suppressors[j * (kWords + 1) + word] = bits;
  }
  bool open = false;
  if (part == 0) {
    open = mine && !(kept > oldest && is_suppressed(s, options, rows, next, oldest, kept, box, size, label));
    const unsigned ballot = __ballot_sync(kWholeWarp, open);
    if (j % 32 == 0) {
      s.alive[0][j / 32] = ballot;
    }
  }
  __syncthreads();
  int now = 0;
  while (true) {  // every round settles at least one more survivor, so this ends with the greedy answer
    bool changed = false;
    if (part == 0) {
      unsigned hit = 0;
      for (int word = 0; word < kWords; ++word) {
        hit |= s.suppressors[j * (kWords + 1) + word] & s.alive[now][word];
      }
      const unsigned ballot = __ballot_sync(kWholeWarp, open && hit == 0);
      changed = ballot != s.alive[now][j / 32];
      __syncwarp();
      if (j % 32 == 0) {
        s.alive[1 - now][j / 32] = ballot;
      }
    }
    now = 1 - now;
    if (!__syncthreads_or(changed)) {
      break;
    }
  }
  int rank = 0, all = 0;
  for (int word = 0; word < kWords; ++word) {
    const unsigned bits = s.alive[now][word];
    rank += __popc(word < j / 32 ? bits : word == j / 32 ? bits & ((1u << (j % 32)) - 1) : 0u);
    all += __popc(bits);
  }
  const int row = kept + rank;
  if (part == 0 && (s.alive[now][j / 32] >> (j % 32) & 1u) != 0 && row < options.limit) {
    rows.boxes[row] = box;
    rows.scores[row] = s.scores[from + j];
    rows.labels[row] = label;
    next[row] = atomicExch(&s.chains[label & (kChains - 1)], row);
  }
  __syncthreads();
  return min(kept + all, options.limit);
}

// Candidates [from, from + kThreads) of the sorted batch. Returns the number of boxes kept so far.
template <typename Source>
__device__ int keep_chunk(Shared& s,
                          const Source& source,
                          const Options& options,
                          const Rows& rows,
                          int* next,
                          int from,
                          int count,
                          int kept) {
  const int i = from + threadIdx.x;
  bool open = i < count;
  Box box = {0.0f, 0.0f, 0.0f, 0.0f};
  float size = 0.0f, score = 0.0f;
  int64_t label = 0;
  if (open) {
    const uint32_t index = key_index(s.keys[i]);
    box = source.box(index);
    label = source.label(index);
    score = key_score(s.keys[i]);
    size = area(box);
    open = is_finite(box) && !is_suppressed(s, options, rows, next, 0, kept, box, size, label);
  }
  unsigned survivors;
  const unsigned at = exclusive_sum(s, open ? 1u : 0u, survivors);
  if (open) {
    s.boxes[at] = box;
    s.labels[at] = label;
    s.areas[at] = size;
    s.scores[at] = score;
  }
  __syncthreads();
  const int oldest = kept;
  for (int group = 0; group < static_cast<int>(survivors) && kept < options.limit; group += kGroup) {
    const int some = min(kGroup, static_cast<int>(survivors) - group);
    kept = keep_group(s, options, rows, next, group, some, oldest, kept);
  }
  return kept;
}

template <typename Source>
__device__ void suppress(Shared& s, const Source& source, const Options& options, int image) {
  const Rows rows = rows_of(options.rows, image, options.limit);
  int* next = options.next + static_cast<int64_t>(image) * options.limit;
  if (threadIdx.x < kChains) {
    s.chains[threadIdx.x] = -1;
  }
  Range range = {0, ~0ull, 0};
  const int64_t total = source.total();
  if (total >= 0 && total <= kBatch) {
    range.count = static_cast<unsigned>(total);
  } else {
    range = measure(s, source);
  }
  int kept = 0;
  while (range.count > 0 && kept < options.limit) {
    const uint64_t cut = range.count <= kBatch ? range.bottom : find_cut(s, source, range);
    const int count = gather(s, source, cut, range.top);
    for (int from = 0; from < count && kept < options.limit; from += kThreads) {
      kept = keep_chunk(s, source, options, rows, next, from, count, kept);
    }
    range.count -= count;
    range.top = cut;
  }
  for (int row = kept + threadIdx.x; row < options.limit; row += kThreads) {
    rows.boxes[row] = {0.0f, 0.0f, 0.0f, 0.0f};
    rows.scores[row] = 0.0f;
    rows.labels[row] = 0;
  }
  if (threadIdx.x == 0) {
    *rows.count = kept;
  }
}

}  // namespace yolo
