"""Widths and heights of a data set's boxes as the network will meet them, in pixels of its input."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

FINE = 24  # bins per octave: 2.9 % of a side; a bin keeps the mean of its boxes
EXACT = 20_000  # distinct sizes up to here are kept as they are
CHUNK = 1 << 16  # rows per step, so that memory does not grow with the data set


@dataclass(frozen=True)
class Sizes:
    """Distinct box sizes and how often each occurs.

    Everything is computed from these by element-wise float64 arithmetic and ordered sums, without BLAS: no
    result depends on how many threads there are.

    Args:
        wh: ``[D, 2]`` widths and heights in pixels of the network input, all finite and positive.
        count: ``[D]`` int64, boxes of each size.
        dropped: Boxes that were left out because a side was zero, negative or not a number.
    """

    wh: Floats
    count: NDArray[np.int64]
    dropped: int = 0

    @classmethod
    def of(cls, wh: ArrayLike) -> "Sizes":
        """From one row of width and height per box, in any order; impossible rows are dropped and counted."""
        rows = np.asarray(wh, dtype=np.float64).reshape(-1, 2)
        usable = np.isfinite(rows).all(axis=1) & (rows > 0).all(axis=1)
        pairs = np.ascontiguousarray(rows[usable]).view(np.complex128).ravel()  # sorts by width, then height
        distinct, count = np.unique(pairs, return_counts=True)
        return cls(distinct.view(np.float64).reshape(-1, 2), count.astype(np.int64), int((~usable).sum()))

    @property
    def boxes(self) -> int:
        return int(self.count.sum())

    @property
    def distinct(self) -> int:
        """How many sizes differ by a pixel or more."""
        return len(np.unique(np.rint(self.wh), axis=0))

    def scaled(self, factors: Sequence[float]) -> "Sizes":
        """Every box once per factor: what multi-scale training shows the network."""
        if len(factors) == 1 and factors[0] == 1:
            return self
        base = self.folded()
        wh = np.concatenate([base.wh * factor for factor in factors])
        return Sizes(wh, np.tile(base.count, len(factors)), self.dropped).folded()

    def folded(self, per_octave: int = FINE, limit: int = EXACT) -> "Sizes":
        """Fewer sizes: beyond ``limit`` of them, boxes of nearly one size are replaced by their mean.

        Args:
            per_octave: Bins per doubling of a side.
            limit: Leave as they are up to so many distinct sizes.
        """
        if len(self.wh) <= limit:
            return self
        wh, count = fold(self.wh, self.count.astype(np.float64), per_octave)
        return Sizes(wh, np.rint(count).astype(np.int64), self.dropped)

    def folds(self, number: int, seed: int) -> Iterator[tuple["Sizes", "Sizes"]]:
        """Pairs of what to fit on and what to judge by: every box is in the second part exactly once."""
        of_box = np.repeat(np.arange(len(self.wh)), self.count)
        fold = np.random.default_rng(seed).permutation(len(of_box)) % number
        for index in range(number):
            held = np.bincount(of_box[fold == index], minlength=len(self.wh))
            yield self._with(self.count - held), self._with(held)

    def _with(self, count: NDArray[np.int64]) -> "Sizes":
        return Sizes(self.wh[count > 0], count[count > 0], self.dropped)


@dataclass(frozen=True)
class Boxes:
    """The box sizes of a data set, class by class.

    Args:
        by_class: Sizes of every class that has any.
    """

    by_class: Mapping[str, Sizes]

    @classmethod
    def of(cls, wh: ArrayLike, labels: ArrayLike | None = None, names: Sequence[str] = ("all",)) -> "Boxes":
        """From one row of width and height per box.

        Args:
            wh: ``[T, 2]`` pixels of the network input.
            labels: ``[T]`` index into ``names``; None puts all in the first class.
            names: Of the classes.
        """
        rows = np.asarray(wh, dtype=np.float64).reshape(-1, 2)
        of_row = np.zeros(len(rows), dtype=np.int64) if labels is None else np.asarray(labels, dtype=np.int64)
        present = sorted(set(of_row.tolist()))
        return cls({names[label]: Sizes.of(rows[of_row == label]) for label in present})

    @cached_property
    def all(self) -> Sizes:
        """Of all classes together."""
        parts = list(self.by_class.values())
        if not parts:
            return Sizes(np.empty((0, 2)), np.empty(0, dtype=np.int64))
        pairs = np.concatenate([part.wh for part in parts]).view(np.complex128).ravel()
        count = np.concatenate([part.count for part in parts])
        distinct, place = np.unique(pairs, return_inverse=True)
        total = np.rint(np.bincount(place, count, minlength=len(distinct))).astype(np.int64)
        return Sizes(distinct.view(np.float64).reshape(-1, 2), total, sum(part.dropped for part in parts))

    @cached_property
    def pooled(self) -> Sizes:
        """:attr:`all`, folded: where many classes have many sizes each, without sorting all of them first."""
        parts = list(self.by_class.values())
        if sum(len(part.wh) for part in parts) <= EXACT:
            return self.all
        wh, count = (np.concatenate([getattr(part, name) for part in parts]) for name in ("wh", "count"))
        return Sizes(wh, count, sum(part.dropped for part in parts)).folded()

    def scaled(self, factors: Sequence[float]) -> "Boxes":
        """:meth:`Sizes.scaled` of every class."""
        return Boxes({name: part.scaled(factors) for name, part in self.by_class.items()})

    def folds(self, number: int, seed: int) -> "Iterator[tuple[Boxes, Boxes]]":
        """:meth:`Sizes.folds` of every class."""
        for parts in zip(*(part.folds(number, seed) for part in self.by_class.values()), strict=True):
            named = list(zip(self.by_class, parts, strict=True))
            train, test = ({name: pair[side] for name, pair in named if pair[side].boxes} for side in (0, 1))
            yield Boxes(train), Boxes(test)

    def balanced(self) -> tuple[Floats, Floats]:
        """Sizes ``[D, 2]`` and weights ``[D]`` (sum 1) in which a class counts by the root of its boxes.

        mAP is a mean over classes and the average IoU one over boxes; this stands between the two.
        """
        parts = [part for part in self.by_class.values() if part.boxes]
        weight = np.concatenate([part.count / np.sqrt(part.boxes) for part in parts])
        return np.concatenate([part.wh for part in parts]), weight / weight.sum()


def fold(wh: Floats, weight: Floats, per_octave: int) -> tuple[Floats, Floats]:
    """Replace what lies in one logarithmic bin of width and height by its weighted mean.

    Args:
        wh: ``[D, 2]`` pixels.
        weight: ``[D]``.
        per_octave: Bins per doubling of a side.
    """
    bins = np.floor(np.log2(wh) * per_octave).astype(np.int64)
    bins -= bins.min(axis=0)
    _, place = np.unique(bins[:, 0] * (bins[:, 1].max() + 1) + bins[:, 1], return_inverse=True)
    total = np.asarray(np.bincount(place, weight), dtype=np.float64)
    return np.stack([np.bincount(place, weight * side) / total for side in wh.T], axis=1), total


def shape_iou(wh: Floats, anchors: Floats) -> Floats:
    """``[D, 2]`` and ``[A, 2]`` to ``[D, A]``: IoU of sizes laid on one corner (arXiv:1612.08242, sec. 2)."""
    overlap = np.minimum(wh[:, None, 0], anchors[None, :, 0]) * np.minimum(
        wh[:, None, 1], anchors[None, :, 1]
    )
    return overlap / (wh.prod(axis=1)[:, None] + anchors.prod(axis=1)[None, :] - overlap)


def nearest(wh: Floats, anchors: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """The best IoU ``[D]`` and the anchor that reaches it ``[D]``; the first wins a tie, as in Darknet."""
    best, index = np.empty(len(wh)), np.empty(len(wh), dtype=np.int64)
    for start in range(0, len(wh), CHUNK):
        part = slice(start, start + CHUNK)
        iou = shape_iou(wh[part], anchors)
        index[part] = iou.argmax(axis=1)
        best[part] = iou.max(axis=1)
    return best, index


def by_area(anchors: Floats) -> Floats:
    """Smallest area first; the narrower of two equal ones first."""
    return anchors[np.lexsort((anchors[:, 0], anchors.prod(axis=1)))]
