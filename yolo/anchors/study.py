"""The anchors of one model for one data set: sets made, measured and judged in one place."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from yolo.anchors.assignment import Assignment
from yolo.anchors.kmeans import Centre, kmeans
from yolo.anchors.recommend import Rules, Verdict, held_out_gain, recommend
from yolo.anchors.refine import PRIOR, refine
from yolo.anchors.sizes import Boxes, Floats
from yolo.anchors.statistics import Fit, check_anchors, describe, reach, specs_with, tidy
from yolo.ops.heads import HeadSpec

log = logging.getLogger(__name__)

PUBLISHED = "published"
Fitter = Callable[[Boxes], Floats]


@dataclass
class Study:
    """Collects anchor sets; :meth:`verdict` says which to train with.

    Args:
        boxes: Each box once, in pixels of the network input at its configured size.
        specs: The heads of the model with its published anchors.
        assignment: How the loss finds anchors for objects.
        factors: Scales at which multi-scale training shows the boxes.
        seed: Of everything that is drawn.
    """

    boxes: Boxes
    specs: Sequence[HeadSpec]
    assignment: Assignment = field(default_factory=Assignment)
    factors: Sequence[float] = (1.0,)
    seed: int = 0

    def __post_init__(self) -> None:
        check_anchors(self.specs)
        if not self.boxes.all.boxes:
            raise ValueError("there are no boxes to compute anchors from")
        if self.boxes.all.dropped:
            log.warning("%d boxes without a finite, positive size were left out", self.boxes.all.dropped)
        self.limits = reach(self.specs)
        self.seen = self.boxes.scaled(self.factors)
        self.fits: dict[str, Fit] = {}
        self.held_out: dict[str, float] = {}
        self._add(PUBLISHED, self.published)

    @property
    def published(self) -> Floats:
        """``[A, 2]`` pixels."""
        return np.array(self.specs[0].all_anchors, dtype=np.float64)

    @cached_property
    def too_uniform(self) -> str:
        """Why nothing can be learned from these boxes; empty if something can."""
        number, needed = self.boxes.all.distinct, len(self.published)
        if number >= needed:
            return ""
        sizes = f"{number} distinct size{'s' if number > 1 else ''} (to the pixel)"
        return (
            f"the {self.boxes.all.boxes} boxes have only {sizes}, fewer than the model has anchors ({needed})"
        )

    def add_given(self, name: str, anchors: Sequence[Sequence[float]]) -> Fit:
        """A set that somebody wrote down: ``[A, 2]`` pixels, in the order in which the model takes them."""
        return self._add(name, np.array(anchors, dtype=np.float64))

    def add_kmeans(
        self, k: int | None = None, *, restarts: int = 10, centre: Centre = "mean", name: str = "kmeans"
    ) -> Fit | None:
        """Cluster centres; None where the boxes are too uniform for that.

        Raises:
            ValueError: There are fewer boxes than clusters, or the heads cannot share so many anchors.
        """
        k = k or len(self.published)
        if self.boxes.all.boxes < k:
            raise ValueError(f"asked for {k} anchors, but there are only {self.boxes.all.boxes} boxes")
        if len(np.unique(np.rint(self.boxes.all.wh), axis=0)) < k:
            return None
        heads = len(self.specs)
        if k % heads:
            raise ValueError(f"k must be a multiple of {heads}, the number of heads, got {k}")

        def fit(boxes: Boxes) -> Floats:
            return kmeans(boxes.pooled, k, seed=self.seed, restarts=restarts, centre=centre)

        return self._add(name, tidy(fit(self.seen)), fit)

    def add_refined(
        self, start: Floats | None = None, *, prior: float = PRIOR, rounds: int = 6, name: str = "refined"
    ) -> Fit | None:
        """Anchors moved from ``start`` (the published ones); None where the boxes are too uniform."""
        if self.too_uniform:
            return None
        specs = self.specs if start is None else specs_with(self.specs, start)

        def fit(boxes: Boxes, rounds: int = 0) -> Floats:
            return refine(
                boxes,
                specs,
                assignment=self.assignment,
                limits=self.limits,
                prior=prior,
                rounds=rounds,
                seed=self.seed,
            )

        return self._add(name, tidy(fit(self.seen, rounds)), fit)

    def verdict(self, rules: Rules | None = None) -> Verdict:
        """Which of the sets to train with."""
        return recommend(self.fits, PUBLISHED, self.boxes, self.held_out, rules)

    def _add(self, name: str, anchors: Floats, fit: Fitter | None = None) -> Fit:
        self.fits[name] = describe(self.seen, specs_with(self.specs, anchors), self.assignment, self.limits)
        gain = (
            None if fit is None else held_out_gain(self.boxes, self.published, fit, self.factors, self.seed)
        )
        if gain is not None:
            self.held_out[name] = gain
        return self.fits[name]
