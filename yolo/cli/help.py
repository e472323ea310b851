"""The text of ``--help``."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from yolo.cli.configs import choices, chosen, read


def describe(config_name: str, about: str, overrides: Sequence[str] = ()) -> str:
    """The text of ``--help``: every option with its default and what its config says about it."""
    head = [line for line in read(config_name).splitlines() if line.startswith("#")]
    examples = [line[line.index("python tools/") :] for line in head if "python tools/" in line]
    tool, word = re.match(r"python tools/(\w+)\.py( \w+(?= ))?", examples[0]).groups("")  # type: ignore[union-attr]
    word = " VERB" if "verb:" in read(config_name) else word
    groups = chosen(config_name)
    taken = chosen(config_name, [one for one in overrides if one.partition("=")[0] in groups])
    lines = [f"{about.partition(': python ')[0].strip()}.", ""]
    lines += [
        f"usage: yolo {tool}{word} [group=choice ...] [option=value ...], or python tools/{tool}.py{word} ..."
    ]
    lines += [f"example: {example}" for example in examples]
    if groups:
        lines += ["", "groups"] + [f"  {group}={'|'.join(choices(group))}" for group in sorted(groups)]
    lines += ["", "options"] + [f"  {line}" for line in _options(config_name)]
    for group, choice in sorted(taken.items()):
        if choice is not None:
            lines += ["", f"options of {group}={choice}, written {group}.option=value"]
            lines += [f"  {line}" for line in _options(f"{group}/{choice}")]
    lines += [
        "",
        "YOLO_DEBUG=1 shows tracebacks; --cfg job prints the composed config; --hydra-help: Hydra's flags",
    ]
    return "\n".join(lines) + "\n"


def _options(name: str) -> Iterator[str]:
    """The lines of a config that set options, those of the files that it builds on first."""
    text = read(name)
    parents: Any = OmegaConf.select(OmegaConf.create(text), "defaults") or []
    for parent in parents:
        if isinstance(parent, str) and parent != "_self_":
            yield from _options(str(Path(name).parent / parent))
    skipping = True  # the comment at the head
    for line in text.splitlines():
        if line and not line[0].isspace():
            skipping = line.startswith(
                ("#", "defaults:", "hydra:", "- ", "_target_:", "_partial_:", "}", "]")
            )
        if line.strip() and not skipping:
            yield line
