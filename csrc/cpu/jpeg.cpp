// yolo::jpeg_scan on the CPU: the Huffman codes of one scan become coefficients (ITU-T T.81, annexes F and
// G). Which block comes when is in `order`, so nothing here knows about sampling factors or the size of a
// picture.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <array>

namespace yolo {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int kBlock = 64;
constexpr int64_t kCodes = 1 << 16;  // a row of `tables`: what every next 16 bits begin with
constexpr int kMaxSlots = 10;        // blocks in a unit
constexpr int kMaxComponents = 4;

// Bits of one stretch between restart markers. Past its end come zeros; `bad` says that some were used.
class Bits {
 public:
  Bits(const uint8_t* at, const uint8_t* end) : at_(at), end_(end) {}

  bool bad() const { return bad_ || count_ < padding_; }
  void fail() { bad_ = true; }

  int take(int bits) {
    fill();
    count_ -= bits;
    return static_cast<int>(buffer_ >> count_) & ((1 << bits) - 1);
  }

  int symbol(const int16_t* table) {
    fill();
    const int entry = table[(buffer_ >> (count_ - 16)) & 0xFFFF];
    if (entry == 0) {
      fail();
    }
    count_ -= entry >> 8;
    return entry & 0xFF;
  }

  // A value of `size` bits whose first bit is 0 for negative ones (T.81, F.2.2.1).
  int value(int size) {
    const int raw = take(size);
    return size == 0 || raw >> (size - 1) ? raw : raw - (1 << size) + 1;
  }

 private:
  void fill() {
    while (count_ <= 48) {
      const bool more = at_ < end_;
      buffer_ = buffer_ << 8 | (more ? *at_++ : 0);
      padding_ += more ? 0 : 8;
      count_ += 8;
    }
  }

