"""Make and compare anchors: python tools/anchors.py kmeans data=bccd model=yolov2 k=5 (configs/anchors.yaml)."""

from yolo.cli import answer, main

if __name__ == "__main__":
    answer("anchors", __doc__, verbs=("kmeans", "refine", "compare", "plot"))

import logging
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from yolo.anchors import Assignment, Fit, Study, kmeans, measure, nearest
from yolo.data import Annotated
from yolo.data.scales import scaled_sizes
from yolo.models.detector import Detector
from yolo.report.anchors import anchors_table, cfg_line, plot_cloud, plot_curve, plot_heads, sets_table

log = logging.getLogger("yolo.anchors")


def read(data: DictConfig, split: str) -> Annotated:
    """The pictures and objects of a split of a data set."""
    splits = [name for name in ("train", "val", "test") if data.get(name) is not None]
    if split not in splits:
        raise ValueError(f"data set {data.name} has the splits {', '.join(splits)}, got split={split}")
    return instantiate(data[split], _convert_="all")()


def heads_of(model: DictConfig) -> Detector:
    """A model of which only the heads are read, so as small as it gets."""
    if "anchors" in model:
        return instantiate(model, anchors=None, width=0.05, _convert_="all")
    with torch.device("meta"):
        return instantiate(model)


def begin(cfg: DictConfig) -> Study:
    """The boxes as training will see them, and the model's published anchors."""
    preprocess = instantiate(cfg.preprocess, _convert_="all")
    detector = heads_of(cfg.model)
    detector.check_size(*preprocess.size)
    sizes = [preprocess.size]
    if cfg.multiscale is not None:
        sizes = scaled_sizes(preprocess.size, detector.stride, cfg.multiscale.low, cfg.multiscale.high)
    assignment = Assignment.of(instantiate(cfg.loss)(detector))
    boxes = measure(read(cfg.data, cfg.split), preprocess)
    scales = (
        f"{sizes[0][1]}x{sizes[0][0]} to {sizes[-1][1]}x{sizes[-1][0]}"
        if len(sizes) > 1
        else f"{sizes[0][1]}x{sizes[0][0]}"
    )
    log.info(
        "%d boxes of %s %s, as %s puts them on %s pixels; seed %d",
        boxes.all.boxes, cfg.data.name, cfg.split, preprocess.resize, scales, cfg.seed,
    )  # fmt: skip
    study = Study(
        boxes, detector.specs, assignment, [height / preprocess.size[0] for height, _ in sizes], cfg.seed
    )
    if study.too_uniform:
        log.warning("%s: keep the published anchors", study.too_uniform)
    return study


def collect(cfg: DictConfig, study: Study) -> None:
    """Make the sets that the task asks for."""
    clusters = None
    if cfg.start not in ("published", "kmeans"):
        raise ValueError(f"start is published or kmeans, got {cfg.start!r}")
    if cfg.verb != "refine":
        study.add_refined(prior=cfg.prior, rounds=cfg.rounds)
    if cfg.verb != "refine" or cfg.start == "kmeans":
        clusters = study.add_kmeans(cfg.k, restarts=cfg.restarts, centre=cfg.centre)
    if cfg.verb == "refine":
        start = clusters.anchors if clusters is not None else None
        study.add_refined(start, prior=cfg.prior, rounds=cfg.rounds)
    if cfg.model.get("anchors") is not None:
        study.add_given("model.anchors", cfg.model.anchors)
    for index, anchors in enumerate(cfg.given):
        study.add_given(f"given.{index}", anchors)


def show(study: Study) -> str:
    """Print the tables and the verdict; return the name of the recommended set."""
    console = Console()
    console.width = max(console.width, 120)  # what the columns need; a log file has no width of its own
    console.print(
        sets_table(study.fits), *(anchors_table(name, fit) for name, fit in study.fits.items()), sep="\n"
    )
    verdict = study.verdict()
    for reason in verdict.reasons:
        console.print(reason, markup=False, highlight=False)
    keep = verdict.name == "published"
    console.print(
        f"verdict: {'keep the published anchors' if keep else f'train with the anchors {verdict.name!r}'}",
        highlight=False,
    )
    console.print(f"in a Darknet cfg: {cfg_line(study.fits[verdict.name])}", markup=False, highlight=False)
    return verdict.name


def plot(cfg: DictConfig, study: Study, folder: Path) -> None:
    """Draw the curve over k, the cloud of sizes and the shares of the heads."""
    sizes = study.seen.all
    averages = {}
    for k in range(1, min(cfg.k_max, study.boxes.all.distinct) + 1):
        anchors = kmeans(sizes, k, seed=cfg.seed, restarts=min(cfg.restarts, 3), centre=cfg.centre)
        averages[k] = float((nearest(sizes.wh, anchors)[0] * sizes.count).sum() / sizes.boxes)
    plot_curve(averages, study.fits, folder / "curve.png")
    plot_cloud(study.seen, study.fits, folder / "cloud.png", cfg.seed)
    plot_heads(study.fits, folder / "heads.png")
    log.info("drawn: %s", ", ".join(str(folder / f"{name}.png") for name in ("curve", "cloud", "heads")))


def write(cfg: DictConfig, name: str, fit: Fit, path: Path) -> None:
    """A model config with these anchors and the input size that they are for."""
    model = OmegaConf.to_container(cfg.model)  # interpolations such as the class count stay
    if not isinstance(model, dict) or path.suffix != ".yaml":
        raise ValueError(f"a model config is a file that ends in .yaml, got output={path}")
    model["anchors"] = None if name == "published" else fit.anchors.tolist()
    size = {"size": list(cfg.preprocess.size), "resize": cfg.preprocess.resize}
    path.parent.mkdir(parents=True, exist_ok=True)
    about = f"# {name} anchors for data={cfg.data.name}: average IoU {fit.average_iou:.3f}, seed {cfg.seed}\n"
    path.write_text(
        f"# @package _global_\n{about}{OmegaConf.to_yaml({'model': model, 'preprocess': size})}", "utf-8"
    )
    base, use = path.resolve().parent.parent, f"data={cfg.data.name} model={path.stem}"
    if path.resolve().parent.name == "model":
        log.info("written %s; to use it: python tools/train.py --config-dir %s %s", path, base, use)
    else:
        log.info("written %s; for --config-dir of tools/train.py it must lie in a folder called model", path)


@main("anchors")
def anchors(cfg: DictConfig) -> None:
    """Compute anchors for a data set, and say whether they are worth it."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    study = begin(cfg)
    collect(cfg, study)
    best = show(study)
    if cfg.verb == "plot":
        plot(cfg, study, folder)
    if cfg.write:
        name = best if cfg.choose == "recommended" else cfg.choose
        if name not in study.fits:
            raise ValueError(f"choose is recommended or one of {', '.join(study.fits)}, got {name!r}")
        model = HydraConfig.get().runtime.choices.model
        path = folder / "model" / f"{model}_{cfg.data.name}.yaml" if cfg.output is None else Path(cfg.output)
        write(cfg, name, study.fits[name], path)


if __name__ == "__main__":
    anchors()
