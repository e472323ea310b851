import logging
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