  const uint8_t* at_;
  const uint8_t* end_;
  uint64_t buffer_ = 0;
  int count_ = 0;
  int64_t padding_ = 0;
  bool bad_ = false;
};

struct Scan {
  int first, last, high, low;  // band of coefficients, bit above and bit of this pass
  bool progressive;
};

// What is carried from block to block, forgotten at a restart.
struct Carried {
  std::array<int64_t, kMaxComponents> dc{};
  int run = 0;  // blocks whose band has ended already
};

void read_dc(Bits& bits, const Scan& scan, const int16_t* table, int64_t& before, int16_t* block) {
  if (scan.high > 0) {
    block[0] = static_cast<int16_t>(block[0] | bits.take(1) << scan.low);
    return;
  }
  const int size = bits.symbol(table);
  if (size > 15) {
    return bits.fail();
  }
  before += bits.value(size);
  block[0] = static_cast<int16_t>(before * (1 << scan.low));
}

void read_ac(Bits& bits, const Scan& scan, const int16_t* table, int& run, int16_t* block) {
  if (run > 0) {
    --run;
    return;
  }
  for (int k = std::max(scan.first, 1); k <= scan.last; ++k) {
    const int symbol = bits.symbol(table), zeros = symbol >> 4, size = symbol & 15;
    k += size > 0 || zeros == 15 ? zeros : 0;
    if (size > 0) {
      if (k > scan.last) {
        return bits.fail();
      }
      block[k] = static_cast<int16_t>(bits.value(size) * (1 << scan.low));
    } else if (zeros < 15) {
      run = scan.progressive ? (1 << zeros) + bits.take(zeros) - 1 : 0;
      return;
    }
  }
}

// Another bit for the coefficients that are known, and new ones of a single bit between them (T.81, G.1.2.3).
void refine_ac(Bits& bits, const Scan& scan, const int16_t* table, int& run, int16_t* block) {
  const int bit = 1 << scan.low;
  const auto refine = [&](int16_t& known) {
    if (bits.take(1) && !(known & bit)) {
      known = static_cast<int16_t>(known > 0 ? known + bit : known - bit);
    }
  };
  int k = scan.first;
  for (; run == 0 && k <= scan.last; ++k) {
    const int symbol = bits.symbol(table), size = symbol & 15;
    int zeros = symbol >> 4;
    if (size == 0 && zeros < 15) {
      run = (1 << zeros) + bits.take(zeros);
      break;
    }
    const int fresh = size == 0 ? 0 : bits.take(1) ? bit : -bit;
    for (; k <= scan.last && (block[k] != 0 || zeros-- > 0); ++k) {
      if (block[k] != 0) {
        refine(block[k]);
      }
    }
    if (size > 1 || (fresh != 0 && k > scan.last)) {
      return bits.fail();
    }
    if (fresh != 0) {
      block[k] = static_cast<int16_t>(fresh);
    }
  }
  if (run > 0) {
    --run;
    for (; k <= scan.last; ++k) {
      if (block[k] != 0) {
        refine(block[k]);
      }
    }
  }
}

void read_block(Bits& bits,
                const Scan& scan,
                const int16_t* tables,
                const int64_t* slot,
                Carried& carried,
                int16_t* block) {
  if (scan.first == 0) {
    read_dc(bits, scan, tables + slot[1] * kCodes, carried.dc[slot[0]], block);
  }
  if (scan.last > 0) {
    (scan.high > 0 ? refine_ac : read_ac)(bits, scan, tables + slot[2] * kCodes, carried.run, block);
  }
}

void jpeg_scan_cpu(const Tensor& data,
                   const Tensor& cuts,
                   const Tensor& tables,
                   const Tensor& coefficients,
                   const Tensor& order,
                   const Tensor& slots,
                   int64_t first,
                   int64_t last,
                   int64_t high,
                   int64_t low,
                   bool progressive) {
  for (const Tensor* x : {&data, &cuts, &tables, &coefficients, &order, &slots}) {
    STD_TORCH_CHECK(x->is_contiguous(), "jpeg_scan wants contiguous tensors");
  }
  STD_TORCH_CHECK(data.scalar_type() == ScalarType::Byte && tables.scalar_type() == ScalarType::Short &&
                      coefficients.scalar_type() == ScalarType::Short &&
                      cuts.scalar_type() == ScalarType::Long && order.scalar_type() == ScalarType::Long &&
                      slots.scalar_type() == ScalarType::Long,
                  "jpeg_scan wants uint8 data, int16 tables and coefficients, int64 cuts, order and slots");
  STD_TORCH_CHECK(data.dim() == 1 && cuts.dim() == 2 && cuts.size(1) == 4 && tables.dim() == 2 &&
                      tables.size(1) == kCodes && coefficients.dim() == 2 && coefficients.size(1) == kBlock &&
                      order.dim() == 2 && slots.dim() == 2 && slots.size(1) == 3 &&
                      slots.size(0) == order.size(1) && slots.size(0) <= kMaxSlots,
                  "jpeg_scan wants data [B], cuts [R, 4], tables [T, 65536], coefficients [M, 64], ",
                  "order [U, J], slots [J, 3] with J up to ",
                  kMaxSlots);
  STD_TORCH_CHECK(0 <= first && first <= last && last < kBlock && 0 <= low && low < 14 && 0 <= high &&
                      high < 14 && (high == 0 || progressive) &&
                      (first == 0 ? last == 0 || !progressive : progressive),
                  "jpeg_scan: no scan has the band ",
                  first,
                  " to ",
                  last,
                  " with bits ",
                  high,
                  " and ",
                  low);
  const auto* cut = static_cast<const int64_t*>(cuts.const_data_ptr());
  const auto* at = static_cast<const int64_t*>(order.const_data_ptr());
  const auto* slot = static_cast<const int64_t*>(slots.const_data_ptr());
  const auto* bytes = static_cast<const uint8_t*>(data.const_data_ptr());
  const auto* codes = static_cast<const int16_t*>(tables.const_data_ptr());
  auto* blocks = static_cast<int16_t*>(coefficients.mutable_data_ptr());
  const int64_t restarts = cuts.size(0), units = order.size(0), per_unit = order.size(1);
  for (int64_t i = 0; i < per_unit; ++i) {
    const int64_t* row = slot + 3 * i;
    STD_TORCH_CHECK(0 <= row[0] && row[0] < kMaxComponents && 0 <= std::min(row[1], row[2]) &&
                        std::max(row[1], row[2]) < tables.size(0),
                    "jpeg_scan: slot ",
                    i,
                    " names a component or a table that is not there");
  }
  const Scan scan{static_cast<int>(first),
                  static_cast<int>(last),
                  static_cast<int>(high),
                  static_cast<int>(low),
                  progressive};
  for (int64_t part = 0; part < restarts; ++part, cut += 4) {
    STD_TORCH_CHECK(
        0 <= cut[0] && cut[0] <= cut[1] && cut[1] <= data.size(0) && 0 <= cut[2] && cut[3] <= units,
        "jpeg_scan: cut ",
        part,
        " lies outside of the data or of the units");
    Bits bits(bytes + cut[0], bytes + cut[1]);
    Carried carried;
    for (int64_t unit = cut[2]; unit < cut[3]; ++unit) {
      for (int64_t i = 0; i < per_unit; ++i) {
        const int64_t block = at[unit * per_unit + i];
        STD_TORCH_CHECK(0 <= block && block < coefficients.size(0), "jpeg_scan: there is no block ", block);
        read_block(bits, scan, codes, slot + 3 * i, carried, blocks + block * kBlock);
      }
      STD_TORCH_CHECK(!bits.bad(), "jpeg_scan: the data ends early or has a code that its table lacks");
    }
  }
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(yolo, CPU, m) { m.impl("jpeg_scan", TORCH_BOX(&jpeg_scan_cpu)); }

}  // namespace yolo
