import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.darknet.golden import layer_case
from tests.helpers.paths import shared
from yolo import models
from yolo.darknet import (
    Header,
    build_cfg,
    build_classifier,
    load_into,
    load_weights,
    native_slots,
    read_header,
    save_weights,
    slots_of,
)

FULL = """[net]
width=8
height=8
channels=2

[convolutional]
batch_normalize=1
filters=3
size=3
pad=1
groups=1
activation=leaky

[batchnorm]

[local]
filters=2
size=3
pad=1
stride=2
activation=leaky

[connected]
output=5
batch_normalize=1
activation=leaky

[connected]
output=4
activation=linear
"""


def test_cutoff_takes_the_start_of_a_whole_file() -> None:
    detector = models.yolov3_tiny(width=1.0)
    before = slots_of(detector)[-1].tensors[1].clone()
    path = shared("weights", "yolov3-tiny", "yolov3-tiny.weights")
    load_into(detector, path, cutoff=15)  # Darknet's yolov3-tiny.conv.15
    slots = slots_of(detector)
    assert [slot.layer for slot in slots] == [0, 2, 4, 6, 8, 10, 12, 13, 14, 15, 18, 21, 22]
    assert torch.equal(slots[-1].tensors[1], before)
    values = np.fromfile(path, "<f4", 16, offset=20)
    np.testing.assert_array_equal(slots[0].tensors[0].detach(), values)


def test_values_land_where_darknet_puts_them() -> None:
    network = build_classifier(FULL)
    total = sum(slot.floats for slot in network.slots)
    assert total == network.plan.floats

    def order() -> list[torch.Tensor]:
        layers = {**network.backbone.layers, **network.head.layers}
        conv, norm, local, first, second = (layers[str(index)] for index in range(5))
        shift, scale = first.norm.bias, first.norm.weight
        mean, variance = first.norm.running_mean, first.norm.running_var
        return [
            *(conv.norm.bias, conv.norm.weight, conv.norm.running_mean, conv.norm.running_var),
            *(conv.conv.weight, norm.bias, norm.weight, norm.running_mean, norm.running_var),
            *(local.local.bias, local.local.weight),
            *(shift, first.linear.weight, scale, mean, variance),  # connected: weights before the scales
            *(second.linear.bias, second.linear.weight),
        ]

    values = torch.arange(total, dtype=torch.float32)
    start = 0
    with torch.no_grad():
        for slot in network.slots:
            for tensor in slot.tensors:
                tensor.copy_(values[start : start + tensor.numel()].view(tensor.shape))
                start += tensor.numel()
    flat = torch.cat([tensor.detach().flatten() for tensor in order()])
    assert torch.equal(flat, values)


@pytest.mark.parametrize(
    "header", [Header(0, 1, 0, 2**32 - 1), Header(0, 2, 0, 2**40), Header(), Header(0, 1001, 0, 7)]
)
def test_a_file_written_reads_back(header: Header, tmp_path: Path) -> None:
    torch.manual_seed(0)
    source, target = build_classifier(FULL), build_classifier(FULL)
    for slot in source.slots:
        for tensor in slot.tensors:
            tensor.data.normal_()
    path = tmp_path / "a.weights"
    save_weights(source.slots, path, header)
    assert path.stat().st_size == header.size + 4 * source.plan.floats
    assert load_weights(target.slots, path) == header
    for one_slot, other in zip(source.slots, target.slots, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one_slot.tensors, other.tensors, strict=True))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.weights"]


def test_transposed_files_hold_connected_layers_the_other_way_round(tmp_path: Path) -> None:
    text = "[net]\nwidth=1\nheight=1\nchannels=3\n[connected]\noutput=2\nactivation=linear\n"
    network = build_classifier(text)
    values = [0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    path = tmp_path / "t.weights"
    path.write_bytes(struct.pack("<4i8f", 0, 1001, 0, 5, *values))
    load_weights(network.slots, path)
    assert network.slots[0].tensors[1].tolist() == [[1, 3, 5], [2, 4, 6]]
    save_weights(network.slots, tmp_path / "u.weights", read_header(path))
    assert (tmp_path / "u.weights").read_bytes() == path.read_bytes()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.weights"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="4294967296 images seen do not fit"):
        save_weights(build_classifier(FULL).slots, path, Header(0, 1, 0, 2**32))
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.weights"]


def test_the_count_moves_to_64_bits_when_it_must() -> None:
    assert Header(0, 1, 0, 10).after(5) == Header(0, 1, 0, 15)
    assert Header(0, 1, 0, 2**32 - 1).after(1) == Header(0, 2, 0, 2**32)
    assert Header(0, 2, 5, 2**33).after(1).seen == 2**33 + 1


@given(st.binary(max_size=80))
def test_any_bytes_are_loaded_whole_or_refused(content: bytes) -> None:
    network = build_classifier("[net]\nwidth=1\nheight=1\nchannels=1\n[convolutional]\nactivation=linear\n")
    before = [tensor.clone() for tensor in network.slots[0].tensors]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.weights"
        path.write_bytes(content)
        try:
            header = load_weights(network.slots, path)
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017
            assert all(torch.equal(a, b) for a, b in zip(before, network.slots[0].tensors, strict=True))
        else:
            assert len(content) == header.size + 8


@pytest.mark.parametrize("name", ["v1_alexey", "v1_pjreddie", "v2_alexey", "v3_pjreddie", "v4_alexey"])
def test_darknets_own_files_come_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    about, _ = layer_case(f"mini_{name}")
    path = shared("golden", "layers", about["weights_file"])
    network = build_cfg(about["cfg"])
    header = load_weights(network.slots, path)
    assert list(header) == about["weights_header"]
    assert network.plan.floats == about["weights_floats"]
    save_weights(network.slots, tmp_path / "w", header)
    assert (tmp_path / "w").read_bytes() == path.read_bytes()


def test_shared_weights_are_stored_once() -> None:
    text = "[net]\nwidth=8\nheight=8\nchannels=2\n"
    conv = "[convolutional]\nbatch_normalize=1\nfilters=2\nsize=3\npad=1\nactivation=leaky\n"
    network = build_classifier(f"{text}{conv}{conv}share_index=0\ndilation=2\n")
    assert network.plan.floats == 2 * 2 * 9 + 8
    first, second = network.head.layers["0"], network.head.layers["1"]
    assert first.conv.weight is second.conv.weight
    assert first.norm is second.norm
    assert second.conv.dilation == (2, 2)
    with pytest.raises(
        ValueError, match=r"shares the weights of layer 0 \[convolutional\], which has another form"
    ):
        build_classifier(f"{text}{conv}{conv.replace('size=3', 'size=1')}share_index=0\n")


def test_native_networks_are_walked_in_cfg_order() -> None:
    detector = models.yolov2_tiny(width=0.25)
    assert [slot.layer for slot in native_slots(detector)] == list(range(9))
    assert [slot.layer for slot in slots_of(detector)] == [0, 2, 4, 6, 8, 10, 12, 13, 14]
    assert slots_of(detector)[1].name == "layer 2 [convolutional]"
