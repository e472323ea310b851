"""The HTTP interface.

``POST /v1/detect`` with the bytes of a picture as body (``curl --data-binary @a.jpg``); options in the query.
Answers are JSON; what the client did wrong is a 4xx with ``{"error": "one sentence"}``; 503 with ``Retry-After``
when too many requests are waiting. ``GET /v1/model``, ``/health`` and ``/metrics`` (Prometheus) describe the
service, ``/`` is the page, ``/openapi.json`` the interface for machines.
"""

import asyncio
import difflib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import anyio
import anyio.to_thread
import numpy as np
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from yolo.data import decode_image, info_of
from yolo.deploy import Runtime
from yolo.report import color, detections_json
from yolo.serve.batcher import Batcher, Busy, Job, Rule
from yolo.serve.stats import Stats
from yolo.types import Found

DETECT = "/v1/detect"
LOOPBACK = ("127.0.0.1", "localhost")
PAGE_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)


@dataclass(frozen=True)
class Limits:
    """What a client may ask for; together they bound the memory of the service.

    Args:
        megabytes: Of a picture file.
        megapixels: Of a picture, decoded.
        requests: Pictures that are read, waiting or worked on at a time; more are sent away with 503.
        upload_seconds: A client has to send its picture.
        decoders: Pictures that are decoded at a time.
    """

    megabytes: float = 16.0
    megapixels: float = 32.0
    requests: int = 64
    upload_seconds: float = 30.0
    decoders: int = 2


def create_app(
    runtime: Runtime,
    limits: Limits | None = None,
    *,
    max_batch: int = 8,
    max_wait: float = 0.005,
    hosts: Sequence[str] = (),
) -> FastAPI:
    """The service around one model.

    Args:
        runtime: Runs the model.
        limits: What a client may ask for.
        max_batch: Pictures that go through the network at a time, from as many requests.
        max_wait: Seconds that a request waits for others to share a batch with.
        hosts: Values of the Host header that are served, so that no other site's name leads a browser here;
            none: all.
    """
    limits = limits or Limits()
    service = _Service(runtime, limits, max_batch, max_wait)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await anyio.to_thread.run_sync(service.batcher.close)

    app = FastAPI(title="yolo-lightning", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    if hosts:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    app.add_exception_handler(AnyHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _wrong_option)
    app.add_exception_handler(Exception, _our_error)
    page = (Path(__file__).parent / "page.html").read_text("utf-8")

    @app.middleware("http")
    async def counted(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        began = time.perf_counter()
        response = await call(request)
        if request.url.path == DETECT:
            service.stats.request(response.status_code, time.perf_counter() - began)
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY})

    @app.get("/health")
    async def health() -> JSONResponse:
        alive = service.batcher.alive
        return JSONResponse({"status": "ok" if alive else "stopped"}, 200 if alive else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(service.stats.text(service.batcher.waiting))

    @app.get("/v1/model")
    async def model() -> dict[str, Any]:
        return service.about()

    @app.post(DETECT)
    async def detect(
        request: Request,
        score_threshold: Annotated[float, Query(ge=0, lt=1, description="detections score more")] = 0.25,
        nms: Annotated[float, Query(ge=0, le=1, description="IoU above which a better box wins")] = 0.45,
        max_detections: Annotated[int, Query(ge=1, le=1000)] = 300,
        class_agnostic: Annotated[bool, Query(description="boxes of different classes compete")] = False,
        classes: Annotated[list[str] | None, Query(description="names that are wanted; all")] = None,
    ) -> dict[str, Any]:
        known = ("score_threshold", "nms", "max_detections", "class_agnostic", "classes")
        for name in request.query_params:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.0)[0]
                raise HTTPException(422, f"no option {name!r}; the nearest is {near!r}")
        wanted = service.labels(classes)
        rule = Rule(nms, max_detections, class_agnostic)
        return await service.detect(request, score_threshold, rule, wanted)

    return app


