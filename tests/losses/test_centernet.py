"""CenterNet's loss: the radius by hand and by its definition, the map around a centre, and what is perfect."""

import itertools

import pytest
import torch

from yolo.losses import CenterNetLoss, build_loss
from yolo.losses.assign import locate, read_objects
from yolo.losses.centernet import gaussian_radius, heat_map
from yolo.models import centernet
from yolo.ops.boxes import iou
from yolo.types import Targets

SIZE = (64, 96)


def targets(*rows: tuple[float, float, float, float, int, int]) -> Targets:
    """Objects as x1, y1, x2, y2, label, image."""
    table = torch.tensor(rows).reshape(-1, 6)
    return Targets(table[:, :4], table[:, 4].long(), table[:, 5].long())


def perfect(given: Targets, images: int, classes: int) -> list[torch.Tensor]:
    """Outputs that say exactly what the objects are."""
    objects = read_objects(given, SIZE, classes)
    cell, within = locate(objects, 4, (16, 24))
    heat = torch.full((images, classes, 16, 24), -20.0)
    offset, extent = torch.zeros(images, 2, 16, 24), torch.zeros(images, 2, 16, 24)
    for index in range(len(cell)):
        col, row = cell[index].tolist()
        image = int(objects.image[index])
        heat[image, int(objects.label[index]), row, col] = 20.0
        offset[image, :, row, col] = within[index]
        extent[image, :, row, col] = objects.size[index] / 4
    return [heat, offset, extent]


def test_radius_by_hand() -> None:
    """A box of 10 x 10 shrunk by r on every side: (10 - 2 r)^2 = 0.3 * 100, so r = (10 - sqrt(30)) / 2 = 2.2614."""
    assert gaussian_radius(torch.tensor([10.0, 10.0]), 0.3).item() == pytest.approx(2.26139, abs=1e-5)
    # at IoU 0.7: shrunk (10 - sqrt(70)) / 2 = 0.8167, moved (20 - sqrt(400 - 400 * 0.3 / 1.7)) / 2 = 0.9252
    assert gaussian_radius(torch.tensor([10.0, 10.0]), 0.7).item() == pytest.approx(0.81670, abs=1e-5)


