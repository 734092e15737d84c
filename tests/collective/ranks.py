"""Groups of processes for tests: a function of this rank's group runs in each of them."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tilewright.collective.group import Group, join


def run_ranks(ranks: int, folder: Path, body: Callable[..., Any], *args: Any, timeout: float = 60.0) -> list[Any]:
    """Call `body(group, *args)` in several processes and return its results by rank; their errors are raised here."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
    processes = [
        context.Process(target=_rank, args=(send, r, ranks, folder, body, args, timeout), daemon=True)
        for r, (_, send) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for _, send in pipes:
        send.close()
    results = []
    for receive, _ in pipes:
        try:
            results.append(receive.recv() if receive.poll(timeout + 60) else ("error", "it did not end"))
        except EOFError:
            results.append(("died", None))
    for process in processes:
        process.join(5)
        process.kill()
    wrong = [text for kind, text in results if kind == "error"]
    assert not wrong, "\n".join(map(str, wrong))
    return [value for _, value in results]


def _rank(
    send: Any, rank: int, ranks: int, folder: Path, body: Callable[..., Any], args: Sequence[Any], timeout: float
) -> None:
    try:
        with join("test", rank, ranks, timeout=timeout, directory=folder) as group:
            send.send(("value", body(group, *args)))
    except BaseException:
        send.send(("error", traceback.format_exc()))


def in_threads(ranks: int, folder: Path, body: Callable[[Group], Any], timeout: float = 30.0) -> list[Any]:
    """Call `body(group)` on several ranks that are threads of this process, and return its results by rank."""
    from concurrent.futures import ThreadPoolExecutor

    def one(rank: int) -> Any:
        with join("test", rank, ranks, timeout=timeout, directory=folder) as group:
            return body(group)

    with ThreadPoolExecutor(ranks) as pool:
        return [future.result() for future in [pool.submit(one, rank) for rank in range(ranks)]]
