"""A network of another kind than YOLO, run by PyTorch: it has no raw outputs to decode and suppresses itself."""

import torch
from torch import Tensor

from yolo.checkpoint import Model
from yolo.deploy.graph import Suppression
from yolo.deploy.runtime import ANY, Limits, Runtime


class NetworkRuntime(Runtime):
    """:meth:`yolo.models.Network.detect` as it is, in float32.

    Args:
        model: As :func:`yolo.checkpoint.load_model` gives it; its network moves to the device.
        rule: Suppression of the results.
        device: Where it runs.
    """

    def __init__(
        self, model: Model, rule: Suppression | None = None, *, device: torch.device | str = "cpu"
    ) -> None:
        device = torch.device(device)
        fixed = model.detector.fixed_size
        height, width = ((fixed[0],) * 2, (fixed[1],) * 2) if fixed else ((1, ANY), (1, ANY))
        super().__init__(
            f"PyTorch eager fp32 {device.type}",
            model.classes,
            model.preprocess,
            rule or Suppression(),
            Limits((1, ANY), height, width, model.detector.stride),
            device,
            input_type="float32",
            suppresses=True,
        )
        self.detector = model.detector.to(device).eval()

    @torch.inference_mode()
    def network(self, images: Tensor) -> tuple[Tensor, ...]:
        self.check_fed(images)
        return self.detector.detect(images, **self.rule.detect_options())
