"""One thread that runs the model on whatever requests are waiting, several pictures at a time."""

import logging
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from yolo.deploy import Runtime
from yolo.inference import to_found
from yolo.types import Detections, Found, Placement

log = logging.getLogger(__name__)


class Busy(Exception):  # noqa: N818 - not an error of anybody's
    """More requests are waiting than the service holds."""


class Rule(NamedTuple):
    """What a request may choose, apart from the score."""

    iou_threshold: float = 0.45
    max_detections: int = 300
    class_agnostic: bool = False


class Answer(NamedTuple):
    """What was found in one picture, and where the time went."""

    found: Found
    milliseconds: dict[str, float]  # queue, then the stages of its batch
    batch: int  # pictures that shared it


@dataclass
class Job:
    """One picture on the network's canvas ``[H, W, 3]`` uint8."""

    canvas: NDArray[np.uint8]
    placement: Placement
    score_threshold: float
    rule: Rule
    answer: "Future[Answer]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.perf_counter)


class Batcher:
    """Collects jobs into batches and answers them.

    Args:
        runtime: Runs the model; used by one thread only.
        max_batch: Pictures that go through the network at a time.
        max_wait: Seconds that the first job of a batch waits for others.
        capacity: Jobs that may wait.
    """

    def __init__(
        self, runtime: Runtime, max_batch: int = 8, max_wait: float = 0.005, capacity: int = 64
    ) -> None:
        if max_batch < 1 or capacity < 1 or max_wait < 0:
            raise ValueError(
                f"a batcher needs max_batch and capacity of at least 1 and max_wait of at least 0, "
                f"got {max_batch}, {capacity} and {max_wait}"
            )
        self.runtime, self.max_batch, self.max_wait = runtime, max_batch, max_wait
        self._jobs: queue.Queue[Job | None] = queue.Queue(capacity)
        self._thread = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether jobs are still worked on."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return self._jobs.qsize()

    def submit(self, job: Job) -> "Future[Answer]":
        """Put a job in the queue.

        Raises:
            Busy: There is no room.
        """
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise Busy from None
        return job.answer

    def close(self) -> None:
        """Finish what is waiting, then stop."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (first := self._jobs.get()) is not None:
            jobs, last = self._collect(first)
            try:
                self._run(jobs)
            except Exception as error:  # the service outlives one bad batch
                log.exception("a batch of %d failed", len(jobs))
                for job in jobs:
                    if not job.answer.done():
                        job.answer.set_exception(error)
            if last:
                return

    def _collect(self, first: Job) -> tuple[list[Job], bool]:
        """The jobs of a batch, and whether they are the last ones."""
        jobs, deadline = [first], time.perf_counter() + self.max_wait
        while len(jobs) < self.max_batch:
            try:
                job = self._jobs.get(timeout=max(0.0, deadline - time.perf_counter()))
            except queue.Empty:
                break
            if job is None:
                return jobs, True
            jobs.append(job)
        return jobs, False

    def _run(self, jobs: Sequence[Job]) -> None:
        began = time.perf_counter()
        jobs = [job for job in jobs if job.answer.set_running_or_notify_cancel()]
        for rule in dict.fromkeys(job.rule for job in jobs):  # nearly always the same one
            same = [job for job in jobs if job.rule == rule]
            score = min(job.score_threshold for job in same)
            detections, stages = self._detect(same, rule, score)
            every = to_found(detections, [job.placement for job in same])
            for job, found in zip(same, every, strict=True):
                kept = found.scores > job.score_threshold
                mine = Found(found.boxes[kept], found.scores[kept], found.labels[kept])
                waited = {"queue": (began - job.arrived) * 1e3}
                job.answer.set_result(Answer(mine, waited | stages, len(same)))

    def _detect(self, jobs: Sequence[Job], rule: Rule, score: float) -> tuple[Detections, dict[str, float]]:
        """Detections of a batch and the milliseconds of its stages, as far as the runtime has them apart."""
        runtime = self.runtime.ruled(score_threshold=score, **rule._asdict())
        images = torch.from_numpy(np.stack([job.canvas for job in jobs])).permute(0, 3, 1, 2)
        marks = [time.perf_counter()]

        def lap() -> None:
            runtime.synchronize()
            marks.append(time.perf_counter())

        if runtime.suppresses or not runtime.limits.take(images.shape):
            detections = runtime.any_batch(images)
            lap()
            names = ["inference"]
        else:
            uploaded = runtime.upload(images)
            lap()
            outputs = runtime.network(uploaded)
            lap()
            detections = runtime.suppress(outputs)
            lap()
            names = ["upload", "network", "suppression"]
        detections = runtime.download(detections)
        lap()
        times = [(b - a) * 1e3 for a, b in pairwise(marks)]
        return detections, dict(zip([*names, "download"], times, strict=True))
