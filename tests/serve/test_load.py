"""32 clients at once against tools/serve.py: no error, bounded memory, p99 said."""

import http.client
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.serve.serving import call, jpeg, small_model, tool
from yolo.serve.stats import resident_bytes

CLIENTS = 32


@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_many_clients(seconds: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = jpeg(8)
    times: list[float] = []
    problems: list[str] = []

    def client(number: int, port: int, until: float) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        count = number
        while time.monotonic() < until:
            began = time.perf_counter()
            connection.request("POST", "/v1/detect?score_threshold=0.001", pictures[count % 8])
            response = connection.getresponse()
            body = response.read()
            times.append(time.perf_counter() - began)
            if response.status != 200:
                problems.append(f"{response.status}: {body[:200]!r}")
            count += 1
        connection.close()

    with tool(small_model(tmp_path / "small.ckpt")) as (port, process):
        for picture in pictures * 4:  # warm
            assert call(port, "POST", "/v1/detect", picture).status == 200
        memory = [resident_bytes(process)]
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=client, args=(n, port, until)) for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        while time.monotonic() < until:
            time.sleep(min(0.5, seconds / 6))
            memory.append(resident_bytes(process))
        for thread in threads:
            thread.join()
        metrics = call(port, "GET", "/metrics").body.decode()
    assert problems == []
    assert len(times) >= CLIENTS
    grown = max(memory) - memory[0]
    p50, p99 = np.quantile(times, (0.5, 0.99)) * 1e3
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{CLIENTS} clients, {seconds:g} s: {len(times)} answers, {len(times) / seconds:.0f} a second, "
            f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, memory {memory[0] / 1e6:.0f} MB, grown by {grown / 1e6:.0f} MB"
        )
    assert 'status="200"' in metrics
    assert (
        sum(line.startswith("yolo_pictures_total") for line in metrics.splitlines()) > 1
    )  # batches of several sizes
    assert grown < 150e6
