"""Augmentation: mosaic, mixup, scale, shift, flip and colour, on uint8 pixels and their boxes at once.

Every random number comes from the generator that is handed in, so a picture's augmentation does not depend on
which worker makes it. Geometry is one affine map per picture straight onto the canvas; colour is only drawn here
and applied to the whole batch on the device (:func:`yolo.ops.vary_colour`), where it costs nothing.
"""

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from yolo.data.geometry import Sample, flip, merge, mosaic, single
from yolo.data.preprocess import Preprocess

Load = Callable[[int], Sample]


@dataclass(frozen=True)
class Augment:
    """How training pictures are varied. The default varies nothing.

    Args:
        flip: Probability of mirroring left and right.
        flip_vertical: Probability of mirroring top and bottom.
        hue: Largest shift of the hue, as a part of the full circle (Darknet's ``hue``).
        saturation: Saturation is multiplied by a number between 1 / (1 + saturation) and 1 + saturation.
        exposure: The same for the value channel.
        scale: The picture is scaled by a number between 1 - scale and 1 + scale.
        translate: Largest shift, as a part of the canvas.
        aspect: Width against height changes by a factor between 1 / (1 + aspect) and 1 + aspect.
        mosaic: Probability that four pictures share the canvas (arXiv:2004.10934, sec. 3.3).
        mixup: Probability that two canvases are blended (arXiv:1710.09412), objects of both.
        mixup_alpha: Of the beta distribution of the blend.
        min_visible: An object is kept if more than this part of its area is still on the canvas.
        min_size: Pixels of width and of height that an object must have to be kept.
        extra: albumentations transforms of the pixels alone (blur, noise, compression ...), before the colour.
    """

    flip: float = 0.0
    flip_vertical: float = 0.0
    hue: float = 0.0
    saturation: float = 0.0
    exposure: float = 0.0
    scale: float = 0.0
    translate: float = 0.0
    aspect: float = 0.0
    mosaic: float = 0.0
    mixup: float = 0.0
    mixup_alpha: float = 32.0
    min_visible: float = 0.1
    min_size: float = 0.0
    extra: Sequence[Any] = ()

    def __post_init__(self) -> None:
        for name in ("flip", "flip_vertical", "mosaic", "mixup", "min_visible"):
            if not 0 <= self.__dict__[name] <= 1:
                raise ValueError(f"augment.{name} must be 0 to 1, got {self.__dict__[name]}")
        for name in ("saturation", "exposure", "aspect", "translate", "min_size"):
            if not self.__dict__[name] >= 0:
                raise ValueError(f"augment.{name} must not be negative, got {self.__dict__[name]}")
        if not 0 <= self.scale < 1:
            raise ValueError(f"augment.scale must be 0 or more and less than 1, got {self.scale}")
        if not 0 <= self.hue <= 0.5:
            raise ValueError(f"augment.hue must be 0 to 0.5 of the circle, got {self.hue}")
        if not self.mixup_alpha > 0:
            raise ValueError(f"augment.mixup_alpha must be positive, got {self.mixup_alpha}")
        for transform in self.extra:
            if not isinstance(transform, _albumentations().ImageOnlyTransform):
                raise ValueError(
                    f"augment.extra takes transforms of the pixels alone, got {type(transform).__name__}"
                )

    @property
    def active(self) -> bool:
        """Whether anything is varied at all."""
        return (
            bool(self.extra)
            or any((self.flip, self.flip_vertical, self.mosaic, self.mixup))
            or self._moves
            or self._colours
        )

    @property
    def _moves(self) -> bool:
        return any((self.scale, self.translate, self.aspect))

    @property
    def _colours(self) -> bool:
        return any((self.hue, self.saturation, self.exposure))

    def __call__(
        self,
        load: Load,
        index: int,
        count: int,
        preprocess: Preprocess,
        rng: np.random.Generator,
        *,
        mosaic: bool = True,
    ) -> Sample:
        """Make one training picture.

        Args:
            load: Gives the sample of an index, at any size.
            index: The picture wanted.
            count: Pictures there are; partners of mosaic and mixup are drawn from them.
            preprocess: Of the network; its canvas is what comes out.
            rng: Where every random number comes from.
            mosaic: False leaves out mosaic and mixup (the last epochs).

        Returns:
            The canvas, boxes in its pixels, and the colour that it is still to get.
        """
        sample = self._canvas(load, index, count, preprocess, rng, mosaic)
        if mosaic and self.mixup and rng.random() < self.mixup:
            other = self._canvas(load, int(rng.integers(count)), count, preprocess, rng, mosaic)
            sample = merge(sample, other, float(rng.beta(self.mixup_alpha, self.mixup_alpha)))
        colour = self._draw_colour(rng) if self._colours else None
        if self.extra:
            self._pipeline.set_random_seed(int(rng.integers(2**31)))
            sample = sample._replace(image=self._pipeline(image=sample.image)["image"])
        horizontal = bool(self.flip) and rng.random() < self.flip
        vertical = bool(self.flip_vertical) and rng.random() < self.flip_vertical
        return flip(sample, horizontal, vertical)._replace(colour=colour)

    def _canvas(
        self,
        load: Load,
        index: int,
        count: int,
        preprocess: Preprocess,
        rng: np.random.Generator,
        may_mosaic: bool,
    ) -> Sample:
        keep = (self.min_visible, self.min_size)
        if may_mosaic and self.mosaic and rng.random() < self.mosaic:
            rows, cols = preprocess.size
            centre = (rng.uniform(0.5, 1.5) * cols, rng.uniform(0.5, 1.5) * rows)
            samples = [load(index), *(load(int(other)) for other in rng.integers(count, size=3))]
            return mosaic(samples, preprocess, centre, self._draw_zoom(rng), self._draw_shift(rng), keep)
        return single(load(index), preprocess, self._draw_zoom(rng), self._draw_shift(rng), keep)

    def _draw_zoom(self, rng: np.random.Generator) -> tuple[float, float]:
        zoom = rng.uniform(1 - self.scale, 1 + self.scale) if self.scale else 1.0
        stretch = np.exp(rng.uniform(-1, 1) * np.log1p(self.aspect) / 2) if self.aspect else 1.0
        return float(zoom * stretch), float(zoom / stretch)

    def _draw_shift(self, rng: np.random.Generator) -> tuple[float, float]:
        if not self.translate:
            return 0.0, 0.0
        x, y = rng.uniform(-self.translate, self.translate, size=2)
        return float(x), float(y)

    def _draw_colour(self, rng: np.random.Generator) -> tuple[float, float, float]:
        turn, by_saturation, by_exposure = rng.uniform(-1, 1, size=3)
        return (
            float(turn * self.hue),
            float(np.exp(by_saturation * np.log1p(self.saturation))),
            float(np.exp(by_exposure * np.log1p(self.exposure))),
        )

    @cached_property
    def _pipeline(self) -> Any:
        return _albumentations().Compose(list(self.extra))


def largest_zoom(augment: Augment | None) -> float:
    """The factor by which a side of a picture is enlarged at most, against its size on the canvas."""
    return 1.0 if augment is None else (1 + augment.scale) * (1 + augment.aspect) ** 0.5


def _albumentations() -> Any:
    """The package, imported only when needed: it takes a second and would ask the network for a newer one."""
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    return importlib.import_module("albumentations")
