"""A small model behind a real socket."""

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import uvicorn
from fastapi import FastAPI

from yolo import models
from yolo.checkpoint import Model, save_model
from yolo.data import Preprocess
from yolo.deploy.pictures import images_of

ROOT = Path(__file__).parents[2]
CLASSES = ["kite", "boat", "bird"]


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def small_model(path: Path) -> Path:
    """Weights that have learnt nothing and find something everywhere at a threshold of .001."""
    detector = models.yolov2_tiny(num_classes=3, width=0.0625)
    save_model(Model(detector, CLASSES, Preprocess((96, 96))), path)
    return path


def jpeg(count: int = 1) -> list[bytes]:
    """Scenes of digits as JPEG files."""
    return [cv2.imencode(".jpg", image[:, :, ::-1])[1].tobytes() for image in images_of(None, count)]


@contextmanager
def served(app: FastAPI) -> Iterator[int]:
    """Run an app in a thread; gives the port."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not server.started:
            assert thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def tool(weights: Path, *options: str) -> Iterator[tuple[int, int]]:
    """Run tools/serve.py; gives the port and the number of the process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "tools/serve.py",
        f"weights='{weights}'",
        f"port={port}",
        "device=cpu",
        *options,
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while True:
            assert process.poll() is None
            assert time.monotonic() < deadline
            try:
                if call(port, "GET", "/health").status == 200:
                    break
            except OSError:
                time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        assert process.wait(30) in (0, -15)


def call(port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()
