"""The frame of every tool: Hydra reads the command line, and what is wrong with it is said in one sentence.

``python tools/val.py weights=best.ckpt data=bccd`` exits with 2 and one line when an option does not exist
(with the nearest one), before anything is read; with 1 and one line when a file or value is wrong
(``YOLO_DEBUG=1`` shows the traceback). ``--help`` lists the groups and every option with its default.

A tool begins with :func:`answer`, above its other imports: torch takes seconds to load, a misspelt option is found in
less than one.
"""

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException
from hydra.types import RunMode
from omegaconf import DictConfig, read_write
from omegaconf.errors import OmegaConfBaseException

from yolo.cli.check import UsageError, check
from yolo.cli.configs import folder
from yolo.cli.help import describe
from yolo.cli.trust import check_targets

__all__ = ["UsageError", "answer", "check", "check_targets", "describe", "main"]

Task = Callable[[DictConfig], None]


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
                hydra.main(version_base="1.3", config_path=str(folder()), config_name=config_name)(guarded)()

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
