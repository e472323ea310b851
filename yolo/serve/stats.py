"""Counts and times of a service, as Prometheus text."""

import threading
from collections import Counter, deque
from pathlib import Path

import numpy as np

RECENT = 4096  # requests that the quantiles are taken over
QUANTILES = (0.5, 0.9, 0.99)


class Stats:
    """What happened since the start; safe to use from several threads, and of fixed size."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._status: Counter[int] = Counter()
        self._seconds: deque[float] = deque(maxlen=RECENT)
        self._total_seconds = 0.0
        self._batches: Counter[int] = Counter()

    def request(self, status: int, seconds: float) -> None:
        """Count one request to the detection endpoint."""
        with self._lock:
            self._status[status] += 1
            self._seconds.append(seconds)
            self._total_seconds += seconds

    def picture(self, batch: int) -> None:
        """Count one picture that shared a batch with others."""
        with self._lock:
            self._batches[batch] += 1

    def text(self, waiting: int) -> str:
        """The Prometheus exposition format, version 0.0.4."""
        with self._lock:
            status, seconds = sorted(self._status.items()), list(self._seconds)
            total, batches = self._total_seconds, sorted(self._batches.items())
        lines = ["# TYPE yolo_requests_total counter"]
        lines += [f'yolo_requests_total{{status="{code}"}} {count}' for code, count in status]
        lines += ["# TYPE yolo_request_seconds summary"]
        if seconds:
            values = np.quantile(seconds, QUANTILES)
            lines += [
                f'yolo_request_seconds{{quantile="{q}"}} {v:.6f}'
                for q, v in zip(QUANTILES, values, strict=True)
            ]
        lines += [f"yolo_request_seconds_sum {total:.6f}"]
        lines += [f"yolo_request_seconds_count {sum(count for _, count in status)}"]
        lines += ["# TYPE yolo_pictures_total counter"]
        lines += [f'yolo_pictures_total{{batch="{size}"}} {count}' for size, count in batches]
        lines += ["# TYPE yolo_waiting gauge", f"yolo_waiting {waiting}"]
        lines += ["# TYPE process_resident_memory_bytes gauge"]
        lines += [f"process_resident_memory_bytes {resident_bytes()}"]
        return "\n".join(lines) + "\n"


def resident_bytes(process: int | str = "self") -> int:
    """Main memory that a process holds; 0 where the system does not say."""
    status = Path(f"/proc/{process}/status")
    if not status.is_file():
        return 0
    line = next((line for line in status.read_text().splitlines() if line.startswith("VmRSS:")), "VmRSS: 0")
    return int(line.split()[1]) * 1024
