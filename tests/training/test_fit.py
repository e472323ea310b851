"""Real training on a few digit scenes: it learns, resumes exactly, and its checkpoint scores as the run did."""

import functools
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

from tests.training.running import Stop, fit
from yolo.checkpoint import load_model
from yolo.data import DetectionDataset, Draw, Item
from yolo.evaluate import evaluate
from yolo.models import yolov1_tiny, yolov2_tiny
from yolo.ops import vary_colour
from yolo.training import FreezeBackbone, freeze
from yolo.types import Batch


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("digits")


def weights(path: Path) -> dict[str, torch.Tensor]:
    content = torch.load(path, weights_only=True)
    return {**content["state_dict"], **{f"raw.{k}": v for k, v in content["raw_state_dict"].items()}}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


@pytest.mark.parametrize("workers", [0, 1])
def test_resumed_equals_uninterrupted_bit_for_bit(tmp_path: Path, scenes: Path, workers: int) -> None:
    """Weights, average, optimiser, schedule, order, augmentation and sizes: 4 epochs at once, or 2 and then 2."""
    fit(tmp_path / "whole", scenes, epochs=4, workers=workers)

    class Leave(pl.Callback):
        def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
            if trainer.current_epoch == 2:
                raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(tmp_path / "parts", scenes, epochs=4, workers=workers, extra=(Leave(),))
    fit(tmp_path / "parts", scenes, epochs=4, workers=workers, resume=tmp_path / "parts" / "last.ckpt")

    whole, parts = (torch.load(tmp_path / n / "last.ckpt", weights_only=True) for n in ("whole", "parts"))
    assert whole["global_step"] == parts["global_step"] == 12
    assert same(weights(tmp_path / "whole" / "last.ckpt"), weights(tmp_path / "parts" / "last.ckpt"))
    assert whole["lr_schedulers"] == parts["lr_schedulers"]
    assert whole["ema_steps"] == parts["ema_steps"]
    momenta = [
        [s["momentum_buffer"] for s in c["optimizer_states"][0]["state"].values()] for c in (whole, parts)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*momenta, strict=True))


def test_dropout_resumes_too(tmp_path: Path, scenes: Path) -> None:
    make = functools.partial(yolov1_tiny, num_classes=10, width=0.125, image_size=128)
    fit(tmp_path / "whole", scenes, epochs=2, detector=make)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(tmp_path / "parts", scenes, epochs=2, detector=make, extra=(Stop(1, 1),))
    fit(tmp_path / "parts", scenes, epochs=2, detector=make, resume=tmp_path / "parts" / "last.ckpt")
    assert same(weights(tmp_path / "whole" / "last.ckpt"), weights(tmp_path / "parts" / "last.ckpt"))


def test_another_seed_trains_another_network(tmp_path: Path, scenes: Path) -> None:
    fit(tmp_path / "a", scenes, epochs=1)
    fit(tmp_path / "b", scenes, epochs=1, seed=1)
    fit(tmp_path / "c", scenes, epochs=1)
    assert same(weights(tmp_path / "a" / "last.ckpt"), weights(tmp_path / "c" / "last.ckpt"))
    assert not same(weights(tmp_path / "a" / "last.ckpt"), weights(tmp_path / "b" / "last.ckpt"))


def test_the_checkpoint_is_the_average_and_scores_as_the_run_did(tmp_path: Path, scenes: Path) -> None:
    module, trainer = fit(tmp_path, scenes, epochs=3)
    last = torch.load(tmp_path / "last.ckpt", weights_only=True)
    raw, average = last["raw_state_dict"], last["state_dict"]
    assert any(not torch.equal(raw[k], average[k]) for k in raw if raw[k].is_floating_point())
    assert all(torch.equal(raw[k], v) for k, v in module.state_dict().items())

    model = load_model(tmp_path / "last.ckpt")
    annotated = trainer.datamodule.annotated("val")
    scored = {
        "score_threshold": 0.005,
        "nms": 0.45,
        "kept": 300,
        "batch_size": 3,
        "workers": 0,
        "device": "cpu",
    }
    report, _, _ = evaluate(model, annotated, **scored)
    assert report["map50"] == pytest.approx(float(trainer.callback_metrics["val/map50"]), abs=1e-6)


