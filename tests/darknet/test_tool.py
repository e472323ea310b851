"""tools/darknet.py from the command line."""

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from tests.helpers.paths import shared
from yolo.checkpoint import load_model
from yolo.darknet import build_classifier, save_weights

TOOL = Path(__file__).parents[2] / "tools" / "darknet.py"
CLASSIFIER = """[net]
width=8
height=8
[convolutional]
filters=2
size=1
activation=linear
[avgpool]
[softmax]
"""


def run(folder: Path, *arguments: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, str(TOOL), *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_in_and_out_again_byte_for_byte(tmp_path: Path) -> None:
    cfg = shared("weights", "yoloface", "yoloface-50k", "yoloface-50k.cfg")
    weights = cfg.with_suffix(".weights")
    assert "1 classes" in run(tmp_path, "import", f"cfg={cfg}", f"weights={weights}", "output=a/face.ckpt")
    assert load_model(tmp_path / "a" / "face.ckpt").classes == ["Face"]
    run(tmp_path, "export", "weights=a/face.ckpt", "output=out", "stem=yoloface-50k")
    for path in (cfg, weights, cfg.with_name("label.names")):
        name = "yoloface-50k.names" if path.suffix == ".names" else path.name
        assert (tmp_path / "out" / name).read_bytes() == path.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "out"]
    said = run(tmp_path, "info", f"cfg={cfg}", f"weights={weights}").splitlines()
    assert said[1].split()[:4] == ["0", "conv", "8", "3x3/2"]
    assert (
        said[-1]
        == "yoloface-50k.weights: version 0.2.5, 504,704 images seen, 11,248 floats as the cfg needs them"
    )


def test_what_is_wrong_is_said_in_one_line(tmp_path: Path) -> None:
    cfg = shared("cases", "inputs", "W04", "one.cfg")
    short = cfg.with_name("short1.weights")
    said = run(tmp_path, "info", f"cfg={cfg}", f"weights={short}", status=1)
    assert said.splitlines()[-1].endswith("layer 0 [convolutional] needs 10 floats, 9 left: 1 are missing")
    assert run(tmp_path, "export", "output=x", status=1) == "darknet.py: export needs weights=...\n"
    assert "no option 'weigths'; the nearest is 'weights'" in run(tmp_path, "info", "weigths=1", status=2)


def test_a_classifier_comes_in_names_pictures_and_goes_out(tmp_path: Path) -> None:
    network = build_classifier(CLASSIFIER)
    bias, weight = network.slots[0].tensors
    with torch.no_grad():
        bias.zero_()
        weight.zero_()
        weight[1, 0] = 4.0  # red
    (tmp_path / "c.cfg").write_text(CLASSIFIER)
    (tmp_path / "c.names").write_text("grey\nred\n")
    save_weights(network.slots, tmp_path / "c.weights")
    cv2.imwrite(str(tmp_path / "p.png"), np.full((20, 30, 3), (0, 0, 255), np.uint8))
    run(tmp_path, "import", "weights=c.weights", "output=c.ckpt")
    predict = TOOL.with_name("predict.py")
    for weights in ("c.weights", "c.ckpt"):
        done = subprocess.run(
            [sys.executable, str(predict), f"weights={weights}", "source=p.png", "name=p", "device=cpu"],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.splitlines()[-1] == "p.png: red 98.2%, grey 1.8%"
    (row,) = json.loads((tmp_path / "runs" / "predict" / "p" / "classes.json").read_text())
    assert row["source"] == "p.png"
    assert [one["name"] for one in row["classes"]] == ["red", "grey"]
    run(tmp_path, "export", "weights=c.ckpt", "output=out", "stem=c")
    for ending in ("cfg", "weights", "names"):
        assert (tmp_path / "out" / f"c.{ending}").read_bytes() == (tmp_path / f"c.{ending}").read_bytes()
    run(tmp_path, "import", "weights=c.weights", "num_classes=5", "output=five.ckpt")
    with pytest.raises(ValueError, match=r"five\.ckpt: a classifier, not a detector"):
        load_model(tmp_path / "five.ckpt")


@pytest.mark.slow
def test_a_cfg_trains_and_comes_back(tmp_path: Path) -> None:
    """model=darknet with foreign weights and another number of classes, frozen, then exported."""
    cfg = shared("weights", "yolo-fastest", "yolo-fastest-1.1_coco", "yolo-fastest-1.1.cfg")
    options = [
        *(
            "model=darknet",
            "loss=darknet",
            "transfer=freeze_backbone",
            "data=digits",
            "multiscale=null",
            "name=t",
        ),
        *(f"cfg={cfg}", f"weights={cfg.with_suffix('.weights')}", "preprocess.size=[128,128]"),
        *("data.batch_size=2", "data.workers=0", "trainer.max_epochs=1", "trainer.accelerator=cpu"),
        *("+trainer.limit_train_batches=2", "+trainer.limit_val_batches=1"),
    ]
    done = subprocess.run(
        [sys.executable, str(TOOL.with_name("train.py")), *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    run(tmp_path, "export", "weights=runs/train/t/last.ckpt", "output=out", "stem=digits")
    model = load_model(tmp_path / "out" / "digits.weights")
    assert model.detector.num_classes == 10
    before = load_model(cfg.with_suffix(".weights")).detector
    ours, theirs = model.detector.backbone.state_dict(), before.backbone.state_dict()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs if "num_batches" not in key)
