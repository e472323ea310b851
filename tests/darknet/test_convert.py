import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import cv2
import numpy as np
import pytest
import torch

from tests.darknet.golden import models as golden_models
from tests.darknet.golden import picture, set_epsilon
from tests.helpers.paths import shared
from yolo import models
from yolo.checkpoint import ClassifierModel, Model, load_any, load_model, save_model
from yolo.darknet import (
    CfgDetector,
    Header,
    build_cfg,
    cfg_text,
    change_classes,
    export_network,
    find_cfg,
    load_darknet,
    load_into,
    native_slots,
    parse_cfg,
    plan,
    read_cfg,
    read_header,
    save_weights,
    slots_of,
    with_classes,
)
from yolo.darknet.convert import parse_names
from yolo.darknet.template import LAYOUTS
from yolo.data import Preprocess
from yolo.models.build import CLASSIFIERS, DETECTORS
from yolo.models.classifier import Classifier
from yolo.models.detector import Detector
from yolo.ops.decode import decode

Network = TypeVar("Network", Detector, Classifier)
PUBLISHED = {name: name.replace("_", "-") for name in LAYOUTS} | {"cspdarknet53": "csdarknet53-omega"}
BUILD: dict[str, Callable[..., Detector | Classifier]] = {**DETECTORS, **CLASSIFIERS}


def tiny() -> Path:
    return shared("weights", "yolov3-tiny", "yolov3-tiny.weights")


def random_statistics(detector: Network) -> Network:
    """Batch norms as after training, so that a mixed-up array shows."""
    torch.manual_seed(1)
    for key, value in detector.state_dict().items():
        if key.endswith("running_var"):
            value.uniform_(0.5, 2.0)
        elif key.endswith(("running_mean", "norm.weight", "norm.bias")):
            value.normal_(0.5, 0.3)
    return detector.eval()


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_written_cfg_is_the_published_network(name: str) -> None:
    fact = json.loads(shared("darknet", "facts.json").read_text())[PUBLISHED[name]]
    with torch.device("meta"):
        network = BUILD[name]()
    layers = plan(parse_cfg(cfg_text(network, (fact["input"][1], fact["input"][2])))).layers
    assert [(layer.kind, list(layer.shape), layer.floats) for layer in layers] == [
        (layer["type"], layer["out"], layer["floats"]) for layer in fact["layers"]
    ]
    assert [layer.sources for layer in layers if layer.kind == "route"] == [
        tuple(layer["layers"]) for layer in fact["layers"] if layer["type"] == "route"
    ]


