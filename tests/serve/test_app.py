"""Real requests over a socket: right answers, clear refusals, batches over requests."""

import io
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.serve.serving import CLASSES, call, jpeg, served, small_model
from yolo.checkpoint import load_model
from yolo.data import decode_image
from yolo.deploy import Runtime, Wanted, export, load_detector
from yolo.deploy.pictures import images_of
from yolo.predict import Predictor
from yolo.serve.app import LOOPBACK, Limits, create_app
from yolo.serve.batcher import Batcher, Busy, Job, Rule
from yolo.serve.stats import Stats, resident_bytes

LIMITS = Limits(megabytes=0.05, megapixels=0.1, upload_seconds=0.5)
LOW = "/v1/detect?score_threshold=0.0005"


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    return load_detector(small_model(tmp_path_factory.mktemp("weights") / "small.ckpt"), device="cpu")


@pytest.fixture(scope="module")
def port(runtime: Runtime) -> Iterator[int]:
    with served(create_app(runtime, LIMITS, hosts=LOOPBACK)) as number:
        yield number


def png(height: int, width: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def test_the_answer_is_what_the_predictor_finds(port: int, runtime: Runtime) -> None:
    picture = jpeg()[0]
    reply = call(port, "POST", f"{LOW}&nms=0.3&max_detections=9", picture)
    assert reply.status == 200
    content = reply.json
    wanted = Predictor(runtime, score_threshold=0.0005, iou_threshold=0.3, max_detections=9)(
        [decode_image(picture)]
    )[0]
    assert (content["width"], content["height"], content["batch"]) == (160, 160, 1)
    np.testing.assert_allclose([one["box"] for one in content["detections"]], wanted.boxes, atol=2e-3)
    np.testing.assert_allclose([one["score"] for one in content["detections"]], wanted.scores, atol=1e-6)
    assert [one["class"] for one in content["detections"]] == [CLASSES[label] for label in wanted.labels]
    times = content["milliseconds"]
    assert list(times)[-1] == "total"
    assert sum(times.values()) - times["total"] <= times["total"]


def test_classes_are_filtered(port: int) -> None:
    every = {one["class"] for one in call(port, "POST", LOW, jpeg()[0]).json["detections"]}
    only = {
        one["class"]
        for one in call(port, "POST", f"{LOW}&classes=boat&classes=kite", jpeg()[0]).json["detections"]
    }
    assert only == every & {"boat", "kite"}


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "words"),
    [
        ("/v1/detect", b"", {}, 400, "the body is empty"),
        ("/v1/detect", b"not a picture", {}, 400, "not a picture in a format that is known"),
        ("/v1/detect", jpeg()[0][:-900], {}, 400, "cut short"),
        ("/v1/detect", b"x" * 60_000, {}, 413, "a picture may have 0.05 MB"),
        ("/v1/detect", b"x" * 10_000_000, {}, 413, "a picture may have 0.05 MB"),
        ("/v1/detect", png(400, 300), {}, 413, "0.1 million pixels, this has 300x400"),
        ("/v1/detect", b"--", {"Content-Type": "multipart/form-data; boundary=x"}, 415, "the picture file itself"),
        ("/v1/detect?score_threshold=2", b"x", {}, 422, "score_threshold: Input should be less than 1, got '2'"),
        ("/v1/detect?nms=high", b"x", {}, 422, "nms: "),
        ("/v1/detect?max_detections=0", b"x", {}, 422, "max_detections: "),
        ("/v1/detect?score_treshold=0.4", b"x", {}, 422, "the nearest is 'score_threshold'"),
        ("/v1/detect?classes=dog", b"x", {}, 422, "no class 'dog'"),
        ("/v1/detekt", b"x", {}, 404, "Not Found"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_what_the_client_did_wrong_is_one_sentence(
    port: int, path: str, body: bytes, headers: dict[str, str], status: int, words: str
) -> None:
    try:
        reply = call(port, "POST", path, body, headers)
    except (BrokenPipeError, ConnectionResetError):  # far too much: the service hung up while we were sending
        assert len(body) == 10_000_000
        return
    assert (reply.status, list(reply.json)) == (status, ["error"])
    assert words in reply.json["error"]


def test_other_methods_and_hosts(port: int) -> None:
    assert call(port, "GET", "/v1/detect").status == 405
    assert call(port, "GET", "/health", headers={"Host": "evil.example"}).status == 400


def test_a_picture_that_never_arrives(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 20) as client:
        client.sendall(b"POST /v1/detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")
        assert b"408" in client.recv(4096).split(b"\r\n")[0]


def test_page_model_health_and_metrics(port: int) -> None:
    page = call(port, "GET", "/")
    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    assert b"http" not in page.body.replace(b"http-equiv", b"")  # nothing comes from elsewhere
    about = call(port, "GET", "/v1/model").json
    assert (about["classes"], about["input"]) == (CLASSES, {"width": 96, "height": 96})
    assert call(port, "GET", "/health").json == {"status": "ok"}
    before = call(port, "GET", "/metrics").body.decode()
    call(port, "POST", "/v1/detect", jpeg()[0])
    after = call(port, "GET", "/metrics").body.decode()

    def count(text: str, name: str) -> float:
        return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(name))

    assert (
        count(after, 'yolo_requests_total{status="200"}')
        == count(before, 'yolo_requests_total{status="200"}') + 1
    )
    assert 'yolo_request_seconds{quantile="0.99"}' in after
    assert count(after, "process_resident_memory_bytes ") > 1e7
    assert "/v1/detect" in call(port, "GET", "/openapi.json").json["paths"]


def test_requests_share_batches(runtime: Runtime) -> None:
    """Sixteen clients at once, two kinds of rule: the answers are those of one client alone."""
    pictures = jpeg(4)
    paths = [f"{LOW}&nms={nms}" for nms in (0.2, 0.6)]
    with served(create_app(runtime, max_batch=8, max_wait=0.3)) as port, ThreadPoolExecutor(16) as pool:
        alone = {(path, i): call(port, "POST", path, pictures[i]).json for path in paths for i in range(4)}
        keys = [key for key in alone for _ in range(2)]
        together = list(pool.map(lambda key: call(port, "POST", key[0], pictures[key[1]]).json, keys))
    assert max(one["batch"] for one in together) > 1
    for key, one in zip(keys, together, strict=True):
        single = alone[key]["detections"]
        assert len(one["detections"]) == len(single)
        np.testing.assert_allclose(
            [row["score"] for row in one["detections"]], [row["score"] for row in single], atol=1e-5
        )


def test_too_many_are_sent_away(runtime: Runtime) -> None:
    limits = Limits(requests=2, upload_seconds=20)
    with served(create_app(runtime, limits)) as port:
        slow = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(2)]
        for client in slow:
            client.sendall(b"POST /v1/detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        deadline = time.monotonic() + 20
        while (reply := call(port, "POST", "/v1/detect", jpeg()[0])).status == 200:
            assert time.monotonic() < deadline
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        for client in slow:
            client.close()
        while call(port, "POST", "/v1/detect", jpeg()[0]).status != 200:  # clients that left make room
            assert time.monotonic() < deadline


class Waiting:
    """Stands for a runtime that is stuck until it is told to go on, then fails."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def ruled(self, **_: object) -> "Waiting":
        assert self.go.wait(20)
        raise RuntimeError("out of memory")


def test_a_full_queue_and_a_failing_batch(caplog: pytest.LogCaptureFixture) -> None:
    runtime = Waiting()
    batcher = Batcher(runtime, max_batch=1, max_wait=0.0, capacity=2)  # type: ignore[arg-type]
    placement = (1.0, 1.0, 0, 0, 4, 4)

    def job() -> Job:
        return Job(np.zeros((4, 4, 3), np.uint8), placement, 0.25, Rule())  # type: ignore[arg-type]

    first = batcher.submit(job())
    deadline = time.monotonic() + 20
    while batcher.waiting and time.monotonic() < deadline:
        time.sleep(0.01)
    rest = [batcher.submit(job()) for _ in range(2)]
    with pytest.raises(Busy):
        batcher.submit(job())
    runtime.go.set()
    for future in (first, *rest):
        with pytest.raises(RuntimeError, match="out of memory"):
            future.result(20)
    assert batcher.alive
    batcher.close()
    assert not batcher.alive


def test_a_batcher_needs_sensible_numbers(runtime: Runtime) -> None:
    with pytest.raises(ValueError, match="max_batch and capacity of at least 1"):
        Batcher(runtime, max_batch=0)


def test_stats_have_a_fixed_size() -> None:
    stats = Stats()
    for index in range(10_000):
        stats.request(200 if index % 2 else 400, 0.01 if index < 9_900 else 5.0)
        stats.picture(1)
    text = stats.text(waiting=3)
    assert 'yolo_requests_total{status="400"} 5000' in text
    assert 'yolo_request_seconds{quantile="0.5"} 0.010000' in text
    assert 'yolo_request_seconds{quantile="0.99"} 5.000000' in text
    assert "yolo_waiting 3" in text
    assert len(text.splitlines()) < 20
    assert resident_bytes() > 1e7
    assert resident_bytes("nobody") == 0


def test_weights_of_every_kind_are_served(tmp_path: Path, runtime: Runtime) -> None:
    """An ONNX file with suppression inside answers as the checkpoint does."""
    model = load_model(small_model(tmp_path / "small.ckpt"))
    export(model, tmp_path / "x.onnx", Wanted(batch=1, size=(96, 96)), images_of(None, 1))
    counts = []
    for path in ("small.ckpt", "x.onnx"):
        with served(create_app(load_detector(tmp_path / path, device="cpu"))) as port:
            counts.append(
                [
                    one["class"]
                    for one in call(port, "POST", f"{LOW}&max_detections=5", jpeg()[0]).json["detections"]
                ]
            )
    assert len(counts[0]) == 5
    assert counts[0] == counts[1]
