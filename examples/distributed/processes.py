"""Processes of an example: a function of a rank in each, and their results."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from typing import Any


def run(ranks: int, body: Callable[..., Any], *args: Any, seconds: float = 300.0) -> list[Any]:
    """Call `body(rank, *args)` in so many processes; results by rank. An error of one is raised here."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
    processes = [context.Process(target=_rank, args=(pipes[r][1], body, r, args), daemon=True) for r in range(ranks)]
    for process in processes:
        process.start()
    try:
        results = []
        for r, (receive, _) in enumerate(pipes):
            if not receive.poll(seconds):
                raise TimeoutError(f"rank {r} takes longer than {seconds:g} s")
            kind, value = receive.recv()
            if kind == "error":
                raise RuntimeError(f"rank {r}: {value}")
            results.append(value)
        return results
    finally:
        for process in processes:
            process.join(2)
            process.kill()


def _rank(send: Any, body: Callable[..., Any], rank: int, args: tuple[Any, ...]) -> None:
    try:
        send.send(("value", body(rank, *args)))
    except BaseException:
        send.send(("error", traceback.format_exc()))
