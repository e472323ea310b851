"""The whole examination: read every split, look at every picture, judge, count."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from yolo.data import Annotated, Preprocess, read_coco, read_voc
from yolo.doctor.alike import find_alike
from yolo.doctor.boxes import check_boxes
from yolo.doctor.classes import Usage, check_classes, count
from yolo.doctor.files import check_files
from yolo.doctor.findings import Finding
from yolo.doctor.pictures import Look, look_at_all, suffix_fits
from yolo.doctor.source import AFRESH, Reader, changed, innermost, read_all

Track = Callable[[int], Callable[[], object]]  # how many pictures there are; gives what to call after each


@dataclass(frozen=True)
class Limits:
    """From where on something is worth a word.

    Args:
        tiny: Pixels of the network input: a box with a shorter side is tiny.
        crowded: Objects: a picture with more is crowded.
        rare: Boxes in the training split: a class with fewer is rare.
    """

    tiny: float = 4.0
    crowded: int = 100
    rare: int = 20

    def __post_init__(self) -> None:
        for name, value in (("tiny", self.tiny), ("crowded", self.crowded), ("rare", self.rare)):
            if not value >= 0:
                raise ValueError(f"{name} must not be negative, got {value}")


@dataclass(frozen=True)
class Tally:
    """What a split holds."""

    pictures: int  # that training or scoring would use
    boxes: int  # crowds not counted
    difficult: int
    crowds: int
    empty: int  # pictures without objects


@dataclass(frozen=True)
class Diagnosis:
    """What was found."""

    name: str
    splits: Mapping[str, Tally]
    usage: Mapping[str, Usage]  # by class
    findings: list[Finding]
    base: str  # the folder that everything lies in
    preprocess: Preprocess
    limits: Limits

    @property
    def lost(self) -> list[Finding]:
        """What costs a picture or an object in training."""
        return [finding for finding in self.findings if finding.lost]

    def short(self, text: str) -> str:
        """A message or a path without the folder that all of them have in common."""
        return text.replace(f"{self.base}{os.sep}", "") if self.base else text


def examine(
    name: str,
    readers: Mapping[str, Reader],
    preprocess: Preprocess,
    limits: Limits,
    *,
    threads: int | None = None,
    track: Track = lambda total: lambda: None,
) -> Diagnosis:
    """Read and judge a data set.

    Nothing is taken from a cache and nothing is written.

    Args:
        name: Of the set.
        readers: One per split; the one called ``train`` is what the others are compared with.
        preprocess: How training would see the pictures.
        limits: From where on something is worth a word.
        threads: Pictures that are decoded at the same time; None: one per core.
        track: Told how far the decoding has come.
    """
    findings: list[Finding] = []

    def refuse(split: str, error: Exception) -> None:
        findings.append(Finding("unreadable-split", split, str(error), lost=True))

    parts = read_all(readers, refuse)
    classes = next((part.classes for part in parts.values()), [])
    for split, part in parts.items():
        findings += [Finding.of(problem, split) for problem in part.problems]
    used = {split: [record.path for record in part.records] for split, part in parts.items()}
    refused = [finding.file for finding in findings if finding.code == "unreadable-image"]
    every = list(dict.fromkeys([*(path for paths in used.values() for path in paths), *refused]))
    looks = look_at_all(every, threads, track(len(every)))
    findings = [_refusal(finding, looks) for finding in findings]
    for split, paths in used.items():
        findings += _of_pictures(split, paths, looks)
        arguments = (parts[split].records, classes, looks, preprocess)
        findings += check_boxes(split, *arguments, tiny=limits.tiny, crowded=limits.crowded)
    usage = count(parts, classes)
    findings += find_alike(used, looks)
    findings += check_classes(usage, _stray(readers, parts, classes), rare=limits.rare)
    findings += check_files([readers[split] for split in parts], every)
    tallies = {split: _tally(part) for split, part in parts.items()}
    places = {str(Path(path).parent) for path in (*every, *(one.file for one in findings if one.file))}
    base = os.path.commonpath([*map(os.path.abspath, places)]) if places else ""
    return Diagnosis(name, tallies, usage, _once(findings), base, preprocess, limits)


def _refusal(finding: Finding, looks: Mapping[str, Look]) -> Finding:
    """Tell a damaged picture from one that is none, and show what can be shown."""
    if finding.code != "unreadable-image":
        return finding
    code = "truncated" if looks[finding.file].cut else "unreadable"
    return Finding(code, finding.split, finding.message, finding.file, lost=True)


def _of_pictures(split: str, paths: list[str], looks: Mapping[str, Look]) -> Iterator[Finding]:
    for path in paths:
        look = looks[path]
        if look.problem:
            yield Finding("truncated" if look.cut else "unreadable", split, look.problem, path, lost=True)
        if look.orientation != 1:
            text = f"EXIF orientation {look.orientation}"
            yield Finding("exif", split, text, path, picture=path)
        if not suffix_fits(path, look.kind):
            yield Finding("extension", split, f"the file is {look.kind}", path, picture=path)


def _stray(
    readers: Mapping[str, Reader], parts: Mapping[str, Annotated], classes: list[str]
) -> dict[str, int]:
    """Boxes of every class that the files have and the list has not."""
    boxes: Counter[str] = Counter()
    for split, part in parts.items():
        kind = innermost(readers[split]).func
        outside = any(problem.code == "class" for problem in part.problems)
        if kind is read_coco or (kind is read_voc and outside):
            found = changed(readers[split], classes=None, **AFRESH)()
            for record in found.records:
                boxes.update(found.classes[label] for label in record.truth.labels.tolist())
            boxes.update(dict.fromkeys(found.classes, 0))
    return {name: number for name, number in boxes.items() if name not in classes}


def _tally(part: Annotated) -> Tally:
    truths = [record.truth for record in part.records]
    crowds = sum(int(truth.crowd.sum()) for truth in truths)
    return Tally(
        len(truths),
        sum(len(truth.labels) for truth in truths) - crowds,
        sum(int(truth.difficult.sum()) for truth in truths),
        crowds,
        sum(not len(truth.labels) for truth in truths),
    )


def _once(findings: list[Finding]) -> list[Finding]:
    """Held-out splits may share pictures: what is wrong with one is told once."""
    told: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        key = (finding.code, finding.file, finding.line, finding.message, finding.box, finding.picture)
        told.setdefault(key, finding)
    return list(told.values())
