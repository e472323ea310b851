"""The running average: how far back it reaches."""

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from yolo.training import Ema


class Counting(pl.LightningModule):
    """A weight that is the number of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.Parameter(torch.zeros(()))

    def training_step(self, batch: Tensor) -> Tensor:
        return -self.steps

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def lag(steps: int, **options: float) -> float:
    """How many steps the average is behind after so many."""
    ema = Ema(**options)
    trainer = pl.Trainer(
        max_steps=steps, accelerator="cpu", callbacks=[ema], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Counting(), DataLoader(torch.zeros(steps), batch_size=1))
    return steps - float(ema.average["steps"])


@pytest.mark.parametrize(("steps", "share"), [(60, 0.1), (240, 0.1), (240, 0.5)])
def test_it_reaches_back_over_a_share_of_the_steps(steps: int, share: float) -> None:
    """An average a of t with da/dt = (t - a) / (share * t) is t / (1 + share)."""
    assert lag(steps, share=share) == pytest.approx(steps * share / (1 + share), rel=0.1)


def test_but_never_further_than_the_decay() -> None:
    assert lag(300, decay=0.9, share=0.5) == pytest.approx(0.9 / 0.1, rel=0.02)


@pytest.mark.parametrize("options", [{"decay": 1.0}, {"share": 0.0}, {"share": 1.5}])
def test_what_is_no_average_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"the average needs 0 <= decay < 1 and 0 < share <= 1, got decay="):
        Ema(**options)
