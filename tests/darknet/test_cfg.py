import logging
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.paths import shared
from yolo.darknet import build_cfg, build_classifier, import_network, parse_cfg, plan, read_cfg
from yolo.darknet.cfg import decode, encode

ONE = """[net]
width=32
height=32
channels=1

[convolutional]
batch_normalize=1
filters=2
size=1
stride=1
pad=1
activation=linear
"""


def case(*parts: str) -> Path:
    return shared("cases", "inputs", *parts)


def load(*parts: str):
    return plan(parse_cfg(read_cfg(case(*parts)), parts[-1]))


def test_comments_after_values_and_sections_are_no_values() -> None:
    (layer,) = load("W12", "inline.cfg").layers
    assert layer.shape[0] == 2
    assert layer.section.integer("stride", 0) == 1


@pytest.mark.parametrize(
    "name", ["spaces", "crlf", "bom", "noblank", "nofinalnewline", "short_names"], ids=lambda name: name
)
def test_spellings_of_one_cfg_are_equal(name: str) -> None:
    found = load("W13", f"{name}.cfg")
    assert found.input == (1, 32, 32)
    assert [(layer.kind, layer.shape, layer.floats) for layer in found.layers] == [
        ("convolutional", (2, 32, 32), 10)
    ]


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
def test_what_is_no_cfg_is_refused_in_one_line(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        load("W14", f"{name}.cfg")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "given"), [("future", 5), ("self", 1), ("below", -9)])
def test_references_ahead_and_outside_name_section_and_line(name: str, given: int) -> None:
    with pytest.raises(
        ValueError, match=rf"{name}.cfg:15: layer 1 \[route\] has layers={given}, only layers"
    ):
        load("W15", f"{name}.cfg")


def test_routes_count_from_the_start_or_back_with_blanks() -> None:
    for _ in range(2):  # building twice from one text works
        layers = load("W15", "route.cfg").layers
        assert [layer.sources for layer in layers[2:]] == [(0,), (2, 1), (3, 0)]
        assert [layer.shape[0] for layer in layers[2:]] == [2, 4, 4]


