"""All tools under one name: ``yolo train data=bccd`` is ``python tools/train.py data=bccd``.

Also ``python -m yolo``. The tool's own file is run as it stands, so both are the same code.
"""

import ast
import difflib
import runpy
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent
FOLDERS = (PACKAGE / "tools", PACKAGE.parent / "tools")  # in an installation; in a source tree


def tools() -> dict[str, Path]:
    """The file of every tool by its name."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[0])
    return {path.stem: path for path in sorted(folder.glob("[a-z]*.py"))}


def main() -> None:
    """Run the tool that the first word names."""
    found = tools()
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        sys.stdout.write(_overview(found))
        return
    if name not in found:
        near = difflib.get_close_matches(name, found, 1, 0.0)
        sys.stderr.write(f"yolo: no tool {name!r}; the nearest is {near[0]!r} (yolo --help lists all)\n")
        sys.exit(2)
    sys.argv[:2] = [str(found[name])]  # what starts more processes of a run starts the tool's file
    sys.path.insert(0, str(found[name].parent))  # as for a script: a tool may use another
    runpy.run_path(str(found[name]), run_name="__main__")


def _overview(found: dict[str, Path]) -> str:
    lines = ["usage: yolo TOOL [option=value ...]", "example: yolo train model=yolov3 data=bccd", ""]
    for name, path in found.items():
        about = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        lines.append(f"  {name:10} {about.splitlines()[0].partition(': ')[0].rstrip('.')}")
    lines += ["", "yolo TOOL --help lists the options of a tool with their defaults and an example"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