class _Service:
    """What the handlers share."""

    def __init__(self, runtime: Runtime, limits: Limits, max_batch: int, max_wait: float) -> None:
        self.runtime, self.limits = runtime, limits
        self.batcher = Batcher(runtime, max_batch, max_wait, limits.requests)
        self.stats = Stats()
        self.active = 0
        self.decoders = anyio.CapacityLimiter(limits.decoders)

    def about(self) -> dict[str, Any]:
        height, width = self.runtime.preprocess.size
        return {
            "runtime": self.runtime.name,
            "classes": self.runtime.classes,
            "colors": [color(label) for label in range(len(self.runtime.classes))],
            "input": {"width": width, "height": height},
            "limits": {"megabytes": self.limits.megabytes, "megapixels": self.limits.megapixels},
        }

    def labels(self, names: list[str] | None) -> list[int] | None:
        if names is None:
            return None
        for name in names:
            if name not in self.runtime.classes:
                raise HTTPException(
                    422, f"classes: the model has no class {name!r} (GET /v1/model lists all)"
                )
        return [self.runtime.classes.index(name) for name in names]

    async def detect(
        self, request: Request, score: float, rule: Rule, wanted: list[int] | None
    ) -> dict[str, Any]:
        if self.active >= self.limits.requests:
            raise _busy()
        self.active += 1
        try:
            began = time.perf_counter()
            data = await self._body(request)
            received = time.perf_counter()
            job, times = await anyio.to_thread.run_sync(
                self._prepare, data, score, rule, limiter=self.decoders
            )
            try:
                answer = await asyncio.wrap_future(self.batcher.submit(job))
            except Busy:
                raise _busy() from None
        finally:
            self.active -= 1
        self.stats.picture(answer.batch)
        found = answer.found
        if wanted is not None:
            kept = np.isin(found.labels, wanted)
            found = Found(found.boxes[kept], found.scores[kept], found.labels[kept])
        total = (time.perf_counter() - began) * 1e3
        times = {
            "upload of the file": (received - began) * 1e3,
            **times,
            **answer.milliseconds,
            "total": total,
        }
        return {
            "width": job.placement.width,
            "height": job.placement.height,
            "detections": detections_json(found, self.runtime.classes),
            "milliseconds": {name: round(value, 3) for name, value in times.items()},
            "batch": answer.batch,
        }

    async def _body(self, request: Request) -> bytes:
        """The bytes of the picture, read no further than the limit."""
        kind = request.headers.get("content-type", "")
        if kind.startswith(("multipart/", "application/json")):
            raise HTTPException(415, f"the body is the picture file itself, got {kind.partition(';')[0]}")
        most = int(self.limits.megabytes * 1e6)
        too_large = HTTPException(413, f"a picture may have {self.limits.megabytes:g} MB")
        data, spare = (
            bytearray(),
            4 * most,
        )  # a little too much is read to its end: the client sees the answer
        if int(request.headers.get("content-length") or 0) > spare:
            raise too_large
        try:
            async with asyncio.timeout(self.limits.upload_seconds):
                async for chunk in request.stream():
                    spare -= len(chunk)
                    if spare < 0:
                        raise too_large
                    if len(data) <= most:
                        data += chunk
        except TimeoutError:
            seconds = self.limits.upload_seconds
            raise HTTPException(408, f"the picture did not arrive within {seconds:g} seconds") from None
        if len(data) > most:
            raise too_large
        if not data:
            raise HTTPException(400, "the body is empty: send the bytes of a picture file")
        return bytes(data)

    def _prepare(self, data: bytes, score: float, rule: Rule) -> tuple[Job, dict[str, float]]:
        """Decode and bring to the network's canvas."""
        began = time.perf_counter()
        try:
            height, width = info_of(data).size
            if height * width > self.limits.megapixels * 1e6:
                most = f"{self.limits.megapixels:g} million pixels"
                raise HTTPException(413, f"a picture may have {most}, this has {width}x{height}")
            image = decode_image(data)
        except ValueError as error:
            raise HTTPException(400, " ".join(str(error).split())) from error
        decoded = time.perf_counter()
        canvas, placement = self.runtime.preprocess.in_bytes(image)
        times = {"decode": (decoded - began) * 1e3, "preprocess": (time.perf_counter() - decoded) * 1e3}
        return Job(canvas, placement, score, rule), times


def _busy() -> HTTPException:
    return HTTPException(
        503, "too many requests are waiting, try again in a second", headers={"Retry-After": "1"}
    )


async def _http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AnyHTTPException)
    return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)


async def _our_error(_: Request, __: Exception) -> JSONResponse:
    return JSONResponse({"error": "the service failed on this request; its log says why"}, 500)


async def _wrong_option(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    words = f"{first['loc'][-1]}: {first['msg']}, got {first.get('input')!r}"
    return JSONResponse({"error": words[0].lower() + words[1:]}, 422)
