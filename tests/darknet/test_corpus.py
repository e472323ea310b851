"""Every published cfg file builds, or is refused with one sentence."""

import json
from pathlib import Path

import pytest
import torch

from tests.helpers.paths import shared
from yolo.darknet import build_network, parse_cfg, plan, read_cfg
from yolo.darknet.info import bflops, survey, table

REFUSED = {  # file -> part of the sentence
    "alexeyab/cfg/Gaussian_yolov3_BDD.cfg": "the Gaussian head",
    "alexeyab/cfg/crnn.train.cfg": "recurrent layers",
    "alexeyab/cfg/cspx-p7-mish.cfg": "has mask=16,17,18,19, beyond its 16 anchors",
    "alexeyab/cfg/cspx-p7-mish_hp.cfg": "has anchors='45    61', a number was expected",  # a comma is missing
    "alexeyab/cfg/darknet53_448_xnor.cfg": "has xnor=1",
    "alexeyab/cfg/gru.cfg": "recurrent layers",
    "alexeyab/cfg/lstm.train.cfg": "recurrent layers",
    "alexeyab/cfg/rnn.cfg": "recurrent layers",
    "alexeyab/cfg/rnn.train.cfg": "recurrent layers",
    "alexeyab/cfg/tiny-yolo_xnor.cfg": "has xnor=1",
    "alexeyab/cfg/yolo9000.cfg": "has tree=data/9k.tree",
    "alexeyab/cfg/yolov1/xyolo.test.cfg": "has xnor=1",
    "alexeyab/cfg/yolov3-tiny_occlusion_track.cfg": "recurrent layers",
    "alexeyab/cfg/yolov3-tiny_xnor.cfg": "has xnor=1",
    "alexeyab/cfg/yolov4-tiny_contrastive.cfg": "windowed average pooling",
    "pjreddie/cfg/darknet9000.cfg": "has tree=data/9k.tree",
    "pjreddie/cfg/gru.cfg": "recurrent layers",
    "pjreddie/cfg/rnn.cfg": "recurrent layers",
    "pjreddie/cfg/rnn.train.cfg": "recurrent layers",
    "pjreddie/cfg/yolo9000.cfg": "has tree=data/9k.tree",
}


def corpus() -> list[tuple[str, Path]]:
    root = shared("darknet")
    return [(path.relative_to(root).as_posix(), path) for path in sorted(root.rglob("*.cfg"))]


def test_all_published_cfg_files_build_or_say_why_not() -> None:
    refused: dict[str, str] = {}
    files = corpus()
    built: set[bytes] = set()
    for name, path in files:
        if path.read_bytes() in built:  # many files are the same in both repositories
            continue
        try:
            layers = plan(parse_cfg(read_cfg(path), name))
            with torch.device("meta"):
                network = build_network(layers)
        except ValueError as error:
            refused[name] = str(error)
            continue
        built.add(path.read_bytes())
        assert sum(slot.floats for slot in network.slots) == layers.floats, name
        trained = sum(parameter.numel() for parameter in network.parameters())
        counted = sum(buffer.numel() for key, buffer in network.named_buffers() if "running" in key)
        shared_layers = any(layer.lender is not None for layer in layers.layers)
        assert shared_layers or trained + counted == layers.floats, name
    assert len(files) >= 132
    assert len(files) - len(refused) >= 118
    assert sorted(refused) == sorted(REFUSED)
    assert all(said.startswith(f"{name}:") and "\n" not in said for name, said in refused.items())
    for name, said in REFUSED.items():
        assert said in refused[name]


def test_shapes_counts_and_costs_are_the_known_ones() -> None:
    facts = json.loads(shared("darknet", "facts.json").read_text())
    root = shared("darknet")
    assert len(facts) == 19
    for name, fact in facts.items():
        found = plan(parse_cfg(read_cfg(root / fact["cfg"][0].replace("AlexeyAB", "alexeyab")), name))
        assert [list(layer.shape) for layer in found.layers] == [layer["out"] for layer in fact["layers"]], (
            name
        )
        assert [layer.floats for layer in found.layers] == [layer["floats"] for layer in fact["layers"]], name
        assert found.floats == fact["weights_floats"], name
        assert bflops(found) == pytest.approx(fact["bflops_darknet"], abs=5.1e-4), name


def test_counts_are_those_of_the_files_beside_the_cfg() -> None:
    root = shared("weights")
    pairs = [path for path in sorted(root.rglob("*.cfg")) if path.with_suffix(".weights").is_file()]
    assert len(pairs) == 17
    for path in pairs:
        size = path.with_suffix(".weights").stat().st_size
        assert size - 4 * plan(parse_cfg(read_cfg(path))).floats in (16, 20), path


def test_the_table_ends_as_darknet_prints_it() -> None:
    path = shared("darknet", "alexeyab", "cfg", "yolov4-tiny.cfg")
    lines = table(plan(parse_cfg(read_cfg(path)))).splitlines()
    assert " ".join(lines[1].split()) == "0 conv 32 3x3/2 416 x 416 x 3 208 x 208 x 32 992 0.075"
    assert " ".join(lines[4].split()) == "3 route 2 1/2 104 x 104 x 64 104 x 104 x 32"
    assert lines[39] == "Total BFLOPS 6.910"
    assert lines[40] == "avg_outputs = 310203"
    assert lines[41] == "6,062,814 floats, 24,251,276 bytes in a weights file of version 0.2"


def test_a_folder_is_surveyed_in_a_table() -> None:
    rows = survey(shared("darknet")).splitlines()
    assert rows[-1] == "140 cfg files, 120 can be built, 20 are refused"
    said = {row.split()[0]: " ".join(row.split()[1:]) for row in rows}
    assert said["alexeyab/cfg/yolov4.cfg"] == "detector 64,429,405 floats, 128.459 BFLOPs"
    assert said["pjreddie/cfg/darknet19.cfg"].startswith("classifier 20,856,776 floats")
    assert said["pjreddie/cfg/gru.cfg"] == "refused layer 0 [gru]: recurrent layers are not supported"
