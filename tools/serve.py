"""Serve a model to a browser and to programs: python tools/serve.py weights=best.ckpt (configs/serve.yaml)."""

from yolo.cli import answer, main

if __name__ == "__main__":
    answer("serve", __doc__)

import logging

from omegaconf import DictConfig, OmegaConf

from yolo.deploy import load_detector
from yolo.deploy.extras import require
from yolo.inference import with_preprocess

log = logging.getLogger("yolo.serve")


@main("serve")
def serve(cfg: DictConfig) -> None:
    """Serve a model: a page to try it on, an HTTP endpoint, health and metrics."""
    uvicorn = require("uvicorn")
    require("fastapi")
    from yolo.serve.app import LOOPBACK, Limits, create_app  # here: it needs the extra

    runtime = load_detector(
        cfg.weights, device=cfg.device, precision=cfg.precision, cfg=cfg.cfg, download=cfg.download
    )
    runtime = with_preprocess(runtime, **OmegaConf.to_container(cfg.preprocess))
    limits = Limits(**OmegaConf.to_container(cfg.limits))
    hosts = LOOPBACK if cfg.host in LOOPBACK else ()
    app = create_app(runtime, limits, max_batch=cfg.max_batch, max_wait=cfg.max_wait_ms / 1e3, hosts=hosts)
    shown = f"[{cfg.host}]" if ":" in cfg.host else cfg.host
    log.info("%s: page http://%s:%d/, endpoint http://%s:%d/v1/detect", runtime.name, *(shown, cfg.port) * 2)
    if not hosts:
        log.warning("host=%s can be reached from other machines: there is no password and no TLS", cfg.host)
    uvicorn.run(
        app, host=cfg.host, port=cfg.port, log_level="warning", access_log=False, timeout_keep_alive=10,
        timeout_graceful_shutdown=10,
    )  # fmt: skip


if __name__ == "__main__":
    serve()