def test_the_best_checkpoint_is_the_average_of_its_epoch(tmp_path: Path, scenes: Path) -> None:
    """After one epoch best and last are the same weights, and they are the average, not the raw ones."""
    fit(tmp_path, scenes, epochs=1)
    best, last = (torch.load(tmp_path / name, weights_only=True) for name in ("best.ckpt", "last.ckpt"))
    assert same(best["state_dict"], last["state_dict"])
    assert not same(best["state_dict"], last["raw_state_dict"])
    assert best.keys() == {"yolo", "state_dict", "epoch", "score"}


class Validated(pl.Callback):
    """Keeps the weights that each validation scored."""

    def __init__(self) -> None:
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        for part in module.parameters() if trainer.state.fn == "validate" else ():
            part.data = part.data.clone()  # what leaving the GPU does between two runs

    def on_validation_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.weights.append({k: v.clone() for k, v in module.state_dict().items()})


def test_every_validation_scores_the_average_and_leaves_the_weights(tmp_path: Path, scenes: Path) -> None:
    """In a run and after it, when the tensors that training held have moved."""
    validated = Validated()
    module, trainer = fit(tmp_path, scenes, epochs=2, extra=(validated,))
    last = torch.load(tmp_path / "last.ckpt", weights_only=True)
    trainer.validate(module, datamodule=trainer.datamodule, verbose=False)
    assert len(validated.weights) == 3
    assert all(same(last["state_dict"], scored) for scored in validated.weights[1:])
    assert same(last["raw_state_dict"], module.state_dict())


def test_accumulation_steps_less_often(tmp_path: Path, scenes: Path) -> None:
    _, trainer = fit(tmp_path, scenes, epochs=2, accumulate=3)
    assert trainer.global_step == 2
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["ema_steps"] == 2


def test_resume_of_a_finished_run_has_nothing_to_do(tmp_path: Path, scenes: Path) -> None:
    fit(tmp_path, scenes, epochs=1)
    before = weights(tmp_path / "last.ckpt")
    _, trainer = fit(tmp_path, scenes, epochs=1, resume=tmp_path / "last.ckpt")
    assert trainer.global_step == 3
    assert same(before, weights(tmp_path / "last.ckpt"))


def test_a_frozen_backbone_does_not_move_at_all(tmp_path: Path, scenes: Path) -> None:
    kept = {}

    def make():
        detector = yolov2_tiny(num_classes=10, width=0.125)
        kept.update({k: v.clone() for k, v in detector.backbone.state_dict().items()})
        kept["frozen"] = freeze(detector, "freeze_backbone")
        return detector

    class Late(FreezeBackbone):
        def __init__(self) -> None:
            pass

        @property
        def frozen(self):
            return kept["frozen"]

    module, _ = fit(tmp_path, scenes, epochs=1, detector=make, extra=(Late(),))
    moved = module.detector.backbone.state_dict()
    assert all(torch.equal(moved[k], v) for k, v in kept.items() if k != "frozen")


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, scenes: Path) -> None:
    fit(tmp_path, scenes, epochs=1)
    with pytest.raises(ValueError, match="the checkpoint was trained with recipe="):
        fit(
            tmp_path,
            scenes,
            epochs=1,
            resume=tmp_path / "last.ckpt",
            detector=lambda: yolov2_tiny(num_classes=10, width=0.25),
        )


class Seen(pl.Callback):
    """Sizes of what the network sees, by epoch."""

    def __init__(self) -> None:
        self.sizes: dict[int, set[tuple[int, int]]] = {}

    def on_train_epoch_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        seen = self.sizes[trainer.current_epoch] = set()
        self.hook = module.detector.register_forward_pre_hook(
            lambda _, given: seen.add(tuple(given[0].shape[-2:]))
        )

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.hook.remove()


