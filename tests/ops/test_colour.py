"""Colour: against Python's own HSV and Darknet's distort_image; kernels and reference agree bit for bit."""

import colorsys
import re

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers.paths import shared
from tests.ops.scenes import DEVICES, require_kernel
from yolo.ops import vary_colour
from yolo.ops.colour import vary_colour_reference

LAYOUTS = {
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "contiguous": lambda x: x.contiguous(),
    "rows_apart": lambda x: torch.cat((x, x), dim=3)[..., : x.shape[3]],
    "every_other_picture": lambda x: torch.stack((x, x), dim=1).flatten(0, 1)[::2],
}


def pictures(n: int, height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(n * height + width)
    images = torch.randint(0, 256, (n, 3, height, width), generator=generator, dtype=torch.uint8)
    images[:, :, 0] = images[:, :1, 0]  # grey
    images[:, :, -1, 0] = 0
    return images


def colours_of(n: int) -> Tensor:
    rows = [[0.1, 0.8, 1.2], [-0.015, 1.7, 0.7], [0.5, 3.0, 1.4], [0.0, 1.0, 1.0], [-0.5, 0.0, 0.0]]
    return torch.tensor(rows).repeat(-(-n // len(rows)), 1)[:n]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(5, 17, 23), (1, 1, 1), (2, 1, 300), (3, 257, 1), (0, 4, 4), (2, 0, 4)])
def test_kernel_is_the_reference(shape: tuple[int, int, int], layout: str, device: str) -> None:
    require_kernel("vary_colour", device)
    if 0 in shape and layout != "contiguous":
        pytest.skip("nothing has no layout")
    images = LAYOUTS[layout](
        pictures(*shape) if 0 not in shape else torch.zeros(shape[0], 3, *shape[1:]).byte()
    )
    colours = colours_of(shape[0])
    wanted = vary_colour_reference(images, colours)
    result = vary_colour(images.to(device), colours.to(device))
    assert result.dtype == torch.uint8
    assert torch.equal(result.cpu(), wanted)
    if layout in ("channels_last", "contiguous"):
        assert result.stride() == images.stride()


@pytest.mark.parametrize("device", DEVICES)
def test_a_whole_batch(device: str) -> None:
    require_kernel("vary_colour", device)
    images = LAYOUTS["channels_last"](pictures(16, 320, 416))
    colours = colours_of(16)
    assert torch.equal(
        vary_colour(images.to(device), colours.to(device)).cpu(), vary_colour_reference(images, colours)
    )


def test_colour_is_hsv() -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (400, 3), np.uint8)
    result = vary_colour(torch.from_numpy(image).t().reshape(1, 3, 1, 400), torch.tensor([[0.1, 0.8, 1.2]]))
    for before, after in zip(image, result[0, :, 0].t().numpy().astype(float), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*(before / 255))
        wanted = colorsys.hsv_to_rgb((hue + 0.1) % 1, min(saturation * 0.8, 1), min(value * 1.2, 1))
        assert np.abs(after - np.array(wanted) * 255).max() <= 0.501


@pytest.mark.parametrize("number", [1, 2, 3])
def test_colour_is_darknets(number: int) -> None:
    """Within 8 bits; case 0 pushes saturation over 1, where Darknet goes on and 8 bits stop."""
    golden = np.load(shared("golden", "layers", "images_resize_letterbox_distort_crop_place.npz"))
    image = torch.from_numpy(np.rint(golden["image"] * 255).astype(np.uint8))[None]
    colours = torch.tensor(golden[f"distort_{number}_args"], dtype=torch.float32)[None]
    result = vary_colour(image, colours)[0].numpy() / 255
    assert np.abs(result - golden[f"distort_{number}"]).max() < 0.006


def test_nothing_changes_nothing() -> None:
    images = pictures(2, 64, 64)
    assert torch.equal(vary_colour(images, torch.tensor([[0.0, 1.0, 1.0]] * 2)), images)
    assert torch.equal(vary_colour(images, torch.tensor([[1.0, 1.0, 1.0]] * 2)), images)


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device: str) -> None:
    require_kernel("vary_colour", device)
    images, colours = LAYOUTS["channels_last"](pictures(2, 5, 7)).to(device), colours_of(2).to(device)
    torch.library.opcheck(torch.ops.yolo.vary_colour.default, (images, colours))


@pytest.mark.parametrize(
    ("images", "colours", "message"),
    [
        (
            torch.zeros(3, 4, 4).byte(),
            torch.ones(1, 3),
            "images must be uint8 [N, 3, H, W], got torch.uint8 [3, 4, 4]",
        ),
        (torch.zeros(1, 3, 4, 4), torch.ones(1, 3), "got torch.float32 [1, 3, 4, 4]"),
        (
            torch.zeros(2, 3, 4, 4).byte(),
            torch.ones(1, 3),
            "colours must be float32 [2, 3], got torch.float32 [1, 3]",
        ),
        (torch.zeros(1, 3, 4, 4).byte(), torch.ones(1, 3).double(), "got torch.float64 [1, 3]"),
        (
            torch.zeros(1, 3, 4, 4).byte(),
            torch.ones(1, 3, device="meta"),
            "colours must be on cpu like images, got meta",
        ),
    ],
)
def test_wrong_arguments(images: Tensor, colours: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        vary_colour(images, colours)
    with pytest.raises((ValueError, RuntimeError)):
        torch.ops.yolo.vary_colour(images, colours)
