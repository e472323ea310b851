"""Everything shipped is trusted, composes and builds."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from yolo.cli import check, check_targets
from yolo.models.detector import Detector

CONFIGS = Path(__file__).parent.parent / "configs"
FILES = sorted(CONFIGS.rglob("*.yaml"))
TRUSTED = ("yolo.", "torch.", "torchvision.", "torchmetrics.", "pytorch_lightning.", "albumentations.")
MODELS = sorted(
    str(p.relative_to(CONFIGS / "model").with_suffix("")) for p in CONFIGS.glob("model/**/*.yaml")
)
DATA = sorted(p.stem for p in CONFIGS.glob("data/*.yaml") if p.stem != "base")
EXPERIMENTS = sorted(p.stem for p in CONFIGS.glob("experiment/*.yaml"))


def targets(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "_target_":
                yield value
            yield from targets(value)
    elif isinstance(node, list):
        for value in node:
            yield from targets(value)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(CONFIGS)))
def test_targets_are_trusted(path: Path) -> None:
    found = list(targets(OmegaConf.to_container(OmegaConf.load(path))))
    assert [name for name in found if not name.startswith(TRUSTED)] == []


@pytest.mark.parametrize("model", [m for m in MODELS if m.startswith("yolo")])
def test_model_config_gives_the_bare_module(model: str) -> None:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", [f"model={model}", "model.num_classes=5", "model.width=0.125"])
    detector = instantiate(cfg.model, _convert_="all")
    assert isinstance(detector, Detector)
    assert detector.num_classes == 5
    detector.check_size(*cfg.preprocess.size)


@pytest.mark.parametrize("model", [m for m in MODELS if m != "darknet"])
def test_what_a_model_chooses_for_training_does_not_disturb_anchors(model: str) -> None:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        assert compose("anchors", [f"model={model}", "model.num_classes=5"]).model.num_classes == 5


@pytest.mark.parametrize(
    "choice", ["optimizer=sgd", "schedule=steps", "schedule=constant", "experiment=demo"]
)
def test_the_command_line_chooses_before_the_model(choice: str) -> None:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", ["model=yolov3", choice])
        assert cfg.model._target_ == "yolo.models.yolov3"
        make = instantiate(cfg.optimizer)
        optimizer = make([torch.nn.Parameter(torch.zeros(1))])
        instantiate(cfg.schedule)(optimizer, total_steps=10)
    memory = optimizer.defaults["betas"][1] if "betas" in optimizer.defaults else None
    assert memory == (None if choice == "optimizer=sgd" else 0.99)  # the model's own, AdamW's is 0.999


@pytest.mark.parametrize("model", [m for m in MODELS if not m.startswith("yolo") and m != "darknet"])
def test_model_config_composes_and_is_trusted(model: str) -> None:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", [f"model={model}", "model.num_classes=5"])
    check_targets(cfg)
    assert cfg.model.num_classes == 5
    assert cfg.loss.variant == "modern"


@pytest.mark.parametrize("data", DATA)
def test_data_config_composes(data: str) -> None:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", [f"data={data}", "data.num_classes=3", "data.root=somewhere"])
        parts = instantiate(cfg.data, _convert_="all")
    assert callable(parts["train"])
    assert cfg.model.num_classes == 3


@pytest.mark.parametrize("augment", ["light", "standard", "mosaic", "pixels", "classify"])
def test_mirrors_are_those_that_the_data_allow(augment: str) -> None:
    allowed = {"digits": (0.0, 0.0), "cards": (0.0, 0.0), "bccd": (0.5, 0.5), "chess": (0.5, 0.0)}
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        for data, wanted in allowed.items():
            cfg = compose("train", [f"data={data}", f"augment={augment}"])
            assert (cfg.augment.flip, cfg.augment.flip_vertical) == wanted


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment_composes(experiment: str) -> None:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", [f"experiment={experiment}"])
    assert "experiment" not in cfg
    instantiate(cfg.optimizer, _convert_="all")
    instantiate(cfg.schedule, _convert_="all")


def test_a_model_brings_what_its_generation_needs_and_the_command_line_still_wins() -> None:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        usual, first, told = (
            compose("train", overrides)
            for overrides in ([], ["model=yolov1"], ["model=yolov1", "optimizer.lr=5.0e-4"])
        )
    assert first.preprocess.size == [448, 448]
    assert [cfg.optimizer.lr for cfg in (usual, first, told)] == [2e-3, 1e-4, 5e-4]


def test_a_group_within_a_group_is_known_and_a_slip_names_the_nearest() -> None:
    check("train", ["model=torchvision/fasterrcnn", "model.backbone=resnet18"])
    with pytest.raises(ValueError, match="nearest is 'model=torchvision/fasterrcnn'"):
        check("train", ["model=torchvision/fastrcnn"])
