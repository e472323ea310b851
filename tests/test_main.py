"""`yolo TOOL` is tools/TOOL.py."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from setuptools import Distribution
from setuptools.config.pyprojecttoml import apply_configuration

from yolo import __main__ as console

ROOT = Path(__file__).parent.parent
NAMES = sorted(path.stem for path in (ROOT / "tools").glob("*.py"))
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run `yolo` with arguments; gives exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["yolo", *arguments])
        status = 0
        try:
            console.main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_every_tool_is_there_and_explains_itself(run: Run) -> None:
    status, out, _ = run()
    assert (status, sorted(console.tools())) == (0, NAMES)
    for name in NAMES:
        assert re.search(rf"^  {name} +\S+ \S+", out, re.MULTILINE), name


def test_the_file_of_the_tool_is_run(run: Run) -> None:
    """Processes that Lightning or Hydra start for a run start sys.argv[0] again."""
    status, _, err = run("darknet", "info", "cfg=nowhere.cfg")
    assert (status, sys.argv[0]) == (1, str(ROOT / "tools/darknet.py"))
    assert err.startswith("darknet.py: ")
    assert "nowhere.cfg" in err


def test_no_such_tool(run: Run) -> None:
    message = "yolo: no tool 'trian'; the nearest is 'train' (yolo --help lists all)\n"
    assert run("trian") == (2, "", message)


@pytest.mark.parametrize("name", NAMES)
def test_help_has_groups_defaults_and_an_example(name: str, run: Run) -> None:
    status, out, err = run(name, *(["model"] if name == "benchmark" else []), "--help")
    assert (status, err) == (0, "")
    assert f"python tools/{name}.py " in out.partition("example")[2]
    assert "options" in out


def test_mistakes_and_help_do_not_wait_for_torch(tmp_path: Path) -> None:
    """A misspelt option of any tool is named at once, not after the seconds that torch takes to load."""
    calls = [[name, *(["train"] if name == "benchmark" else [])] for name in NAMES]
    work = f"""
import sys
from yolo import __main__ as console
for call in {calls!r}:
    for wrong in ("--help", "nonsense=1"):
        sys.argv = ["yolo", *call, wrong]
        try:
            console.main()
        except SystemExit as stop:
            assert stop.code == (0 if wrong == "--help" else 2), (call, wrong, stop.code)
        assert "torch" not in sys.modules and "cv2" not in sys.modules, call
"""
    done = subprocess.run(
        [sys.executable, "-c", work], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [name for name in NAMES if f"{name}.py: " not in done.stderr] == []


@pytest.mark.filterwarnings("ignore::UserWarning")  # setuptools: folders of YAML look like packages
def test_an_installation_has_the_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes into a wheel, without compiling anything."""
    monkeypatch.chdir(ROOT)
    project = Distribution({"script_name": "setup.py"})
    apply_configuration(project, "pyproject.toml")
    build = project.get_command_obj("build_py")
    build.build_lib = str(tmp_path)
    build.ensure_finalized()
    build.run()
    monkeypatch.setattr(console, "FOLDERS", (tmp_path / "yolo/tools",))
    assert sorted(console.tools()) == NAMES
    assert (tmp_path / "yolo/configs/train.yaml").is_file()
