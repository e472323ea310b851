"""Kind S of the bug reports: what comes from outside runs no code and leaves its place."""

import ast
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.cases.inputs import case, copied, counts
from tests.data.making import coco, picture
from yolo import checkpoint
from yolo.cli import UsageError, check_targets
from yolo.data import read_coco, read_darknet, read_voc, read_yolo
from yolo.data.download import unpack
from yolo.data.formats.plain_yaml import class_names
from yolo.data.formats.xml import parse_xml
from yolo.data.writers.convert import convert
from yolo.predict import shots

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nothing_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in a folder of its own; code of these inputs would leave a file there."""
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.rglob("S0*_*")) == []


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("train", ["weights={}", "data=digits", "trainer.max_epochs=1"]),
        ("train", ["checkpoint={}", "data=digits", "data.counts=[4,2,2]", "data.workers=0", "model=yolov2_tiny"]),
        ("val", ["weights={}", "data=digits", "data.counts=[4,2,2]"]),
        ("predict", ["weights={}", "source=."]),
        ("export", ["weights={}"]),
        ("darknet", ["export", "weights={}", "output=out"]),
    ],
    ids=["start", "resume", "val", "predict", "export", "convert"],
)  # fmt: skip
@pytest.mark.slow
def test_s01_tools_run_no_code_of_a_weights_file(tool: str, arguments: list[str], tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 32, 32)
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / f"{tool}.py"), *(a.format(case("S01") / "model.pt") for a in arguments)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "posix.mkdir" in done.stderr
    assert "Traceback" not in done.stderr


def test_s01_weights_run_no_code() -> None:
    """All tools read weights by one function; a file without code is read, and refused only for what it lacks."""
    with pytest.raises(ValueError, match=r"model\.pt: .*it asks to run posix\.mkdir, which is refused"):
        checkpoint.load_model(case("S01") / "model.pt")
    with pytest.raises(ValueError, match=r"plain\.pt: not a checkpoint of this project"):
        checkpoint.load_model(case("S01") / "plain.pt")


@pytest.mark.parametrize("name", ["data.yaml", "data_bash.yaml"])
def test_s02_download_scripts_are_not_run(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}: the folder .*nowhere .*the pictures are missing"):
        read_yolo(case("S02") / name, split="train")


def test_s03_yaml_makes_no_objects(tmp_path: Path) -> None:
    for read in (class_names, lambda path: read_yolo(path, split="train")):
        with pytest.raises(ValueError, match=r"data\.yaml:1: the YAML tag '.*os\.mkdir' is refused"):
            read(case("S03") / "data.yaml")
        with pytest.raises(ValueError, match=r"hydra_target\.yaml"):
            read(case("S03") / "hydra_target.yaml")
    with pytest.raises(UsageError, match=r"model\._target_=os\.mkdir is refused"):
        check_targets(OmegaConf.load(case("S03") / "hydra_target.yaml"))


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "yolo.cli.os.system",  # an attribute of a trusted module
        "yolo.checkpoint.pickle.loads",
        "torch.load",
        "torch.optim.sgd.torch.load",
        "albumentations.load",
        "pytorch_lightning.utilities.rank_zero.logging.config.fileConfig",
        "${oc.env:S03_TARGET}",
    ],
)
def test_s03_targets_come_from_a_list(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S03_TARGET", "builtins.exec")
    with pytest.raises(UsageError, match="is refused"):
        check_targets(OmegaConf.create({"augment": {"extra": [{"_target_": target}]}}))


def test_s03_own_packages_can_be_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    config = OmegaConf.create({"model": {"_target_": "mine.Net"}})
    with pytest.raises(UsageError, match="YOLO_TRUST"):
        check_targets(config)
    monkeypatch.setenv("YOLO_TRUST", "other, mine")
    check_targets(config)
    check_targets(
        OmegaConf.create({"a": {"_target_": "yolo.data.Augment"}, "b": {"_target_": "torch.optim.SGD"}})
    )


@pytest.mark.parametrize("name", ["small.xml", "big.xml", "external.xml"])
def test_s04_document_types_are_refused(name: str) -> None:
    path = case("S04") / name
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(ValueError, match=rf"{name}:2: document type definitions"):
        parse_xml(path.read_bytes(), path)
    assert time.monotonic() - start < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024  # kB


def test_s04_no_leak_reaches_the_class_names() -> None:
    with pytest.raises(ValueError, match="not one usable picture") as caught:
        read_voc(case("S04"))
    assert "S04_LEAK" not in str(caught.value)


def test_s05_nothing_outside_is_read_or_written(tmp_path: Path) -> None:
    data = copied("S05", tmp_path) / "data"
    for read in (read_darknet, read_yolo):
        annotated = read(data / "train.txt", ["kite"])
        assert counts(annotated) == (1, 1)
        assert [(one.code, one.line) for one in annotated.lost] == [("outside-root", 2), ("outside-root", 3)]
    assert counts(read_yolo(data / "train.txt", ["kite"], allow_outside=True))[0] == 2
    with pytest.raises(ValueError, match=r"\.\./outside/secret\.png leads out of"):
        read_coco(data / "ann.json")
    for name in ("/etc/hostname", "..\\outside\\secret.png", "images/../../outside/secret.png"):
        rows = {"images": [{"id": 1, "file_name": name, "width": 32, "height": 32}]}
        with pytest.raises(ValueError, match="not one usable picture"):
            read_coco(coco(data / "more.json", [], **rows))
    record = annotated.records[0]
    for number, name in enumerate(("../x.png", "/x.png", "a/../../y.png")):
        strange = replace(annotated, records=[replace(record, image_id=name)])
        convert({"train": strange}, "yolo", tmp_path / "deep" / "er" / f"out{number}")
    outside = [
        path for path in (tmp_path / "deep").rglob("*") if path.is_file() and "/er/out" not in str(path)
    ]
    assert outside == []
    assert not list(tmp_path.glob("?.png"))
    names = [shot.name for shot in shots(f"{data}/images/../../outside/*.png")]
    assert names
    assert not any(".." in name.parts or name.is_absolute() for name in names)


@pytest.mark.parametrize("name", ["set.zip", "set.tar"])
def test_s07_archives_stay_in_their_folder(name: str, tmp_path: Path) -> None:
    target = tmp_path / "inner" / "target"
    with pytest.raises(ValueError, match=rf"{name}: member '\.\./S07_ESCAPED.*refused"):
        unpack(case("S07") / name, target)
    assert not target.exists()


def test_no_way_to_run_what_a_file_says() -> None:
    """No pickle, no eval, no shell, no unsafe YAML in the package and the tools."""
    found = []
    for path in [*(ROOT / "yolo").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            call = ast.unparse(node.func)
            named = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            bad = call in (
                "eval",
                "exec",
                "os.system",
                "os.popen",
                "pickle.load",
                "pickle.loads",
                "yaml.load",
            )
            bad |= call == "torch.load" and named.get("weights_only") != "True"
            bad |= call == "np.load" and named.get("allow_pickle") != "False"
            bad |= named.get("shell") == "True"
            found += [f"{path.relative_to(ROOT)}:{node.lineno}: {call}"] if bad else []
    assert found == []
