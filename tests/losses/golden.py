"""Darknet's own gradients: the cases of golden/layers as inputs of our losses."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.helpers.paths import shared
from yolo.ops.heads import HeadSpec
from yolo.types import Targets

STRIDE = 32.0


@dataclass
class Case:
    """One head of Darknet's with what went in and out."""

    about: dict[str, Any]
    arrays: dict[str, NDArray[np.float32]]
    spec: HeadSpec
    size: tuple[int, int]

    def logits(self) -> Tensor:
        """As a convolution would give them, ready to take a gradient."""
        flat = torch.from_numpy(self.arrays["input"])
        return (flat if self.spec.kind == "grid" else flat.flatten(1, 2)).clone().requires_grad_()

    def targets(self) -> Targets:
        """The truths in pixels; float64, so that rounding does not move a centre off a border of cells."""
        rows = [(image, *row) for image, table in enumerate(self.truths()) for row in table]
        table = torch.tensor(rows, dtype=torch.float64).reshape(-1, 6)
        height, width = self.size
        whole = torch.tensor([width, height], dtype=torch.float64)
        centre, half = table[:, 1:3] * whole, table[:, 3:5] * whole / 2
        return Targets(
            torch.cat([centre - half, centre + half], dim=1), table[:, 5].long(), table[:, 0].long()
        )

    def truths(self) -> list[list[tuple[float, ...]]]:
        """Per image the rows x, y, w, h, class, as fractions."""
        truth = self.arrays["truth"].astype(np.float64)
        if self.spec.kind != "grid":
            return [[tuple(row[:5]) for row in table if row[0] != 0] for table in truth]
        side, classes = self.spec.side, self.spec.num_classes
        result = []
        for table in truth:
            rows = []
            for cell in np.flatnonzero(table[:, 0]):
                x, y, w, h = table[cell, 1 + classes :]
                label = float(table[cell, 1 : 1 + classes].argmax())
                rows.append(((cell % side + x) / side, (cell // side + y) / side, w, h, label))
            result.append(rows)
        return result

    def objects(self) -> int:
        """Those of a class that there is."""
        return sum(row[4] < self.spec.num_classes for table in self.truths() for row in table)

    def delta(self) -> Tensor:
        return torch.from_numpy(self.arrays["delta"])


def load(name: str) -> Case:
    """Read the case ``name``."""
    about = json.loads(shared("golden", "layers", f"{name}.json").read_text(encoding="utf-8"))
    arrays = dict(np.load(shared("golden", "layers", f"{name}.npz")))
    if about["layer"] == "detection":
        side, classes = about["side"], about["classes"]
        spec = HeadSpec(
            "grid",
            classes,
            64,
            boxes_per_cell=about["num"],
            side=side,
            softmax=bool(about["softmax"]),
            sqrt=bool(about["sqrt"]),
        )
        return Case(about, arrays, spec, (side * 64, side * 64))
    flat = about["anchors"]
    unit = STRIDE if about["layer"] == "region" else 1.0
    anchors = tuple((w * unit, h * unit) for w, h in zip(flat[::2], flat[1::2], strict=True))
    if about["layer"] == "region":
        mask = tuple(range(about["n"]))
        spec = HeadSpec("region", about["classes"], STRIDE, anchors, mask, softmax=bool(about["softmax"]))
        return Case(about, arrays, spec, (int(about["h"] * STRIDE), int(about["w"] * STRIDE)))
    spec = HeadSpec(
        "yolo",
        about["classes"],
        about["net_w"] / about["w"],
        anchors,
        tuple(about["mask"]),
        xy_scale=about.get("scale_x_y", 1.0),
        squared=bool(about.get("new_coords", 0)),
    )
    return Case(about, arrays, spec, (about["net_h"], about["net_w"]))