@pytest.mark.parametrize("name", DETECTORS)
def test_native_and_cfg_built_networks_agree(name: str, tmp_path: Path) -> None:
    detector = random_statistics(DETECTORS[name](num_classes=3, width=0.125))
    size = detector.fixed_size or (96, 64)
    export_network(detector, ["a", "b", "c"], tmp_path, "x", size)
    back, classes = load_darknet(tmp_path / "x.weights")
    assert classes == ["a", "b", "c"]
    assert back.specs == detector.specs
    assert back.generation == detector.generation
    assert back.input_size == size
    image = torch.rand(1, 3, *size)
    with torch.inference_mode():
        for ours, theirs in zip(detector(image), back.eval()(image), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_native_and_cfg_built_classifiers_agree(name: str, tmp_path: Path) -> None:
    classifier = CLASSIFIERS[name](num_classes=3, width=0.125)
    random_statistics(classifier)
    _, weights, _ = export_network(classifier, ["a", "b", "c"], tmp_path, "x", (64, 64))
    model = load_any(weights)
    assert isinstance(model, ClassifierModel)
    assert model.classes == ["a", "b", "c"]
    assert model.preprocess == Preprocess((64, 64), "cover", interpolation="darknet")
    image = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(
        classifier.probabilities(image), model.classifier.probabilities(image), rtol=1e-4, atol=1e-5
    )
    again = CLASSIFIERS[name](num_classes=3, width=0.125)
    load_into(again, weights)
    assert all(
        torch.equal(a, b)
        for key, a in classifier.state_dict().items()
        for b in [again.state_dict()[key]]
        if "num_batches" not in key
    )


def test_the_other_reorg_is_written_as_such(tmp_path: Path) -> None:
    detector = random_statistics(models.yolov2(num_classes=2, width=0.125, reorg="space_to_depth"))
    export_network(detector, ["a", "b"], tmp_path, "x", (64, 64))
    back, _ = load_darknet(tmp_path / "x.weights")
    image = torch.rand(1, 3, 64, 64)
    torch.testing.assert_close(detector(image), back.eval()(image), rtol=1e-5, atol=1e-5)


def test_published_weights_load_into_the_native_network() -> None:
    native, (built, classes) = models.yolov3_tiny().eval(), load_darknet(tiny())
    assert load_into(native, tiny()) == Header(0, 2, 0, 32013312)
    assert classes[:2] == ["person", "bicycle"]
    image = picture(shared("golden", "inputs", "dog_416x416.png"))
    with torch.inference_mode():
        for ours, theirs in zip(native(image), built.eval()(image), strict=True):
            assert torch.equal(ours, theirs)


def test_weights_of_another_network_leave_the_native_one_alone() -> None:
    native = models.yolov4_tiny()
    before = {key: value.clone() for key, value in native.state_dict().items()}
    with pytest.raises(ValueError, match=r"yolov3-tiny.weights: .* floats left over after the last layer"):
        load_into(native, tiny())
    assert all(torch.equal(before[key], value) for key, value in native.state_dict().items())


def test_every_real_model_comes_back_byte_for_byte(tmp_path: Path) -> None:
    root = shared("weights")
    files = sorted(root.rglob("*.weights"))
    assert len(files) == 17
    for path in files:
        detector, classes = load_darknet(path)
        cfg, weights, names = export_network(detector, classes, tmp_path, path.stem)
        assert cfg.read_bytes() == find_cfg(path).read_bytes()
        assert weights.read_bytes() == path.read_bytes()
        assert names.read_bytes().decode().split("\n")[:-1] == classes


def test_names_and_oddities_survive_a_checkpoint(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    text = "\ufeff# M\u00e4use\r\n" + cfg_text(
        models.yolov3_tiny(num_classes=2, width=0.125), (64, 64)
    ).replace("\n", "\r\n")
    (source / "m.cfg").write_bytes(text.encode() + b"# \xff\xfe\r\n")
    (source / "m.names").write_bytes(b"mouse\r\nrat\r\n\r\n")
    random = random_statistics(models.yolov3_tiny(num_classes=2, width=0.125))
    save_weights(native_slots(random), source / "m.weights", Header(0, 1, 0, 640))
    detector, classes = load_darknet(source / "m.weights")
    assert classes == ["mouse", "rat"]
    save_model(Model(detector, classes, Preprocess((64, 64))), tmp_path / "m.ckpt")
    model = load_model(tmp_path / "m.ckpt")
    assert isinstance(model.detector, CfgDetector)
    for path in export_network(model.detector, model.classes, tmp_path / "out", "m"):
        assert path.read_bytes() == (source / path.name).read_bytes()
    other = export_network(model.detector, ["house mouse", "rat"], tmp_path / "out", "m")[2]
    assert other.read_bytes() == b"house mouse\nrat\n"


def test_a_model_changed_here_comes_back_the_same_after_another_round(tmp_path: Path) -> None:
    detector, _ = load_darknet(tiny())
    changed = change_classes(detector, 3)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=1e-3)
    first = export_network(changed, ["a", "b", "c"], tmp_path / "1", "x", header=changed.header.after(1000))
    assert read_header(first[1]) == Header(0, 2, 0, 32014312)
    again, classes = load_darknet(first[1])
    second = export_network(again, classes, tmp_path / "2", "x")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_another_number_of_classes_changes_four_rows_and_keeps_the_rest() -> None:
    detector, _ = load_darknet(tiny())
    text = detector.plan.cfg.text
    changed = with_classes(text, 3)
    rows = [(a, b) for a, b in zip(text.splitlines(), changed.splitlines(), strict=True) if a != b]
    assert rows == [("filters=255", "filters=24"), ("classes=80", "classes=3")] * 2
    assert with_classes(text, 80) == text
    assert with_classes(changed, 80) == text
    network = change_classes(detector, 3)
    for old, new in zip(detector.slots, network.slots, strict=True):
        equal = all(
            torch.equal(a, b) for a, b in zip(old.tensors, new.tensors, strict=True) if a.shape == b.shape
        )
        assert equal
    pairs = zip(network.slots, detector.slots, strict=True)
    assert [slot.layer for slot, old in pairs if slot.floats != old.floats] == [15, 22]


@pytest.mark.parametrize(
    ("name", "classes", "changed"),
    [
        ("pjreddie/cfg/yolov1-tiny.cfg", 3, 7 * 7 * (5 * 2 + 3)),
        ("pjreddie/cfg/yolov2.cfg", 1, 5 * 6),
        ("alexeyab/cfg/yolov4.cfg", 7, 3 * 12),
        ("alexeyab/cfg/enet-coco.cfg", 2, None),
    ],
)
def test_classes_change_in_every_kind_of_head(name: str, classes: int, changed: int | None) -> None:
    text = with_classes(read_cfg(shared("darknet", *name.split("/"))), classes)
    with torch.device("meta"):
        detector = build_cfg(text)
    assert detector.num_classes == classes
    if changed is not None:
        assert {p.weight.shape[0] for p in detector.predictors} == {changed}
    assert "counters_per_class" not in "".join(map(str, detector.loss_options))


def test_a_cfg_is_found_by_the_stem(tmp_path: Path) -> None:
    (tmp_path / "net.cfg").touch()
    for name in ("net.weights", "net_final.weights", "net_best.weights", "net_10000.weights"):
        assert find_cfg(tmp_path / name) == tmp_path / "net.cfg"
    with pytest.raises(ValueError, match=r"other.weights: no other.cfg beside it, name the cfg with cfg="):
        find_cfg(tmp_path / "other.weights")


def test_names_end_with_the_last_name() -> None:
    assert parse_names("a\n\nb c\r\n\n\n") == ["a", "", "b c"]


def test_names_that_do_not_fit_are_not_exported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 names were given for 3 classes"):
        export_network(models.yolov3_tiny(num_classes=3, width=0.125), ["a", "b"], tmp_path / "x", "x")
    assert not (tmp_path / "x").exists()


def opencv_heads(cfg: Path, weights: Path, image: np.ndarray, names: list[str]) -> list[np.ndarray]:
    net = cv2.dnn.readNetFromDarknet(str(cfg), str(weights))
    net.setInput(cv2.dnn.blobFromImage(image, 1 / 255, swapRB=False))
    return net.forward(names)


@pytest.mark.parametrize(
    "name", ["yolov2", "yolov2_tiny", "yolov3", "yolov3_spp", "yolov3_tiny", "yolov4", "yolov4_tiny"]
)
def test_opencv_reads_what_was_trained_here(name: str, tmp_path: Path) -> None:
    detector = random_statistics(DETECTORS[name](num_classes=3, width=0.125))
    cfg, weights, _ = export_network(detector, ["a", "b", "c"], tmp_path, name, (64, 96))
    set_epsilon(detector, 1e-6)
    image = np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)
    heads = [layer for layer in plan(parse_cfg(cfg.read_text())).layers if layer.spec is not None]
    wanted = opencv_heads(cfg, weights, image, [f"conv_{head.index - 1}" for head in heads])
    with torch.inference_mode():
        found = detector(torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, 1e-3, 1e-3)


