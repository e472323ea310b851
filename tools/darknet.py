"""Read, write or describe Darknet's files: python tools/darknet.py import weights=a.weights output=a.ckpt."""

from yolo.cli import answer, main

if __name__ == "__main__":
    answer("darknet", __doc__, verbs=("import", "export", "info"))

import logging
import sys
from pathlib import Path
from typing import cast

from omegaconf import DictConfig, OmegaConf

from yolo import darknet
from yolo.checkpoint import Model, darknet_model, load_any, save_model
from yolo.darknet.info import describe_weights, survey, table
from yolo.darknet.zoo import ZOO
from yolo.inference import with_preprocess

log = logging.getLogger("yolo.darknet")


def optional(path: str | None) -> Path | None:
    """An option that may be null as a path."""
    return None if path is None else Path(path)


def needed(cfg: DictConfig, *keys: str) -> list[str]:
    """The values of options that a task cannot do without."""
    missing = [key for key in keys if cfg[key] is None]
    if missing:
        raise ValueError(f"{cfg.verb} needs {', '.join(f'{key}=...' for key in missing)}")
    return [cfg[key] for key in keys]


def network(cfg: DictConfig) -> darknet.CfgDetector | darknet.CfgClassifier:
    """What the cfg describes, filled from the weights if there are any."""
    weights, description = optional(cfg.weights), optional(cfg.cfg)
    if description is None:
        (name,) = needed(cfg, "weights")
        description = darknet.find_cfg(Path(name))
    return darknet.import_network(description, weights, optional(cfg.names), cfg.cutoff)


def import_(cfg: DictConfig) -> None:
    """Darknet files to a checkpoint."""
    (output,) = needed(cfg, "output")
    if cfg.cfg is None and cfg.weights in ZOO and not Path(cfg.weights).exists():
        model = load_any(cfg.weights, download=cfg.download)
    else:
        imported = network(cfg)
        if cfg.num_classes is not None:
            imported = darknet.change_classes(imported, cfg.num_classes)
        model = darknet_model(imported, darknet.class_names(imported), imported.input_size)
    options = cast("dict[str, object]", OmegaConf.to_container(cfg.preprocess))
    save_model(with_preprocess(model, **options), Path(output))
    log.info("%s: %d classes, %s", output, len(model.classes), model.preprocess)


def export(cfg: DictConfig) -> None:
    """A checkpoint to cfg, weights and names."""
    weights, output = needed(cfg, "weights", "output")
    model = load_any(weights, cfg.cfg, cfg.download)
    network = model.yolo("Darknet export") if isinstance(model, Model) else model.classifier
    known = isinstance(network, darknet.CfgDetector | darknet.CfgClassifier)
    header = network.header if known else darknet.Header()
    if cfg.seen is not None:
        header = header._replace(seen=0).after(cfg.seen)
    stem = cfg.stem or Path(weights).stem
    paths = darknet.export_network(network, model.classes, Path(output), stem, model.preprocess.size, header)
    log.info("written %s", ", ".join(map(str, paths)))


def info(cfg: DictConfig) -> None:
    """The layers of a cfg, and whether a weights file fits it; or a row for every cfg of a folder."""
    (path,) = needed(cfg, "cfg")
    if Path(path).is_dir():
        sys.stdout.write(survey(Path(path)) + "\n")
        return
    plan = darknet.plan(darknet.parse_cfg(darknet.read_cfg(path), path))
    sys.stdout.write("\n".join([table(plan), *plan.cfg.notes]) + "\n")
    if cfg.weights is not None:
        sys.stdout.write(describe_weights(plan, Path(cfg.weights), cfg.cutoff) + "\n")


TASKS = {"import": import_, "export": export, "info": info}


@main("darknet")
def tool(cfg: DictConfig) -> None:
    """Read and write Darknet's .cfg and .weights files."""
    TASKS[cfg.verb](cfg)


if __name__ == "__main__":
    tool()
