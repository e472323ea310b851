"""YAML read as text: no types, no tags, no code; for data files that come from anywhere."""

from pathlib import Path

import yaml  # type: ignore[import-untyped]

from yolo.data.formats.text import check_kind, read_names, read_text
from yolo.looks import JSON, PLAIN, YAML

Plain = str | list["Plain"] | dict[str, "Plain"]

_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))
_DEPTH = 20


def read_plain_yaml(path: str | Path) -> dict[str, Plain]:
    """A mapping in which every scalar is the text that stands in the file: ``no`` is "no", ``007`` is "007".

    Raises:
        ValueError: It is not YAML, not a mapping, or uses a tag (``!!python/...``, ``!include``).
    """
    text = read_text(path)
    check_kind(path, text, YAML, YAML, PLAIN, JSON)  # JSON is YAML as well
    try:
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise ValueError(f"{path}:{line}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ValueError(f"{path}: not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"{path}: wanted a mapping with train, val and names")
    value = _plain(root, path, {}, 0)
    assert isinstance(value, dict)
    return value


def _plain(node: yaml.Node, path: str | Path, done: dict[int, Plain], depth: int) -> Plain:
    line = node.start_mark.line + 1
    if node.tag not in _TAGS:
        raise ValueError(f"{path}:{line}: the YAML tag {node.tag!r} is refused, a data file holds only text")
    if depth > _DEPTH:
        raise ValueError(f"{path}:{line}: nested more than {_DEPTH} deep")
    if id(node) in done:  # an alias: the same object again, so that a small file stays small
        return done[id(node)]
    value: Plain
    if isinstance(node, yaml.ScalarNode):
        value = node.value
    elif isinstance(node, yaml.SequenceNode):
        value = [_plain(child, path, done, depth + 1) for child in node.value]
    else:
        value = {}
        for key, child in node.value:
            name = _plain(key, path, done, depth + 1)
            if not isinstance(name, str):
                raise ValueError(f"{path}:{key.start_mark.line + 1}: a key must be text")
            if name in value:
                raise ValueError(f"{path}:{key.start_mark.line + 1}: the key {name!r} stands there twice")
            value[name] = _plain(child, path, done, depth + 1)
    done[id(node)] = value
    return value


def names_of(value: Plain | None, path: str | Path) -> list[str]:
    """The class names of a data file: a list, or a mapping from 0, 1, 2 ... to names.

    Raises:
        ValueError: It is neither, or ids are missing.
    """
    if isinstance(value, dict):
        try:
            numbered = {int(key): name for key, name in value.items()}
        except ValueError as error:
            raise ValueError(f"{path}: the keys of names must be class ids, got {sorted(value)}") from error
        if sorted(numbered) != list(range(len(numbered))):
            raise ValueError(f"{path}: class ids must be 0 to {len(numbered) - 1}, got {sorted(numbered)}")
        value = [numbered[number] for number in range(len(numbered))]
    if not isinstance(value, list) or not value:
        raise ValueError(f"{path}: names must list the classes")
    names = [name for name in value if isinstance(name, str)]
    if len(names) != len(value):
        raise ValueError(f"{path}: names must be text")
    return names


def class_names(path: str | Path) -> list[str]:
    """The class names of a file: one a line, or under ``names`` of a YAML file.

    Raises:
        ValueError: The file is missing, is no list of names, or has none.
    """
    if Path(path).suffix.lower() in (".yaml", ".yml"):
        return names_of(read_plain_yaml(path).get("names"), path)
    return read_names(path)
