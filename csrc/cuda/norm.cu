// yolo::batch_norm_act and its backward on CUDA, whole and step by step (yolo/ops/norm.py says what each returns).
#include <algorithm>

#include "channels.cuh"
#include "norm.cuh"
#include "tables.cuh"

namespace yolo {
namespace {

// Rows that a thread has under way where one tensor is read, and where two are. One block a multiprocessor: with
// these the passes run at the bandwidth of an H200, and few blocks leave few sums to add up.
constexpr int kRows = 8;
constexpr int kPairedRows = 4;

struct Launch {
  Walk walk;
  int64_t channels, chunk_rows;
  dim3 grid;
  cudaStream_t stream;

  int blocks() const { return static_cast<int>(grid.x); }
};

// The walk over x as [rows, channels], `rows_each` rows a thread at once.
Launch plan(const Tensor& x, int rows_each) {
  STD_TORCH_CHECK(x.dim() == 4, "x must be [N, C, H, W], got ", x.dim(), " axes");
  const int64_t channels = x.size(1), rows = x.size(0) * x.size(2) * x.size(3);
  const int64_t lanes = 16 / static_cast<int64_t>(x.element_size());
  STD_TORCH_CHECK(channels > 0 && channels <= 65535 && channels % lanes == 0 && rows > 1,
                  "wanted a multiple of ",
                  lanes,
                  " channels and more than one value of each, got ",
                  rows,
                  " of ",
                  channels);
  Launch launch = {};
  Walk& walk = launch.walk;
  walk.rows = rows;
  walk.vectors = static_cast<int>(channels / lanes);
  const int strips = (walk.vectors + kMaxColumns - 1) / kMaxColumns;
  walk.columns = (walk.vectors + strips - 1) / strips;
  walk.lines = kNormThreads / walk.columns;
  launch.chunk_rows = static_cast<int64_t>(rows_each) * walk.lines;
  walk.chunks = (rows + launch.chunk_rows - 1) / launch.chunk_rows;
  const int64_t blocks = std::max(multiprocessors(x) / strips, 1);
  launch.channels = channels;
  launch.grid = dim3(static_cast<unsigned>(std::min(blocks, walk.chunks)), static_cast<unsigned>(strips));
  launch.stream = current_stream(x);
  return launch;
}

void check_like(const Tensor& other, const Tensor& x, const char* name) {
  bool same = other.dim() == 4 && other.scalar_type() == x.scalar_type() && other.device() == x.device();
  for (int axis = 0; same && axis < 4; ++axis) {
    same = other.size(axis) == x.size(axis);
  }
  STD_TORCH_CHECK(same, name, " must have the shape, type and device of x");
  check_channels_last(other, name);
}

// What every pass after the first one reads.
struct Norm {
  Tensor x, weight, bias, statistics;
  Act act;
  float slope;

  Norm(Tensor x_, Tensor weight_, Tensor bias_, Tensor statistics_, int64_t act_, double slope_)
      : x(std::move(x_)),
        weight(std::move(weight_)),
        bias(std::move(bias_)),
        statistics(std::move(statistics_)),
        act(to_act(act_)),
        slope(static_cast<float>(slope_)) {
    check_like(x, x, "x");
    check_table(weight, x, x.size(1), "weight");
    check_table(bias, x, x.size(1), "bias");
    check_table(statistics, x, 3 * x.size(1), "statistics");
  }

