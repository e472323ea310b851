"""Processes that talk over gloo on the CPU."""

import os
import socket
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _enter(rank: int, work: Callable[..., None], world: int, port: int, arguments: tuple) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    work(rank, *arguments)
    dist.destroy_process_group()


def ranks(work: Callable[..., None], *arguments: object, world: int = 2) -> None:
    """Run ``work(rank, *arguments)`` in ``world`` fresh processes of one group; an error in one is raised here."""
    mp.start_processes(_enter, (work, world, free_port(), arguments), nprocs=world, start_method="spawn")
