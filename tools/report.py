"""Compare runs: python tools/report.py compare runs/train/a runs/train/b [--output compare.html]."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from yaml import YAMLError

if TYPE_CHECKING:  # --help and mistakes do not wait for the drawing libraries: imported where they are used
    from yolo.report.compare import Run

EXAMPLE = "example: python tools/report.py compare runs/train/* runs/val/demo --output compare.html"


def config_of(folder: Path) -> dict[str, Any]:
    """The configuration that Hydra wrote down for a run; empty if there is none."""
    path = folder / ".hydra" / "config.yaml"
    if not path.is_file():
        return {}
    try:
        config = OmegaConf.to_container(OmegaConf.load(path))
    except (OmegaConfBaseException, YAMLError) as error:
        raise ValueError(f"{path}: not a configuration that can be read ({error})") from error
    return {str(key): value for key, value in config.items()} if isinstance(config, dict) else {}


def read_runs(folders: list[Path]) -> "list[Run]":
    """The runs, named by what their paths do not share."""
    from yolo.report.compare import read_run

    whole = [folder.resolve() for folder in folders]
    if len(set(whole)) < len(whole):
        raise ValueError("a run is named twice")
    shared = Path(os.path.commonpath([folder.parent for folder in whole]))
    return [read_run(one, config_of(one), str(one.relative_to(shared))) for one in whole]


def compare(args: argparse.Namespace) -> None:
    """Print the tables and write the page."""
    from yolo.report.compare import compare_report, compare_tables

    runs = read_runs(args.runs)
    console = Console()
    console.width = max(console.width, 100)  # what the columns need; a log file has no width of its own
    console.print(*compare_tables(runs), sep="\n")
    page = compare_report(runs, args.output)
    console.print(f"written: {page}, its plots in {page.parent / 'report'}", highlight=False, markup=False)


def main(arguments: list[str] | None = None) -> None:
    """Parse and call."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("compare", help="tables of results and options, and curves", epilog=EXAMPLE)
    one.add_argument("runs", nargs="+", type=Path, help="run folders, of training and of evaluation")
    one.add_argument(
        "--output", type=Path, default=Path("compare.html"), help="the page (default: compare.html)"
    )
    one.set_defaults(call=compare)
    args = parser.parse_args(arguments)
    try:
        args.call(args)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"report.py: {' '.join(str(error).split())}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