@pytest.mark.parametrize("overlap", [0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("size", [(10.0, 10.0), (3.0, 17.0), (40.0, 2.0), (0.5, 0.5)])
def test_radius_is_how_far_corners_may_move(size: tuple[float, float], overlap: float) -> None:
    """Of the nine ways in which the corners move by r or stay, the worst has exactly that IoU."""
    radius = gaussian_radius(torch.tensor(size, dtype=torch.float64), overlap)
    box = torch.tensor([0.0, 0.0, *size], dtype=torch.float64)
    moved = [
        box + radius * torch.tensor([a, a, b, b]) for a, b in itertools.product((-1.0, 0.0, 1.0), repeat=2)
    ]
    worst = min(float(iou(box[None], one[None]).squeeze()) for one in moved)
    assert worst == pytest.approx(overlap, abs=1e-6)


def test_the_map_is_one_at_the_centre_and_falls_as_a_gaussian() -> None:
    given = targets((8, 8, 48, 48, 1, 0))
    objects = read_objects(given, SIZE, 2)
    cell, _ = locate(objects, 4, (16, 24))
    heat = heat_map(objects, cell, (1, 2, 16, 24), 0.3)
    assert heat[0, 0].abs().sum() == 0
    assert heat[0, 1, 7, 7] == 1
    sigma = (2 * 2.26139 + 1) / 6  # 40 pixels are 10 cells
    assert heat[0, 1, 7, 9].item() == pytest.approx(
        torch.tensor(-(2**2) / (2 * sigma**2)).exp().item(), rel=1e-4
    )
    assert heat[0, 1, 8, 8].item() == pytest.approx(torch.tensor(-2 / (2 * sigma**2)).exp().item(), rel=1e-4)
    assert (heat == 1).sum() == 1


def test_where_two_objects_meet_the_larger_value_counts() -> None:
    one, other = (8, 8, 48, 48, 0, 0), (24, 8, 64, 48, 0, 0)

    def drawn(*rows: tuple[float, float, float, float, int, int]) -> torch.Tensor:
        objects = read_objects(targets(*rows), SIZE, 1)
        return heat_map(objects, locate(objects, 4, (16, 24))[0], (1, 1, 16, 24), 0.3)

    assert torch.equal(drawn(one, other), torch.maximum(drawn(one), drawn(other)))


def test_perfect_outputs_cost_nothing() -> None:
    given = targets((8, 8, 48, 48, 1, 0), (50.5, 3.25, 93, 41, 0, 0), (0, 0, 9, 5, 2, 1))
    terms = CenterNetLoss(3)(perfect(given, 2, 3), given, SIZE)
    assert list(terms) == ["heat", "offset", "size"]
    assert all(float(value) < 1e-5 for value in terms.values())


def test_each_term_by_hand() -> None:
    """One object, one cell wrong in each output; the rest is perfect."""
    given = targets((40, 24, 56, 40, 0, 0))  # centre 48, 32: cell 12, 8; 4 x 4 cells
    heat, offset, extent = perfect(given, 1, 1)
    heat[0, 0, 8, 12] = 0.0  # a chance of a half
    offset[0, :, 8, 12] += torch.tensor([0.2, -0.4])
    extent[0, :, 8, 12] += torch.tensor([3.0, 1.0])
    terms = CenterNetLoss(1)([heat, offset, extent], given, SIZE)
    assert terms["heat"].item() == pytest.approx(0.25 * 0.693147, rel=1e-4)
    assert terms["offset"].item() == pytest.approx(0.3)  # the mean over x and y
    assert terms["size"].item() == pytest.approx(0.2)  # 0.1 of the mean


def test_a_false_peak_costs_less_near_a_centre() -> None:
    given = targets((8, 8, 48, 48, 0, 0))
    costs = []
    for col in (8, 20):
        outputs = perfect(given, 1, 1)
        outputs[0][0, 0, 7, col] = 3.0
        costs.append(float(CenterNetLoss(1)(outputs, given, SIZE)["heat"]))
    assert costs[0] < 0.5 * costs[1]


def test_objects_that_cannot_be_learned_and_empty_batches() -> None:
    network = centernet(num_classes=2, backbone="darknet19", width=0.125)
    outputs = network(torch.rand(1, 3, *SIZE))
    none = CenterNetLoss(2)(outputs, targets(), SIZE)
    strange = targets((5, 5, 5, 9, 0, 0), (0, 0, 9, 9, 7, 0), (float("nan"), 0, 9, 9, 1, 0))
    same = CenterNetLoss(2)(outputs, strange, SIZE)
    for name, value in none.items():
        assert value.isfinite()
        assert torch.equal(value, same[name])
    sum(none.values()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


def test_a_fresh_network_starts_under_ten() -> None:
    torch.manual_seed(0)
    network = centernet(num_classes=80, backbone="darknet19", width=0.125).train()
    given = targets((8, 8, 88, 60, 3, 0), (20, 20, 40, 50, 7, 1))
    terms = build_loss(network).of(network, torch.rand(2, 3, *SIZE), given)
    assert sum(terms.values()).item() < 10


def test_options_and_shapes_are_checked() -> None:
    network = centernet(num_classes=2, backbone="darknet19", width=0.125)
    with pytest.raises(ValueError, match="CenterNet's loss has no option 'gama': known are alpha"):
        build_loss(network, gama=2.0)
    with pytest.raises(ValueError, match="min_overlap must lie between 0 and 1, got 1"):
        build_loss(network, min_overlap=1)
    with pytest.raises(ValueError, match="built for 3 classes"):
        CenterNetLoss(3)(perfect(targets(), 1, 2), targets(), SIZE)
