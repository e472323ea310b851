"""The frame of every tool: Hydra reads the command line, and what is wrong with it is said in one sentence.

``python tools/val.py weights=best.ckpt data=bccd`` exits with 2 and one line when an option does not exist
(with the nearest one), before anything is read; with 1 and one line when a file or value is wrong
(``YOLO_DEBUG=1`` shows the traceback). ``--help`` lists the groups and every option with its default.

A tool begins with :func:`answer`, above its other imports: torch takes seconds to load, a misspelt option is found in
less than one.
"""

import difflib
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import hydra
from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, InstantiationException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

Task = Callable[[DictConfig], None]
TRUSTED = ("yolo", "albumentations", "pytorch_lightning", "torch.optim", "torch.nn", "torchvision.transforms")


class UsageError(ValueError):
    """The command line asks for something that does not exist."""


def answer(config_name: str, about: str, verbs: Sequence[str] = (), skip: int = 0) -> None:
    """Print ``--help``, or say what is wrong with the command line, and exit; return if the tool may run.

    Args:
        config_name: ``configs/<config_name>.yaml`` has the options.
        about: The tool's docstring.
        verbs: What the first word may be. Hydra knows only options: the word becomes ``verb=...``.
        skip: Words before the options, of a tool that has several configs.
    """
    with _Spoken():
        if verbs:
            sys.argv[1:] = _verb_first(sys.argv[1:], verbs)
        arguments = sys.argv[1 + skip :]
        overrides = [argument for argument in arguments if not argument.startswith("-")]
        if "--help" in arguments or "-h" in arguments:
            sys.stdout.write(describe(config_name, about, overrides))
            sys.exit(0)
        if not any(argument.startswith(("-", "hydra.mode=")) for argument in arguments):
            check(config_name, overrides)  # Hydra's own flags, and a sweep, are its business


def _verb_first(arguments: list[str], verbs: Sequence[str]) -> list[str]:
    """The arguments with the word that stands first as an option."""
    first = (arguments or [""])[0].removeprefix("verb=")
    if first in verbs:
        return [f"verb={first}", *arguments[1:]]
    if first.startswith("-"):
        return arguments
    if first and "=" not in first:
        raise UsageError(f"no {first!r}: the first word is {', '.join(verbs[:-1])} or {verbs[-1]}")
    raise UsageError(f"the first word is {', '.join(verbs[:-1])} or {verbs[-1]} (--help shows examples)")


def main(config_name: str) -> Callable[[Task], Callable[[], None]]:
    """Make a tool of a function that takes the composed config ``configs/<config_name>.yaml``.

    The command line has gone through :func:`answer`.
    """

    def decorate(task: Task) -> Callable[[], None]:
        @functools.wraps(task)
        def guarded(config: DictConfig) -> None:
            with _Spoken(), _as_started_alone():
                check_targets(config)
                task(config)

        @functools.wraps(task)
        def tool() -> None:
            with _Spoken():
                _name_shared_by_ranks()
                os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises, and the words are ours
                hydra.main(version_base="1.3", config_path=str(_folder()), config_name=config_name)(guarded)()

        return tool

    return decorate


