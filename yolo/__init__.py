"""Train the classic YOLO family, read and write Darknet models, deploy to ONNX and TensorRT."""
