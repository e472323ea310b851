"""yolov3-tiny fine-tuned on blood cells, given back to Darknet's format and read by OpenCV."""

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from tests.darknet.golden import set_epsilon
from tests.helpers.paths import shared
from yolo.checkpoint import load_model
from yolo.darknet import CfgDetector
from yolo.data import Preprocess, load_image
from yolo.ops.decode import decode

TOOLS = Path(__file__).parents[2] / "tools"
CLASSES = ["Platelets", "RBC", "WBC"]


def run(tool: str, folder: Path, *arguments: str) -> None:
    command = [sys.executable, str(TOOLS / tool), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("transfer", ["freeze_backbone", "finetune"])
def test_fine_tuned_here_read_by_opencv(transfer: str, tmp_path: Path) -> None:
    cfg = shared("weights", "yolov3-tiny", "yolov3-tiny.cfg")
    run(
        "train.py", tmp_path, "model=darknet", "loss=darknet", "data=bccd", "augment=none", "multiscale=null",
        f"cfg={cfg}", f"weights={cfg.with_suffix('.weights')}", f"transfer={transfer}", "name=t",
        "preprocess.size=[160,160]", "data.batch_size=4", "data.workers=0", "data.cache=none",
        "optimizer.lr=0.003", "schedule.warmup_steps=1", "callbacks.ema=null",
        "trainer.max_epochs=1", "trainer.accelerator=cpu",
        "+trainer.limit_train_batches=24", "+trainer.limit_val_batches=1",
    )  # fmt: skip
    for weights, folder in (("runs/train/t/last.ckpt", "out"), ("out/cells.weights", "again")):
        run("darknet.py", tmp_path, "export", f"weights={weights}", f"output={folder}", "stem=cells")
    files = [tmp_path / "out" / f"cells.{ending}" for ending in ("cfg", "weights", "names")]
    assert all(path.read_bytes() == (tmp_path / "again" / path.name).read_bytes() for path in files)
    assert files[2].read_text().split() == CLASSES

    detector = load_model(files[1]).detector.eval()
    before = load_model(cfg.with_suffix(".weights")).detector
    changed = [
        not torch.equal(ours, theirs)
        for ours, theirs in zip(detector.backbone.parameters(), before.backbone.parameters(), strict=True)
    ]
    assert not any(changed) if transfer == "freeze_backbone" else all(changed)

    assert isinstance(detector, CfgDetector)
    set_epsilon(detector, 1e-6)  # OpenCV's
    picture = load_image(shared("data", "bccd", "JPEGImages", "BloodImage_00007.jpg"))
    canvas, _ = Preprocess(detector.input_size, "stretch")(picture)
    with torch.inference_mode():
        outputs = detector(torch.from_numpy(canvas).permute(2, 0, 1)[None].float() / 255)
        boxes, scores = (values[0].numpy() for values in decode(outputs, detector.specs))
    net = cv2.dnn.readNetFromDarknet(str(files[0]), str(files[1]))
    net.setInput(cv2.dnn.blobFromImage(canvas, 1 / 255))
    rows = np.concatenate(net.forward(net.getUnconnectedOutLayersNames()))

    side = np.array(detector.input_size[::-1] * 2)
    sure = rows[:, 5:].max(axis=1) > 0.25  # OpenCV's heads give 0 for what is below a threshold of their own
    assert sure.sum() >= 3, f"the best scores {scores.max():.3f}: nothing to compare"
    assert sure.sum() == (scores.max(axis=1) > 0.25).sum()
    centre, size = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    ours = np.concatenate([centre, size], axis=1)
    for row in rows[sure]:
        apart = np.abs(ours - row[:4] * side).max(axis=1)
        found = apart.argmin()
        assert apart[found] < 0.2
        assert scores[found].argmax() == row[5:].argmax()
        assert scores[found].max() == pytest.approx(row[5:].max(), abs=2e-3)
