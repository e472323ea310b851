// Detect objects in a picture with an exported model:
//
//   python tools/export.py weights=best.ckpt preprocess.resize=letterbox output=model.onnx
//   ./detect model.onnx picture.ppm
//
// One line per detection: label, score, x1, y1, x2, y2 in pixels of the picture. Pictures are binary PPM (P6, 8
// bits), so that no image library is needed. The model must have been exported with suppression inside, uint8
// input and a fixed size, the defaults of tools/export.py.

#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::uint8_t kPad = 128;  // the grey of Preprocess.pad_value

struct Image {
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> pixels;  // height * width * 3, RGB
};

// How a picture lies on the canvas: canvas = picture * scale + pad.
struct Placement {
  float scale_x = 1, scale_y = 1;
  int pad_x = 0, pad_y = 0;
};

Image read_ppm(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string magic;
  int largest = 0;
  Image image;
  file >> magic >> image.width >> image.height >> largest;
  if (!file || magic != "P6" || largest != 255 || image.width < 1 || image.height < 1) {
    throw std::runtime_error(path + ": a binary PPM (P6) of 8 bits without comments is needed");
  }
  file.get();  // the one blank after the header
  image.pixels.resize(static_cast<std::size_t>(image.width) * image.height * 3);
  file.read(reinterpret_cast<char*>(image.pixels.data()), static_cast<std::streamsize>(image.pixels.size()));
  if (!file) {
    throw std::runtime_error(path + ": cut short");
  }
  return image;
}

// Letterbox to a planar canvas [3, height, width], bilinear with pixel centres as OpenCV's INTER_LINEAR has them.
std::vector<std::uint8_t> letterbox(const Image& image, int height, int width, Placement& placement) {
  int rows = height, cols = width;
  if (static_cast<std::int64_t>(width) * image.height < static_cast<std::int64_t>(height) * image.width) {
    rows = std::max(1, image.height * width / image.width);
  } else {
    cols = std::max(1, image.width * height / image.height);
  }
  placement = {static_cast<float>(cols) / image.width, static_cast<float>(rows) / image.height,
               (width - cols) / 2, (height - rows) / 2};
  std::vector<std::uint8_t> canvas(static_cast<std::size_t>(3) * height * width, kPad);
  for (int y = 0; y < rows; ++y) {
    const float v = std::clamp((y + 0.5F) / placement.scale_y - 0.5F, 0.0F, image.height - 1.0F);
    const int y0 = static_cast<int>(v), y1 = std::min(y0 + 1, image.height - 1);
    for (int x = 0; x < cols; ++x) {
      const float u = std::clamp((x + 0.5F) / placement.scale_x - 0.5F, 0.0F, image.width - 1.0F);
      const int x0 = static_cast<int>(u), x1 = std::min(x0 + 1, image.width - 1);
      for (int c = 0; c < 3; ++c) {
        const auto at = [&](int row, int col) {
          return static_cast<float>(image.pixels[(static_cast<std::size_t>(row) * image.width + col) * 3 + c]);
        };
        const float top = at(y0, x0) + (u - x0) * (at(y0, x1) - at(y0, x0));
        const float bottom = at(y1, x0) + (u - x0) * (at(y1, x1) - at(y1, x0));
        canvas[(static_cast<std::size_t>(c) * height + placement.pad_y + y) * width + placement.pad_x + x] =
            static_cast<std::uint8_t>(top + (v - y0) * (bottom - top) + 0.5F);
      }
    }
  }
  return canvas;
}

void run(const std::string& model, const std::string& picture) {
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "detect");
  Ort::Session session(env, model.c_str(), Ort::SessionOptions{});
  const auto input = session.GetInputTypeInfo(0);
  const auto info = input.GetTensorTypeAndShapeInfo();
  const std::vector<std::int64_t> wanted = info.GetShape();  // -1 where an axis is free
  if (info.GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 || session.GetOutputCount() != 4 ||
      wanted.size() != 4 || wanted[2] < 1 || wanted[3] < 1) {
    throw std::runtime_error(model + ": exported with nms=true, input=uint8 and a fixed size is needed");
  }
  const Image image = read_ppm(picture);
  Placement placement;
  std::vector<std::uint8_t> canvas =
      letterbox(image, static_cast<int>(wanted[2]), static_cast<int>(wanted[3]), placement);

  const std::array<std::int64_t, 4> shape{1, 3, wanted[2], wanted[3]};
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  Ort::Value images =
      Ort::Value::CreateTensor<std::uint8_t>(memory, canvas.data(), canvas.size(), shape.data(), shape.size());
  const char* inputs[] = {"images"};
  const char* outputs[] = {"boxes", "scores", "labels", "count"};
  auto found = session.Run(Ort::RunOptions{nullptr}, inputs, &images, 1, outputs, 4);

  const float* boxes = found[0].GetTensorData<float>();
  const float* scores = found[1].GetTensorData<float>();
  const std::int64_t* labels = found[2].GetTensorData<std::int64_t>();
  const std::int64_t count = found[3].GetTensorData<std::int64_t>()[0];
  for (std::int64_t i = 0; i < count; ++i) {
    const float* box = boxes + 4 * i;
    std::printf("%lld %.4f %.1f %.1f %.1f %.1f\n", static_cast<long long>(labels[i]), scores[i],
                (box[0] - placement.pad_x) / placement.scale_x, (box[1] - placement.pad_y) / placement.scale_y,
                (box[2] - placement.pad_x) / placement.scale_x, (box[3] - placement.pad_y) / placement.scale_y);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: detect MODEL.onnx PICTURE.ppm\n");
    return 2;
  }
  try {
    run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "detect: %s\n", error.what());
    return 1;
  }
  return 0;
}
