"""What a tool says and how it exits; the tool of these tests uses configs/predict.yaml."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from yolo.cli import answer, describe, main

Run = Callable[..., tuple[int, str, str]]
GIVEN = ("weights=a.ckpt", "source=b")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run a tool with arguments; gives its exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("YOLO_DEBUG", raising=False)

    @main("predict")
    def tool(cfg: DictConfig) -> None:
        """Find things."""
        if cfg.source == "bad":
            raise ValueError("the source\nis bad")
        if cfg.source == "stop":
            raise KeyboardInterrupt
        if cfg.source == "bug":
            raise KeyError("a mistake of ours")
        sys.stdout.write(f"ran with {cfg.weights} {cfg.source}\n")

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tool.py", *arguments])
        status = 0
        try:
            answer("predict", "Find things: python tools/predict.py")
            tool()
        except SystemExit as stop:
            status = int(stop.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_runs_in_its_folder(run: Run, tmp_path: Path) -> None:
    status, out, err = run(*GIVEN, "name=first")
    assert (status, out, err) == (0, "ran with a.ckpt b\n", "")
    assert (tmp_path / "runs/predict/first/.hydra/overrides.yaml").exists()


@pytest.mark.parametrize(
    ("argument", "nearest"),
    [
        ("wieghts=x", "weights"),
        ("score_treshold=0.5", "score_threshold"),
        ("preprocess.resise=stretch", "preprocess.resize"),
        ("preprocess.width=3", "preprocess.size"),
        ("++batch.size=3", "batch_size"),
        ("+save=true", "save_txt"),
        ("~sorce", "source"),
        ("hydra.ouput_subdir=x", "hydra.output_subdir"),
        ("hydra.run.dri=x", "hydra.run.dir"),
    ],
)
def test_wrong_options_are_named_with_the_nearest(
    run: Run, tmp_path: Path, argument: str, nearest: str
) -> None:
    status, out, err = run(*GIVEN, argument)
    assert (status, out) == (2, "")
    assert err.startswith("tool.py: no option ")
    assert f"the nearest is '{nearest}'" in err or (nearest == "save_txt" and "the nearest is 'save_" in err)
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("batch_size=five", "batch_size is a number (now 8), got 'five'"),
        ("save_txt=yes", "save_txt is true or false, got 'yes'"),
        ("preprocess=3", "preprocess is a group of options (resize, size, "),
        ("preprocess.size=416,256", "write preprocess.size=[416,256] for a list"),
        ("source", "'source' is no option: options are written key=value"),
    ],
)
def test_wrong_values_are_refused(run: Run, argument: str, message: str) -> None:
    status, _, err = run(*GIVEN, argument)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "argument",
    [
        "batch_size=auto",
        "preprocess.size=[416,256]",
        "frames=12",
        "device=cuda:1",
        "cfg=null",
        "hydra/job_logging=none",
    ],
)
def test_right_values_are_taken(run: Run, argument: str) -> None:
    assert run(*GIVEN, argument)[0] == 0


@pytest.mark.parametrize("flag", ["--multirun", "-m", "hydra.mode=MULTIRUN"])
def test_sweeps_are_not_taken_for_mistakes(run: Run, flag: str) -> None:
    status, _, err = run("weights=a", "source=b,c", "hydra.sweep.dir=sweep", flag)
    assert (status, err) == (0, "")
    assert [Path("sweep", job, ".hydra/overrides.yaml").read_text("utf-8") for job in "01"] == [
        "- weights=a\n- source=b\n", "- weights=a\n- source=c\n",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["runs/epoch=9-step=100.ckpt", "runs/a(1).ckpt", "data/犬.ckpt", "it's"])
def test_values_that_need_quotes_are_shown_with_them(run: Run, value: str) -> None:
    """Cases C01 and C07; what the message shows is what works."""
    status, _, err = run("source=b", f"weights={value}")
    assert status == 2
    shown = err[err.index('"') + 1 : err.rindex('"')]
    assert shown.startswith("weights='")
    assert run("source=b", shown) == (0, f"ran with {value} b\n", "")


def test_options_that_must_be_given(run: Run) -> None:
    status, _, err = run("source=b")
    assert (status, err) == (2, "tool.py: weights=... must be given (--help shows an example)\n")


@pytest.mark.parametrize(
    ("config", "given", "missing"),
    [
        ("train", ("data=yolo_txt",), "data.num_classes=..., data.root=..."),
        ("val", ("weights=a", "data=coco_json", "data.root=b"), "data.num_classes=..."),
    ],
)
def test_a_choice_of_a_group_does_not_give_what_it_leaves_open(
    config: str,
    given: tuple[str, ...],
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["tool.py", *given])
    with pytest.raises(SystemExit):
        answer(config, "Work.")
    assert capsys.readouterr().err == f"tool.py: {missing} must be given (--help shows an example)\n"


def test_an_element_of_a_list_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tool.py", "preprocess.size.0=320"])
    answer("train", "Work.")  # an option that does not exist would exit


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the first word is check, convert or show (--help shows examples)"),
        (("data=bccd",), "the first word is check, convert or show (--help shows examples)"),
        (("chek", "data=bccd"), "no 'chek': the first word is check, convert or show"),
        (("verb=chek",), "no 'chek': the first word is check, convert or show"),
        (("check", "data=bcd"), "no data=bcd; the nearest is 'data=bccd' (--help lists all)"),
    ],
)
def test_verbs(
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["data.py", *arguments])
    with pytest.raises(SystemExit) as stop:
        answer("data", "Look.", verbs=("check", "convert", "show"))
    assert (stop.value.code, capsys.readouterr().err) == (2, f"data.py: {message}\n")


def test_a_verb_becomes_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["data.py", "check", "data=bccd"])
    answer("data", "Look.", verbs=("check", "convert", "show"))
    assert sys.argv == ["data.py", "verb=check", "data=bccd"]


def test_errors_of_the_work_are_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("weights=a", "source=bad") == (1, "", "tool.py: the source is bad\n")
    monkeypatch.setenv("YOLO_DEBUG", "1")
    with pytest.raises(ValueError, match="the source"):
        run("weights=a", "source=bad")


def test_a_stop_from_the_keyboard_is_no_traceback(run: Run) -> None:
    assert run("weights=a", "source=stop") == (130, "", "tool.py: stopped\n")


def test_mistakes_of_ours_keep_their_traceback(run: Run) -> None:
    with pytest.raises(KeyError, match="a mistake of ours"):
        run("weights=a", "source=bug")


def test_wrong_choice_of_a_group(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["tool.py", "weights=a", "data=bcd"])
    with pytest.raises(SystemExit) as stop:
        answer("val", "Score.")
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("tool.py: no data=bcd; the nearest is 'data=bccd'")


def test_sweeps_run_one_by_one(run: Run, tmp_path: Path) -> None:
    status, out, _ = run("weights=a", "source=b,c", "name=s", "-m")
    assert status == 0
    assert "ran with a b\n" in out
    assert "ran with a c\n" in out
    assert sorted(path.name for path in (tmp_path / "runs/predict/s").iterdir() if path.is_dir()) == [
        "0",
        "1",
    ]


def test_help(run: Run) -> None:
    status, out, _ = run("--help")
    assert status == 0
    assert out.startswith("Find things.\n")
    assert "example: python tools/predict.py weights=" in out
    assert "  score_threshold: 0.25\n" in out


def test_help_follows_groups() -> None:
    text = describe("val", "Score.", ["metric=darknet", "split=val"])
    assert "metric=darknet|detection" in text
    assert "options of metric=darknet" in text
    assert "  classes: all\n" in text
    assert "  nms: 0.45 # IoU above" in text  # of the file that it builds on
    assert "hydra:" not in text
