"""Anchors by k-means with the distance 1 - IoU (YOLOv2, arXiv:1612.08242, sec. 2, "Dimension Clusters")."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from yolo.anchors.sizes import Floats, Sizes, by_area, nearest, shape_iou

Centre = Literal["mean", "median"]
TINY = 1e-5  # of average IoU: less is no progress
PATIENCE = 4  # rounds without progress


def kmeans(
    sizes: Sizes, k: int, *, seed: int = 0, restarts: int = 10, centre: Centre = "mean", iterations: int = 100
) -> Floats:
    """Cluster box sizes, several times from k-means++ starts, and keep the best average IoU.

    Args:
        sizes: Box sizes in pixels of the network input.
        k: Clusters.
        seed: Equal seeds give equal anchors.
        restarts: Starts that are tried.
        centre: A cluster moves to the mean or to the median of its widths and heights.
        iterations: Most rounds per start.

    Returns:
        ``[k, 2]`` widths and heights in pixels, smallest area first.

    Raises:
        ValueError: There are fewer boxes, or fewer different sizes, than clusters.
    """
    if k < 1 or restarts < 1:
        raise ValueError(
            f"k-means needs at least one cluster and one start, got k={k} and restarts={restarts}"
        )
    if centre not in ("mean", "median"):
        raise ValueError(f"the centre of a cluster is its mean or its median, got {centre!r}")
    if not sizes.boxes:
        raise ValueError("there are no boxes to compute anchors from")
    if sizes.boxes < k:
        raise ValueError(f"asked for {k} anchors, but there are only {sizes.boxes} boxes")
    if len(sizes.wh) < k:
        raise ValueError(
            f"asked for {k} anchors, but the {sizes.boxes} boxes have only {len(sizes.wh)} different sizes"
        )
    sizes = sizes.folded()
    best, found = -1.0, np.empty((0, 2))
    for restart in range(restarts):
        average, anchors = _run(
            sizes, _start(sizes, k, np.random.default_rng([seed, restart])), centre, iterations
        )
        if average > best:
            best, found = average, anchors
    return by_area(found)


def _start(sizes: Sizes, k: int, generator: np.random.Generator) -> Floats:
    """k-means++: each next centre is drawn with a chance that grows with its distance to the former."""
    distance = np.ones(len(sizes.wh))
    chosen: list[int] = []
    for _ in range(k):
        mass = np.cumsum(sizes.count * distance)
        index = min(int(np.searchsorted(mass, generator.random() * mass[-1], side="right")), len(mass) - 1)
        if index in chosen:  # only rounding can lead here: all that is left lies on a centre
            index = int(np.setdiff1d(np.arange(len(distance)), chosen)[0])
        chosen.append(index)
        distance = np.minimum(distance, 1 - shape_iou(sizes.wh, sizes.wh[[index]])[:, 0])
        distance[index] = 0
    return sizes.wh[chosen]


def _run(sizes: Sizes, anchors: Floats, centre: Centre, iterations: int) -> tuple[float, Floats]:
    """Move the centres until nothing gets better; the mean does not minimise 1 - IoU, so keep the best."""
    best, found, idle = -1.0, anchors, 0
    for _ in range(iterations):
        iou, cluster = nearest(sizes.wh, anchors)
        average = float((sizes.count * iou).sum() / sizes.boxes)
        idle = 0 if average > best + TINY else idle + 1
        if average > best:
            best, found = average, anchors
        if idle > PATIENCE:
            break
        anchors = _centres(sizes, _fill(cluster, iou, len(anchors)), len(anchors), centre)
    return best, found


def _fill(cluster: NDArray[np.int64], iou: Floats, k: int) -> NDArray[np.int64]:
    """Give each empty cluster the worst served size of a cluster that can spare one."""
    cluster = cluster.copy()
    order = np.argsort(iou, kind="stable")
    for empty in np.flatnonzero(np.bincount(cluster, minlength=k) == 0):
        members = np.bincount(cluster, minlength=k)
        spare = order[members[cluster[order]] > 1][0]
        cluster[spare] = empty
    return cluster


def _centres(sizes: Sizes, cluster: NDArray[np.int64], k: int, centre: Centre) -> Floats:
    if centre == "mean":
        total = np.bincount(cluster, sizes.count, minlength=k)
        return np.stack(
            [np.bincount(cluster, sizes.count * side, minlength=k) / total for side in sizes.wh.T], axis=1
        )
    middle = np.empty((k, 2))
    for axis, side in enumerate(sizes.wh.T):
        order = np.argsort(side, kind="stable")
        for index in range(k):
            members = order[cluster[order] == index]
            below = np.cumsum(sizes.count[members])
            middle[index, axis] = side[members[np.searchsorted(below, below[-1] / 2)]]
    return middle
