"""Pictures that are there more than once: in one split, and in two (what is learned is then scored)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from yolo.doctor.findings import Finding
from yolo.doctor.pictures import Look

# Both were set on real sets: on 289 pictures of a chess board these two agree with the eye; the hash alone also
# takes plain grounds with different small objects for one picture, the correlation alone takes half of all boards.
BITS = 5  # of 63 that may differ between near-duplicates
CORRELATION = 0.95  # that the small gray pictures must reach
CHUNK = 1 << 22  # pairs compared at a time


def find_alike(splits: Mapping[str, Sequence[str]], looks: Mapping[str, Look]) -> Iterator[Finding]:
    """Copies within splits; shared pictures, copies and near-duplicates between them.

    Args:
        splits: Paths of the pictures of each split, the training split first.
        looks: What is known of them.
    """
    names = list(splits)
    for name in names:
        yield from _copies(name, splits[name], looks)
    for number, first in enumerate(names):
        for second in names[number + 1 :]:
            yield from _between(first, second, splits, looks)


def _copies(split: str, paths: Sequence[str], looks: Mapping[str, Look]) -> Iterator[Finding]:
    first: dict[bytes, str] = {}
    for path in dict.fromkeys(paths):
        earlier = first.setdefault(looks[path].digest, path)
        if earlier != path and looks[path].small is not None:
            yield Finding("copy", split, f"the same file as {earlier}", path, picture=path, other=earlier)


def _between(
    first: str, second: str, splits: Mapping[str, Sequence[str]], looks: Mapping[str, Look]
) -> Iterator[Finding]:
    trained = first == "train"
    ours = {str(Path(path).resolve()): path for path in splits[first]}
    shared = [path for path in splits[second] if str(Path(path).resolve()) in ours]
    if shared and not trained:
        text = f"{len(shared)} of the {len(splits[second])} pictures of {second} are in {first} too"
        yield Finding("shared", second, text)
    if not trained:
        return
    for path in shared:
        yield Finding("overlap", second, f"also in {first}", path, picture=path)
    alone = [path for path in splits[second] if path not in set(shared) and looks[path].small is not None]
    known = [path for path in splits[first] if looks[path].small is not None]
    by_digest = {looks[path].digest: path for path in reversed(known)}
    rest = []
    for path in alone:
        twin = by_digest.get(looks[path].digest)
        if twin is None:
            rest.append(path)
        else:
            yield Finding("leak", second, f"a copy of {twin} in {first}", path, picture=path, other=twin)
    for path, twin, bits, likeness in nearest(rest, known, looks):
        text = f"nearly {twin} in {first} ({bits} of 63 bits differ, correlation {likeness:.3f})"
        yield Finding("leak", second, text, path, picture=path, other=twin)


def nearest(
    paths: Sequence[str], known: Sequence[str], looks: Mapping[str, Look]
) -> Iterator[tuple[str, str, int, float]]:
    """The near-duplicate in ``known`` of each path that has one, with differing bits and correlation."""
    if not paths or not known:
        return
    hashes = np.array([looks[path].hash for path in known], np.uint64)
    step = max(1, CHUNK // len(known))
    for start in range(0, len(paths), step):
        part = paths[start : start + step]
        wanted = np.array([looks[path].hash for path in part], np.uint64)
        bits = np.bitwise_count(wanted[:, None] ^ hashes[None, :])
        for row in np.flatnonzero((bits <= BITS).any(axis=1)).tolist():
            candidates = np.flatnonzero(bits[row] <= BITS)
            own = _normalised([part[row]], looks)[0]
            likeness = _normalised([known[at] for at in candidates.tolist()], looks) @ own
            best = int(likeness.argmax())
            if likeness[best] >= CORRELATION:
                at = int(candidates[best])
                yield part[row], known[at], int(bits[row, at]), float(likeness[best])


def _normalised(paths: Sequence[str], looks: Mapping[str, Look]) -> NDArray[np.float32]:
    """``[P, SIDE * SIDE]`` rows of mean 0 and length 1, so that a product is a correlation; flat ones are 0."""
    smalls = [small for path in paths if (small := looks[path].small) is not None]
    rows = np.stack(smalls).reshape(len(paths), -1).astype(np.float32)
    rows -= rows.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > rows.shape[1] ** 0.5)
