"""Every file of configs/model builds the network it is named after."""

from dataclasses import replace
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from yolo.models import Detector, Network, ssd
from yolo.models.build import BASELINES, CLASSIFIERS, DETECTORS

CONFIGS = Path(__file__).parents[2] / "configs" / "model"
ROOT = {"data": {"num_classes": 3}, "preprocess": {"size": [416, 416], "resize": "letterbox"}}


def test_there_is_a_config_per_model() -> None:
    # darknet: any cfg
    assert {path.stem for path in CONFIGS.rglob("*.yaml")} == {
        *DETECTORS,
        *CLASSIFIERS,
        *BASELINES,
        "darknet",
    }


@pytest.mark.parametrize("name", BASELINES)
def test_config_builds_the_bare_baseline(name: str) -> None:
    (path,) = CONFIGS.rglob(f"{name}.yaml")
    small = {"centernet": "resnet18", "ssd": "mobilenet"}.get(name, "resnet18")
    cfg = OmegaConf.merge(ROOT, OmegaConf.load(path), {"model": {"backbone": small}})
    network = instantiate(cfg.model, _convert_="all")
    assert isinstance(network, Network)
    assert network.recipe is not None
    assert network.recipe.name == name
    assert network.num_classes == 3
    assert set(network.recipe.arguments) == set(cfg.model) - {"_target_", "weights"}
    (network if name != "ssd" else ssd(3)).check_size(*cfg.preprocess.size)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_config_builds_the_bare_classifier(name: str) -> None:
    cfg = OmegaConf.merge(ROOT, OmegaConf.load(CONFIGS / f"{name}.yaml"), {"model": {"width": 0.125}})
    classifier = instantiate(cfg.model, _convert_="all")
    assert classifier.recipe.name == name
    assert classifier.num_classes == 3


@pytest.mark.parametrize("name", DETECTORS)
def test_config_builds_the_bare_detector(name: str) -> None:
    cfg = OmegaConf.merge(ROOT, OmegaConf.load(CONFIGS / f"{name}.yaml"), {"model": {"width": 0.25}})
    detector = instantiate(cfg.model, _convert_="all")
    assert isinstance(detector, Detector)
    assert detector.recipe is not None
    assert detector.recipe.name == name
    assert detector.num_classes == 3
    published = DETECTORS[name](num_classes=3, width=0.25).specs
    own = {"xy_scale": cfg.model.xy_scale} if "xy_scale" in cfg.model else {}
    assert detector.specs == tuple(replace(spec, **own) for spec in published)
    detector.check_size(*cfg.preprocess.size)
