"""Kind W of the bug reports in cases/CASES.md: Darknet's cfg and weights files."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.cases.inputs import case, expected
from yolo import models
from yolo.darknet import (
    CfgClassifier,
    CfgDetector,
    Header,
    Plan,
    build_cfg,
    build_classifier,
    import_network,
    load_weights,
    parse_cfg,
    plan,
    read_cfg,
    read_header,
    save_weights,
)
from yolo.models.classifier import Classifier
from yolo.models.layers import MaxPool, Reorg
from yolo.ops import decode


def layers_of(name: str, file: str) -> Plan:
    return plan(parse_cfg(read_cfg(case(name) / file), file))


def one() -> CfgClassifier:
    """A convolution with batch norm: ten numbers."""
    return build_classifier(read_cfg(case("W01") / "one.cfg"))


def numbers(network: CfgClassifier | CfgDetector) -> list[list[float]]:
    return [tensor.flatten().tolist() for slot in network.slots for tensor in slot.tensors]


def refused(path: Path, said: str) -> None:
    """The file is named, and the network keeps its numbers."""
    network = one()
    before = numbers(network)
    with pytest.raises(ValueError, match=said) as caught:
        load_weights(network.slots, path)
    assert str(path) in str(caught.value)
    assert numbers(network) == before


@pytest.mark.parametrize("version", ["v0.1", "v0.2", "v0.2.5"])
def test_w01_headers_of_16_and_20_bytes(version: str) -> None:
    network, wanted = one(), expected("W01")
    header = load_weights(network.slots, case("W01") / f"{version}.weights")
    assert numbers(network) == [wanted["all"][key] for key in ("bias", "bn_scale", "mean", "var", "weight")]
    assert header.seen == wanted["seen"][version]


def test_w02_a_header_that_belies_its_version(tmp_path: Path) -> None:
    said = "1 float left over after the last layer: cfg and weights differ"
    refused(case("W02") / "minor0_seen8.weights", said)
    refused(case("W02") / "all_int64.weights", "6 floats left over")
    network = one()
    save_weights(network.slots, tmp_path / "own.weights", Header(seen=2**32 + 64))
    assert read_header(tmp_path / "own.weights") == Header(0, 2, 5, 2**32 + 64)
    again = one()
    load_weights(again.slots, tmp_path / "own.weights")
    assert numbers(again) == numbers(network)


def test_w03_no_header_a_web_page_an_lfs_pointer() -> None:
    refused(case("W03") / "headerless.weights", "which is no version of Darknet: a file without a header")
    refused(case("W03") / "html.weights", "a web page, not weights")
    refused(case("W03") / "lfs.weights", "a Git LFS pointer")


def test_w04_too_short_and_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    short = case("W04") / "short1.weights"
    refused(short, r"layer 0 \[convolutional\] needs 10 floats, 9 left: 1 are missing")
    refused(case("W04") / "extra1.weights", "1 float left over after the last layer: cfg and weights differ")
    refused(case("W04") / "extra2bytes.weights", "42 bytes after the header are no whole number of float32")
    refused(case("W04") / "empty.weights", "the file is empty")
    monkeypatch.setattr("yolo.darknet.convert.build_network", lambda *_: pytest.fail("allocated"))
    with pytest.raises(ValueError, match="9 left"):
        import_network(case("W04") / "one.cfg", short)


def test_w05_a_backbone_loads_with_cutoff_and_only_so() -> None:
    network, file = build_cfg(read_cfg(case("W05") / "three.cfg")), case("W05") / "backbone.bin"
    before = [tensor.clone() for tensor in network.slots[2].tensors]
    said = r"layer 2 \[convolutional\] needs 36 floats, 0 left: 36 are missing \(.*cutoff=2"
    with pytest.raises(ValueError, match=said):
        load_weights(network.slots, file)
    load_weights(network.slots, file, cutoff=2)
    assert [slot.tensors[0].item() for slot in network.slots[:2]] == [1.0, 6.0]
    assert all(torch.equal(a, b) for a, b in zip(before, network.slots[2].tensors, strict=True))
    with pytest.raises(ValueError, match="cutoff=0 leaves no layer"):
        load_weights(network.slots, file, cutoff=0)


def test_w06_a_pool_of_stride_one_keeps_size_and_negative_maxima() -> None:
    wanted = expected("W06")
    for given, out in (("input", "output"), ("input2", "output2")):
        found = MaxPool(wanted["size"], wanted["stride"])(
            torch.tensor([[wanted[given]]], dtype=torch.float32)
        )
        assert found[0, 0].tolist() == wanted[out]


@pytest.mark.parametrize("size", [5, 9, 13])
def test_w07_windows_of_a_pyramid_keep_their_size(size: int) -> None:
    wanted = expected("W07")
    text = f"[net]\nwidth=19\nheight=19\nchannels=1\n[maxpool]\nsize={size}\nstride=1\n"
    (layer,) = plan(parse_cfg(text)).layers
    impulse = torch.zeros(1, 1, *wanted["input_hw"])
    row, col = wanted["impulse_at"]
    impulse[0, 0, row, col] = 1
    out = layer.make()(impulse)[0, 0]
    half = wanted["nonzero_square_side"][str(size)] // 2
    assert list(out.shape) == wanted["output_hw"] == list(layer.shape[1:])
    assert out[row - half : row + half + 1, col - half : col + half + 1].min() == 1
    assert out.sum() == size * size


def test_w09_reorg_is_not_space_to_depth() -> None:
    x, wanted = torch.arange(64.0).reshape(1, 4, 4, 4), expected("W09")
    odd, clean = Reorg(2)(x)[0], Reorg(2, "space_to_depth")(x)[0]
    assert odd.tolist() == wanted["[reorg]"]
    assert clean.tolist() == wanted["[reorg3d]"]
    assert nn.functional.pixel_unshuffle(x, 2)[0].tolist() not in (odd.tolist(), clean.tolist())


def test_w10_groups_cut_every_source() -> None:
    layers = layers_of("W10", "route.cfg").layers
    assert [(layer.sources, layer.shape[0]) for layer in layers[2:]] == [((1,), 3), ((1, 0), 5), ((1, 0), 10)]
    first, second = torch.arange(4.0).reshape(1, 4, 1, 1), torch.arange(10.0, 16.0).reshape(1, 6, 1, 1)
    outputs = [layer.make()(*([second, first][: len(layer.sources)])) for layer in layers[2:]]
    assert outputs[0].flatten().tolist() == [13, 14, 15]
    assert outputs[1].flatten().tolist() == [10, 11, 12, 0, 1]
    assert outputs[2].flatten().tolist() == [10, 11, 12, 13, 14, 15, 0, 1, 2, 3]


def test_w12_comments_after_values_are_no_values() -> None:
    wanted = expected("W12")
    layers = layers_of("W12", "inline.cfg").layers
    assert len(layers) == wanted["layers"]
    assert layers[0].shape[0] == wanted["filters"]
    assert layers[0].section.integer("stride", 0) == wanted["stride"]


@pytest.mark.parametrize("name", ["spaces", "crlf", "bom", "noblank", "nofinalnewline", "short_names"])
def test_w13_spellings_of_one_cfg(name: str) -> None:
    found = layers_of("W13", f"{name}.cfg")
    assert found.input == (1, 32, 32)
    rows = [(layer.kind, layer.shape, layer.floats) for layer in found.layers]
    assert rows == [("convolutional", (2, 32, 32), 10)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("page", "page.cfg:1: a [section] was expected, got '<!DOCTYPE html>'"),
        ("huge", "huge.cfg:6: layer 0 [convolutional] would need 10,737,418,235 weights"),
        ("nonet", "nonet.cfg:1: the first section must be [net], got [convolutional]"),
        ("nosection", "nosection.cfg:1: a [section] was expected, got 'classes = 1'"),
        ("neg", "neg.cfg:9: layer 0 [convolutional] has size=-3, expected 1 to"),
        ("empty", "empty.cfg:1: the cfg is empty"),
        ("dup", "dup.cfg:13: layer 0 [convolutional] gives filters twice, first in line 8"),
        ("noequals", "noequals.cfg:13: 'batch normalize' in [convolutional]: key=value was expected"),
    ],
)
def test_w14_no_cfg_at_all(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        layers_of("W14", f"{name}.cfg")
    assert "\n" not in str(caught.value)


def test_w15_routes_forward_back_and_outside() -> None:
    for _ in range(2):  # building twice from one text works
        layers = layers_of("W15", "route.cfg").layers
        assert [layer.sources for layer in layers[2:]] == [(0,), (2, 1), (3, 0)]
        assert [layer.shape[0] for layer in layers[2:]] == [2, 4, 4]
    for name, given in (("future", 5), ("self", 1), ("below", -9)):
        said = rf"{name}.cfg:15: layer 1 \[route\] has layers={given}, only layers"
        with pytest.raises(ValueError, match=said):
            layers_of("W15", f"{name}.cfg")


def head(options: str) -> CfgDetector:
    """One anchor of 5 x 6 pixels on 13 x 13 cells of 32 pixels."""
    conv = "[convolutional]\nfilters=6\nsize=1\nstride=32\nactivation=linear\n"
    return build_cfg(
        f"[net]\nwidth=416\nheight=416\n{conv}[yolo]\nclasses=1\nnum=1\nmask=0\nanchors=5,6\n{options}"
    )


def test_w16_centres_scaled_about_the_cell() -> None:
    wanted = expected("W16")
    logits = torch.zeros(1, 6, 13, 13)
    logits[0, 0, 0, wanted["cell_x"]] = wanted["logit"]
    for said, centre in wanted["center_x"].items():
        specs = head("" if "absent" in said else f"scale_x_y={said}\n").specs
        boxes, _ = decode([logits], specs)
        assert boxes[0, 6, [0, 2]].mean().item() / 416 == pytest.approx(centre, abs=1e-6)
    (new,) = (value for key, value in wanted.items() if key.startswith("new_coords"))
    logits[0, :, 0, 6] = torch.sigmoid(torch.tensor(2.0))
    boxes, _ = decode([logits], head("scale_x_y=2\nnew_coords=1\n").specs)
    assert boxes[0, 6, [0, 2]].mean().item() / 416 == pytest.approx(new["center_x"], abs=1e-6)
    assert (boxes[0, 6, 2] - boxes[0, 6, 0]).item() / 5 == pytest.approx(new["w_over_anchor"], rel=1e-5)


def test_w17_epsilon_of_batch_norm() -> None:
    wanted = expected("W17")
    native: list[Classifier | CfgClassifier] = [models.darknet19(2, width=0.125), one()]
    for network in native:
        norm = next(module for module in network.modules() if isinstance(module, nn.BatchNorm2d))
        scale = norm.weight[0] / (torch.tensor(wanted["var"]) + norm.eps).sqrt()
        assert (scale * wanted["x"]).item() == pytest.approx(
            wanted["expected_eps_1e-5_inside_sqrt"], rel=1e-5
        )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mismatch", r"gets 255 filters .* 3 anchors x \(1 classes \+ 5\) = 18 are needed"),
        ("maskwrong", r"maskwrong.cfg:30: layer 3 \[yolo\] has mask=3,4,5, beyond its 3 anchors"),
        ("numwrong", r"has num=9 and 6 anchor numbers, 18 are needed"),
    ],
)
def test_w18_heads_that_contradict_themselves(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        layers_of("W18", f"{name}.cfg")


def test_w19_activations_and_layers_by_name() -> None:
    wanted = expected("W19")
    for name in ("mish", "swish", "logistic", "relu6"):
        network = build_classifier(read_cfg(case("W19") / f"{name}.cfg")).eval()
        act = next(iter(network.head.layers.values())).act
        assert act(torch.tensor(wanted["x"])).item() == pytest.approx(wanted[name], abs=1e-6)
    with pytest.raises(ValueError, match=r"bogus.cfg:12: layer 0 .* has the unknown activation 'bogus'"):
        layers_of("W19", "bogus.cfg")
    assert [layer.kind for layer in layers_of("W19", "cost.cfg").layers] == ["convolutional", "cost"]
    assert layers_of("W19", "sam.cfg").layers[1].sources == (0, 0)