def test_a_fine_tuned_import_gives_opencv_the_same_detections(tmp_path: Path) -> None:
    detector, classes = load_darknet(tiny())
    with torch.no_grad():
        for predictor in detector.predictors:
            predictor.bias.add_(torch.randn_like(predictor.bias), alpha=0.01)
    cfg, weights, _ = export_network(detector.eval(), classes, tmp_path, "x")
    image = cv2.imread(str(shared("golden", "inputs", "dog_416x416.png")))[..., ::-1].copy()
    net = cv2.dnn.readNetFromDarknet(str(cfg), str(weights))
    net.setInput(cv2.dnn.blobFromImage(image, 1 / 255))
    rows = np.concatenate(net.forward(net.getUnconnectedOutLayersNames()))
    with torch.inference_mode():
        boxes, scores = decode(
            detector(torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255), detector.specs
        )
    theirs = rows[rows[:, 5:].max(1) > 0.25]
    ours = torch.cat([boxes[0], scores[0]], 1)[scores[0].max(1).values > 0.25].numpy()
    assert len(ours) == len(theirs) > 3
    ours = ours[np.argsort(ours[:, 4:].max(1))]
    theirs = theirs[np.argsort(theirs[:, 5:].max(1))]
    assert (ours[:, 4:].argmax(1) == theirs[:, 5:].argmax(1)).all()
    np.testing.assert_allclose(ours[:, 4:].max(1), theirs[:, 5:].max(1), atol=5e-3)
    centre = (ours[:, :2] + ours[:, 2:4]) / 2
    np.testing.assert_allclose(centre, theirs[:, :2] * 416, atol=1)
    np.testing.assert_allclose(ours[:, 2:4] - ours[:, :2], theirs[:, 2:4] * 416, atol=1)


def test_golden_models_are_found_with_their_names(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    for about in golden_models().values():
        detector, classes = load_darknet(shared(*about["weights"].split("/")))
        assert len(classes) == detector.num_classes
        assert len(slots_of(detector)) == len(detector.slots)