def test_groups_cut_every_source() -> None:
    layers = load("W10", "route.cfg").layers
    assert [(layer.sources, layer.shape[0]) for layer in layers[2:]] == [((1,), 3), ((1, 0), 5), ((1, 0), 10)]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mismatch", r"gets 255 filters .* 3 anchors x \(1 classes \+ 5\) = 18 are needed"),
        ("maskwrong", r"maskwrong.cfg:30: layer 3 \[yolo\] has mask=3,4,5, beyond its 3 anchors"),
        ("numwrong", r"has num=9 and 6 anchor numbers, 18 are needed"),
    ],
)
def test_heads_that_contradict_themselves_say_what_they_need(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load("W18", f"{name}.cfg")


@pytest.mark.parametrize(
    ("name", "value"), [("mish", 1.943959), ("swish", 1.7615942), ("logistic", 0.8807971), ("relu6", 2.0)]
)
def test_activations_are_what_they_are_called(name: str, value: float) -> None:
    network = build_classifier(read_cfg(case("W19", f"{name}.cfg"))).eval()
    act = next(iter(network.head.layers.values())).act
    assert act(torch.tensor(2.0)).item() == pytest.approx(value, abs=1e-6)


def test_an_unknown_activation_is_never_linear() -> None:
    with pytest.raises(
        ValueError, match=r"bogus.cfg:12: layer 0 \[convolutional\] has the unknown activation 'bogus'"
    ):
        load("W19", "bogus.cfg")


def test_cost_and_sam_are_known() -> None:
    assert [layer.kind for layer in load("W19", "cost.cfg").layers] == ["convolutional", "cost"]
    assert load("W19", "sam.cfg").layers[1].sources == (0, 0)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("filtres=3", "cfg:13: layer 0 [convolutional] has the unknown key 'filtres'"),
        ("xnor=1", "cfg:13: layer 0 [convolutional] has xnor=1, which changes the result"),
        ("antialiasing=1", "has antialiasing=1, which changes the result"),
        ("dontload=1", "has dontload=1, which changes the result"),
        ("padding=one", "has padding='one', a whole number was expected"),
        ("groups=2", "has groups=2, which must divide its 1 inputs and 2 filters"),
        ("=3", "key=value was expected"),
        ("dilation=", "gives dilation no value"),
        ("[lstm]", "layer 1 [lstm]: recurrent layers are not supported"),
        ("[convolutionel]", "layer 1 [convolutionel] is no section that this reader knows"),
        ("[convolutional", "lacks the closing bracket"),
        ("[net]", "a second [net] section"),
    ],
)
def test_rows_that_are_wrong(row: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        plan(parse_cfg(f"{ONE}{row}\n"))


def test_keys_that_leave_the_result_alone_are_taken() -> None:
    (layer,) = plan(parse_cfg(f"{ONE}xnor=0\nantialiasing=0\nstopbackward=1\n")).layers
    assert layer.floats == 10


def test_training_keys_are_reported_and_the_first_of_two_counts(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    text = ONE.replace("channels=1", "channels=1\nbatch=64\nbatch=1\nmomentum=0.9")
    found = parse_cfg(text, "my.cfg")
    assert found.net.text("batch", "") == "64"
    assert found.notes == (
        "my.cfg:6: batch is given twice in [net], the first is taken",
        "[net] keys without effect here: batch, momentum",
    )
    path = tmp_path / "my.cfg"
    path.write_text(text)
    with caplog.at_level(logging.INFO, "yolo.darknet"):
        import_network(path)
    assert "keys without effect here: batch, momentum" in caplog.text


def test_a_network_without_picture_size_is_refused() -> None:
    with pytest.raises(ValueError, match="gives no height: only networks that read pictures"):
        plan(parse_cfg(ONE.replace("height=32\n", "")))


def test_a_layer_after_a_head_cannot_read_it() -> None:
    head = "[yolo]\nmask=0\nanchors=1,2\nclasses=1\nnum=1\n"
    text = ONE.replace("filters=2", "filters=6") + head
    assert plan(parse_cfg(text)).heads
    for more in ("[maxpool]\n", "[route]\nlayers=-1\n", "[shortcut]\nfrom=-2\n"):
        with pytest.raises(ValueError, match=r"head layer 1 \[yolo\], whose output only decoding reads"):
            plan(parse_cfg(text + more))


@given(
    st.lists(st.sampled_from(["", "# note", "; [net]", "\t", "  #x=1"]), min_size=12, max_size=12),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", " # why", "\t; because"]),
)
def test_comments_and_blanks_never_change_a_cfg(between: list[str], end: str, after: str) -> None:
    rows = [row for row in ONE.splitlines() if row]
    text = "".join(f"{extra}{end}{row}{after}{end}" for extra, row in zip(between, rows, strict=False))
    plain, noisy = plan(parse_cfg(ONE)), plan(parse_cfg(text))
    assert [(layer.kind, layer.shape) for layer in noisy.layers] == [
        (layer.kind, layer.shape) for layer in plain.layers
    ]


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        plan(parse_cfg(text))
    except ValueError as error:
        said = str(error)
    else:
        said = "cfg:"
    assert said.startswith("cfg:")


@given(st.binary(max_size=200))
def test_bytes_survive_reading(content: bytes) -> None:
    assert encode(decode(content)) == content


def test_binary_files_and_missing_ones_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.cfg").write_bytes(b"PK\x03\x04\0\0")
    with pytest.raises(ValueError, match=r"a.cfg: not a cfg, the file is binary"):
        read_cfg(tmp_path / "a.cfg")
    with pytest.raises(FileNotFoundError, match=r"b.cfg: no such cfg file"):
        read_cfg(tmp_path / "b.cfg")


def test_a_classifier_is_no_detector_and_the_other_way_round() -> None:
    with pytest.raises(ValueError, match=r"no \[yolo\], \[region\] or \[detection\] section"):
        build_cfg(ONE)
    head = ONE.replace("filters=2", "filters=6") + "[yolo]\nanchors=1,2\nclasses=1\nnum=1\n"
    with pytest.raises(ValueError, match="has a detection head"):
        build_classifier(head)