  // Calls call(number type, std::integral_constant<Act>).
  template <typename Call>
  void dispatch(Call&& call) const {
    with_type(x.scalar_type(), [&](auto type) {
      switch (act) {
        case Act::kLinear:
          return call(type, std::integral_constant<Act, Act::kLinear>{});
        case Act::kLeaky:
          return call(type, std::integral_constant<Act, Act::kLeaky>{});
        case Act::kMish:
          return call(type, std::integral_constant<Act, Act::kMish>{});
        case Act::kSilu:
          return call(type, std::integral_constant<Act, Act::kSilu>{});
      }
    });
  }
};

Tensor make_partial(const Tensor& x, const Launch& launch) {
  return torch::stable::new_empty(x, {launch.blocks(), 2, launch.channels}, ScalarType::Float);
}

dim3 finish_grid(const Launch& launch) {
  return dim3(static_cast<unsigned>((launch.channels + kFinishSide - 1) / kFinishSide));
}

// Fills sums [2, C] where given, else statistics [3, C].
void measure(const Tensor& x, double eps, double* sums, float* statistics) {
  check_like(x, x, "x");
  const Launch launch = plan(x, kRows);
  const Tensor partial = make_partial(x, launch);
  with_type(x.scalar_type(), [&](auto type) {
    moments_kernel<decltype(type), kRows>
        <<<launch.grid, kNormThreads, 0, launch.stream>>>(launch.walk, vectors(x), results(partial));
  });
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  finish_moments_kernel<<<finish_grid(launch), dim3(kFinishSide, kFinishSide), 0, launch.stream>>>(
      launch.walk,
      launch.chunk_rows,
      launch.blocks(),
      static_cast<int>(launch.channels),
      eps,
      floats(partial),
      sums,
      statistics);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

Tensor apply(const Norm& norm, const std::optional<Tensor>& residual) {
  if (residual) {
    check_like(*residual, norm.x, "residual");
  }
  Tensor y = torch::stable::empty_like(norm.x);
  const auto launch_with = [&](auto added) {
    constexpr bool with = decltype(added)::value;
    constexpr int rows = with ? kPairedRows : kRows;
    const Launch launch = plan(norm.x, rows);
    norm.dispatch([&](auto type, auto act) {
      apply_kernel<decltype(type), act.value, with, rows><<<launch.grid, kNormThreads, 0, launch.stream>>>(
          launch.walk,
          vectors(norm.x),
          with ? vectors(*residual) : nullptr,
          floats(norm.statistics),
          floats(norm.weight),
          floats(norm.bias),
          norm.slope,
          static_cast<uint4*>(y.mutable_data_ptr()));
    });
  };
  residual ? launch_with(std::true_type{}) : launch_with(std::false_type{});
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

// The gradients of bias and weight, [2, C].
Tensor add_up(const Tensor& grad, const Norm& norm) {
  check_like(grad, norm.x, "grad");
  const Launch launch = plan(norm.x, kPairedRows);
  const Tensor partial = make_partial(norm.x, launch);
  Tensor sums = torch::stable::new_empty(norm.x, {2, launch.channels}, ScalarType::Float);
  norm.dispatch([&](auto type, auto act) {
    sums_kernel<decltype(type), act.value, kPairedRows><<<launch.grid, kNormThreads, 0, launch.stream>>>(
        launch.walk,
        vectors(grad),
        vectors(norm.x),
        floats(norm.statistics),
        floats(norm.weight),
        floats(norm.bias),
        norm.slope,
        results(partial));
  });
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  finish_sums_kernel<<<finish_grid(launch), dim3(kFinishSide, kFinishSide), 0, launch.stream>>>(
      launch.blocks(), static_cast<int>(launch.channels), floats(partial), results(sums));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  return sums;
}

// The gradient of x; `sums` times `per_count` are the means over all values of a channel.
Tensor differentiate(const Tensor& grad, const Norm& norm, const Tensor& sums, double per_count) {
  check_like(grad, norm.x, "grad");
  check_table(sums, norm.x, 2 * norm.x.size(1), "means");
  Tensor dx = torch::stable::empty_like(norm.x);
  const Launch launch = plan(norm.x, kPairedRows);
  norm.dispatch([&](auto type, auto act) {
    grad_kernel<decltype(type), act.value, kPairedRows><<<launch.grid, kNormThreads, 0, launch.stream>>>(
        launch.walk,
        vectors(grad),
        vectors(norm.x),
        floats(norm.statistics),
        floats(norm.weight),
        floats(norm.bias),
        floats(sums),
        static_cast<float>(per_count),
        norm.slope,
        static_cast<uint4*>(dx.mutable_data_ptr()));
  });
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  return dx;
}

using Guard = torch::stable::accelerator::DeviceGuard;

Tensor batch_norm_sums_cuda(Tensor x) {
  const Guard guard(x.get_device_index());
  Tensor sums = torch::stable::new_empty(x, {2, x.size(1)}, ScalarType::Double);
  measure(x, 0.0, static_cast<double*>(sums.mutable_data_ptr()), nullptr);
  return sums;
}

Tensor norm_act_cuda(Tensor x,
                     Tensor weight,
                     Tensor bias,
                     Tensor statistics,
                     std::optional<Tensor> residual,
                     int64_t act,
                     double slope) {
  const Guard guard(x.get_device_index());
  return apply({x, weight, bias, statistics, act, slope}, residual);
}

Tensor norm_act_sums_cuda(
    Tensor grad, Tensor x, Tensor weight, Tensor bias, Tensor statistics, int64_t act, double slope) {
  const Guard guard(x.get_device_index());
  return add_up(grad, {x, weight, bias, statistics, act, slope});
}

Tensor norm_act_grad_cuda(Tensor grad,
                          Tensor x,
                          Tensor weight,
                          Tensor bias,
                          Tensor statistics,
                          Tensor means,
                          int64_t act,
                          double slope) {
  const Guard guard(x.get_device_index());
  return differentiate(grad, {x, weight, bias, statistics, act, slope}, means, 1.0);
}

std::tuple<Tensor, Tensor> batch_norm_act_cuda(Tensor x,
                                               Tensor weight,
                                               Tensor bias,
                                               std::optional<Tensor> residual,
                                               int64_t act,
                                               double slope,
                                               double eps) {
  const Guard guard(x.get_device_index());
  Tensor statistics = torch::stable::new_empty(x, {3, x.size(1)}, ScalarType::Float);
  measure(x, eps, nullptr, results(statistics));
  return {apply({x, weight, bias, statistics, act, slope}, residual), statistics};
}

std::tuple<Tensor, Tensor> batch_norm_act_backward_cuda(
    Tensor grad, Tensor x, Tensor weight, Tensor bias, Tensor statistics, int64_t act, double slope) {
  const Guard guard(x.get_device_index());
  const Norm norm(x, weight, bias, statistics, act, slope);
  Tensor sums = add_up(grad, norm);
  const double count = static_cast<double>(x.numel()) / static_cast<double>(x.size(1));
  return {differentiate(grad, norm, sums, 1.0 / count), sums};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(yolo, CUDA, m) {
  m.impl("batch_norm_act", TORCH_BOX(&batch_norm_act_cuda));
  m.impl("batch_norm_act_backward", TORCH_BOX(&batch_norm_act_backward_cuda));
  m.impl("batch_norm_sums", TORCH_BOX(&batch_norm_sums_cuda));
  m.impl("norm_act", TORCH_BOX(&norm_act_cuda));
  m.impl("norm_act_sums", TORCH_BOX(&norm_act_sums_cuda));
  m.impl("norm_act_grad", TORCH_BOX(&norm_act_grad_cuda));
}

}  // namespace yolo