class _Spoken(AbstractContextManager["_Spoken", None]):
    """Turns the errors that a user can mend into one line on stderr and an exit status."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or os.environ.get("YOLO_DEBUG", "0") not in ("", "0"):
            return
        if isinstance(error, KeyboardInterrupt):
            self._leave("stopped", 130)
        if isinstance(error, InstantiationException) and error.__cause__ is not None:
            where = re.search(r"full_key: (\S+)", str(error))
            self._leave(f"{f'{where[1]}: ' if where else ''}{_one_line(error.__cause__)}", 1)
        if isinstance(error, UsageError | HydraException | OmegaConfBaseException):
            self._leave(_one_line(error), 2)
        if isinstance(error, ValueError | OSError | ImportError):
            self._leave(_one_line(error), 1)

    @staticmethod
    def _leave(message: str, status: int) -> None:
        sys.stdout.flush()
        sys.stderr.write(f"{Path(sys.argv[0]).name}: {message}\n")
        sys.exit(status)


@contextmanager
def _as_started_alone() -> Iterator[None]:
    """Let a job of a sweep look as if its command line had been given alone.

    Lightning starts the further processes of a run on several GPUs from ``sys.argv`` and ``hydra.run.dir``; each of
    them would otherwise run the whole sweep.
    """
    found = HydraConfig.get()
    if found.mode is not RunMode.MULTIRUN:
        yield
        return
    before = sys.argv
    sys.argv = [before[0], *found.overrides.task]
    hydra_node: Any = found
    with read_write(hydra_node):
        hydra_node.run.dir = found.runtime.output_dir
    try:
        yield
    finally:
        sys.argv = before


def _name_shared_by_ranks() -> None:
    """Name the run folder for the processes of torchrun and srun: each composes its own config, at its own second."""
    environment = os.environ
    if int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        name = f"slurm-{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
    elif "TORCHELASTIC_RUN_ID" in environment:
        given = environment["TORCHELASTIC_RUN_ID"]
        name = f"torchrun-{given if given != 'none' else f'{date.today()}-{os.getppid()}'}"
    else:
        return
    environment.setdefault("YOLO_RUN_NAME", name)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def check(config_name: str, overrides: Sequence[str]) -> None:
    """Raise UsageError unless every override changes an option that exists, to a value of its kind."""
    parsed = [_parse(override) for override in overrides]
    groups = _chosen(config_name)
    for one in parsed:
        if one.key_or_group in groups:
            _check_choice(one)
    base = _compose(config_name, [one.input_line or "" for one in parsed if one.key_or_group in groups])
    for one in parsed:
        if one.key_or_group not in groups:
            _check_one(one, base, groups)
    given = {one.key_or_group for one in parsed} - groups.keys()  # a choice does not give what it leaves open
    missing = [key for key in _keys(base) if _is_missing(base, key) and not _covered(key, given)]
    if missing:
        raise UsageError(
            f"{', '.join(f'{key}=...' for key in sorted(missing))} must be given (--help shows an example)"
        )


def check_targets(config: DictConfig) -> None:
    """Raise UsageError if an object of the config is not one that this package makes.

    A ``_target_`` is a call of anything that Python can import. Classes of the libraries that configs use and
    what is defined in this package are allowed, by where they are defined and not only by their dotted name
    (``yolo.cli.os.system`` is a name, too); YOLO_TRUST names further packages, separated by commas.
    """
    for key, target in _targets(OmegaConf.to_container(config), ""):
        name = OmegaConf.select(config, key) if "${" in str(target) else target
        if not isinstance(name, str) or not _is_trusted(name):
            raise UsageError(
                f"{key}={name} is refused: objects come from {', '.join(TRUSTED)}; "
                f"YOLO_TRUST=package in the environment adds one of yours"
            )


def _targets(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, child in children:
        if name == "_target_":
            yield f"{path}_target_", child
        yield from _targets(child, f"{path}{name}.")


def _is_trusted(name: str) -> bool:
    own = [
        f"{package.strip()}." for package in os.environ.get("YOLO_TRUST", "").split(",") if package.strip()
    ]
    if any(name.startswith(package) for package in own):
        return True
    package = next((package for package in TRUSTED if name.startswith(f"{package}.")), None)
    if package is None:
        return False
    found = hydra.utils.get_object(name)
    if package != "yolo" and not isinstance(found, type):
        return False
    return f"{found.__module__}.".startswith(f"{package}.")


def _parse(override: str) -> Override:
    """One override, or a sentence that shows how to quote it."""
    try:
        return OverridesParser.create().parse_override(override)
    except HydraException as error:
        key, equals, value = override.partition("=")
        if not equals:
            raise UsageError(f"{override!r} is no option: options are written key=value") from error
        escaped = value.strip("'\"").replace("\\", "\\\\").replace("'", "\\'")
        raise UsageError(
            f"the value of {override} needs quotes, for the shell and for Hydra: \"{key}='{escaped}'\""
        ) from error


def _check_choice(override: Override) -> None:
    group, choice = override.key_or_group, override.value()
    known = _choices(group)
    if isinstance(choice, str) and choice not in known:
        raise UsageError(f"no {group}={choice}{_nearest(choice, known, f'{group}=')}")


def _check_one(override: Override, base: DictConfig, groups: Collection[str]) -> None:
    key = override.key_or_group
    if key.startswith("hydra/"):
        return  # a group of Hydra's: it names the choices itself
    if key.startswith("hydra.") or key == "hydra":
        _check_hydra(key)
        return
    known = list(_keys(base))
    if key not in known:
        adds = override.is_add() or override.is_force_add()
        if adds and _takes_keywords(base, key):
            return  # the constructor that reads it refuses what it does not know
        raise UsageError(f"no option {key!r}{_nearest(key, [*known, *groups])}")
    if override.is_delete():
        return
    if override.is_sweep_override():
        value = (override.input_line or "").partition("=")[2]
        raise UsageError(
            f"{key}={value} would be several runs: write {key}=[{value}] for a list, or add --multirun"
        )
    _check_kind(key, OmegaConf.select(base, key, throw_on_missing=False), override.value())


def _check_kind(key: str, before: Any, value: Any) -> None:
    """Numbers stay numbers (or the word auto) and switches stay switches; constructors judge the rest."""
    if isinstance(before, DictConfig) and value is not None and not isinstance(value, dict):
        raise UsageError(f"{key} is a group of options ({', '.join(map(str, before))}), got {value!r}")
    if not isinstance(value, str) or value.startswith("${"):
        return
    if isinstance(before, bool):
        raise UsageError(f"{key} is true or false, got {value!r}")
    if isinstance(before, int | float) and value != "auto":
        raise UsageError(f"{key} is a number (now {before}), got {value!r}")


def _check_hydra(key: str) -> None:
    """Hydra takes unknown keys below ``hydra`` without a word."""
    node: Any = OmegaConf.structured(HydraConf)
    path = "hydra"
    for part in key.split(".")[1:]:
        if not OmegaConf.is_dict(node) or OmegaConf.get_type(node) is dict:
            return  # a free mapping
        names = [str(name) for name in node]
        if part not in names:
            raise UsageError(f"no option '{path}.{part}'{_nearest(part, names, f'{path}.')}")
        node, path = OmegaConf.select(node, part, throw_on_missing=False), f"{path}.{part}"


def _nearest(key: str, known: Sequence[str], prefix: str = "") -> str:
    def likeness(candidate: str) -> float:
        whole = difflib.SequenceMatcher(None, key, candidate).ratio()
        last = difflib.SequenceMatcher(None, key.split(".")[-1], candidate.split(".")[-1]).ratio()
        return max(whole, 0.9 * last)

    best = sorted(known, key=likeness, reverse=True)[:1]
    return f"; the nearest is '{prefix}{best[0]}' (--help lists all)" if best else ""


def _keys(node: DictConfig, prefix: str = "") -> Iterator[str]:
    """Dotted names of every node of a config."""
    for name in node:
        path = f"{prefix}{name!s}"
        yield path
        if OmegaConf.is_missing(node, str(name)) or OmegaConf.is_interpolation(node, str(name)):
            continue
        child = node[name]
        if isinstance(child, DictConfig):
            yield from _keys(child, f"{path}.")
        elif OmegaConf.is_list(child):
            yield from (f"{path}.{index}" for index in range(len(child)))


def _is_missing(base: DictConfig, key: str) -> bool:
    """Whether the value of a dotted key is ``???``; other values may exist only in a run and are not read."""
    above, _, name = key.rpartition(".")
    node = OmegaConf.select(base, above) if above else base
    return isinstance(node, DictConfig) and OmegaConf.is_missing(node, name)


def _takes_keywords(base: DictConfig, key: str) -> bool:
    """Whether the node directly above ``key`` is the arguments of a constructor."""
    above = OmegaConf.select(base, key.rpartition(".")[0]) if "." in key else None
    return isinstance(above, DictConfig) and "_target_" in above


def _covered(key: str, given: set[str]) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in given)


def _folder() -> Path:
    """Where the configs are: beside the package in a source tree, inside it once installed."""
    spec = importlib.util.find_spec("yolo.configs")
    found = list(spec.submodule_search_locations or []) if spec is not None else []
    return Path(found[0]) if found else Path(__file__).resolve().parents[1] / "configs"


def _initialized() -> AbstractContextManager[Any]:
    return hydra.initialize_config_dir(str(_folder()), version_base="1.3")


def _compose(config_name: str, overrides: Sequence[str]) -> DictConfig:
    with _initialized():
        return hydra.compose(config_name, list(overrides))


def _choices(group: str) -> list[str]:
    with _initialized():
        loader = GlobalHydra.instance().config_loader()
        nested = [
            f"{folder}/{name}"
            for folder in loader.list_groups(group)
            for name in loader.get_group_options(f"{group}/{folder}")
        ]
        return sorted([*loader.get_group_options(group), *nested])


def _chosen(config_name: str, overrides: Sequence[str] = ()) -> dict[str, str | None]:
    """The groups of a config and which file of each is taken."""
    with _initialized():
        loader = GlobalHydra.instance().config_loader()
        choices = loader.load_configuration(config_name, list(overrides), RunMode.RUN).hydra.runtime.choices
    return {str(name): choice for name, choice in choices.items() if not str(name).startswith("hydra/")}


def describe(config_name: str, about: str, overrides: Sequence[str] = ()) -> str:
    """The text of ``--help``: every option with its default and what its config says about it."""
    head = [line for line in _read(config_name).splitlines() if line.startswith("#")]
    examples = [line[line.index("python tools/") :] for line in head if "python tools/" in line]
    tool, word = re.match(r"python tools/(\w+)\.py( \w+(?= ))?", examples[0]).groups("")  # type: ignore[union-attr]
    word = " VERB" if "verb:" in _read(config_name) else word
    groups = _chosen(config_name)
    chosen = _chosen(config_name, [one for one in overrides if one.partition("=")[0] in groups])
    lines = [f"{about.partition(': python ')[0].strip()}.", ""]
    lines += [
        f"usage: yolo {tool}{word} [group=choice ...] [option=value ...], or python tools/{tool}.py{word} ..."
    ]
    lines += [f"example: {example}" for example in examples]
    if groups:
        lines += ["", "groups"] + [f"  {group}={'|'.join(_choices(group))}" for group in sorted(groups)]
    lines += ["", "options"] + [f"  {line}" for line in _options(config_name)]
    for group, choice in sorted(chosen.items()):
        if choice is not None:
            lines += ["", f"options of {group}={choice}, written {group}.option=value"]
            lines += [f"  {line}" for line in _options(f"{group}/{choice}")]
    lines += [
        "",
        "YOLO_DEBUG=1 shows tracebacks; --cfg job prints the composed config; --hydra-help: Hydra's flags",
    ]
    return "\n".join(lines) + "\n"


def _read(name: str) -> str:
    return (_folder() / f"{name}.yaml").read_text("utf-8")


def _options(name: str) -> Iterator[str]:
    """The lines of a config that set options, those of the files that it builds on first."""
    text = _read(name)
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