def test_the_last_epochs_see_pictures_as_they_will_be_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, draws = Seen(), set()
    give = DetectionDataset.__getitem__

    def noted(dataset: DetectionDataset, draw: int | Draw) -> Item:
        if isinstance(draw, Draw):
            draws.add((draw.epoch, draw.mosaic))
        return give(dataset, draw)

    monkeypatch.setattr(DetectionDataset, "__getitem__", noted)
    fit(tmp_path / "run", tmp_path / "scenes", epochs=10, settle=2, extra=(seen,), counts=(64, 8, 8))
    assert seen.sizes[8] == seen.sizes[9] == {(96, 96)}
    assert len(set.union(*(seen.sizes[epoch] for epoch in range(8)))) > 1
    assert draws == {(epoch, epoch < 8) for epoch in range(10)}


@pytest.mark.parametrize(
    ("accelerator", "precision"), [("cpu", "32-true"), pytest.param("gpu", "16-mixed", marks=pytest.mark.gpu)]
)
def test_clipping_under_a_fused_optimiser_is_clipping(
    tmp_path: Path, scenes: Path, accelerator: str, precision: str
) -> None:
    """Under fp16 a fused optimiser gets gradients that are still scaled; the limit is that of the true norm."""

    def run(limit: float, fused: bool) -> dict[str, torch.Tensor]:
        trainer = {"precision": precision, "gradient_clip_val": limit}
        module, _ = fit(
            tmp_path / f"{limit} {fused}",
            scenes,
            epochs=1,
            fused=fused,
            trainer=trainer,
            accelerator=accelerator,
        )
        return {name: value.cpu() for name, value in module.named_parameters()}

    clipped, free = run(0.5, True), run(1e9, True)
    for name, value in run(0.5, False).items():
        torch.testing.assert_close(
            value, clipped[name], rtol=1e-3, atol=1e-4 if accelerator == "gpu" else 1e-6
        )
    assert any((value - free[name]).abs().max() > 1e-3 for name, value in clipped.items())


class Steps(pl.Callback):
    """The batches that steps get, and their losses."""

    def __init__(self) -> None:
        self.images: list[torch.Tensor] = []
        self.losses: list[tuple[float, int]] = []

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        assert batch.colours is None
        self.images.append(batch.images)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs, batch, batch_idx
    ) -> None:
        self.losses.append((float(outputs["loss"]), len(batch.images)))


def test_steps_get_the_colours_that_were_drawn(tmp_path: Path, scenes: Path) -> None:
    seen = Steps()
    _, trainer = fit(tmp_path, scenes, epochs=1, extra=(seen,))
    loader = trainer.datamodule.train_dataloader()  # type: ignore[attr-defined]
    loader.batch_sampler.sampler.set_epoch(0)
    plain = list(loader)
    assert len(plain) == len(seen.images) == 3
    for batch, images in zip(plain, seen.images, strict=True):
        assert torch.equal(images, vary_colour(batch.images, batch.colours))
        assert not torch.equal(images, batch.images)


def test_the_logged_loss_of_an_epoch_is_the_mean_of_its_batches(tmp_path: Path, scenes: Path) -> None:
    seen = Steps()
    _, trainer = fit(tmp_path, scenes, epochs=2, extra=(seen,))
    last = seen.losses[3:]
    assert len(last) == 3
    logged = trainer.callback_metrics
    assert float(logged["train/loss_epoch"]) == pytest.approx(sum(loss for loss, _ in last) / 3, rel=1e-5)
    parts = sum(float(logged[f"train/{name}_epoch"]) for name in ("box", "objectness", "class"))
    assert parts == pytest.approx(float(logged["train/loss_epoch"]), rel=1e-5)
