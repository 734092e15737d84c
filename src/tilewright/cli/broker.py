"""`tilewright broker`: runs the requests of this node's agents as batches."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.common import JsonOption, ThreadsOption, facts, out, print_line
from tilewright.cli.offer import SecondsOption
from tilewright.cli.publish import DirectoryOption, StoreName
from tilewright.support import flags

if TYPE_CHECKING:
    from tilewright.live.broker.server import Broker, BrokerStats

_REPORT_SECONDS = 1.0
"""Seconds between two reports."""


def broker(
    name: StoreName,
    max_batch: Annotated[int, typer.Option("--max-batch", min=1, help="Most rows of a batch.")] = 32,
    max_wait: Annotated[
        float, typer.Option("--max-wait", min=0.0, metavar="US", help="Microseconds that a request waits for others.")
    ] = 200.0,
    agents: Annotated[int, typer.Option("--agents", min=1, help="Most agents at once.")] = 64,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Most rows of a request.")] = 8,
    lanes: Annotated[
        int | None,
        typer.Option(
            "--lanes", min=1, help="Batches in flight at once. [default: a quarter of the cores, two at least]"
        ),
    ] = None,
    wait: Annotated[float, typer.Option("--wait", min=0.0, help="Seconds to stand by for another broker to go.")] = 0.0,
    timeout: Annotated[float, typer.Option("--timeout", min=0.0, help="Seconds to wait for the store.")] = 0.0,
    seconds: SecondsOption = None,
    directory: DirectoryOption = None,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Compute the requests of this node's agents in batches, until interrupted.

    Agents call `tilewright.BrokerClient("NAME")` where they would call `tilewright.attach("NAME")`. It is worth it for
    policies whose time at batch 1 goes into reading large dense layers, and for many agents; docs/broker.md has
    measurements. Weights are the store's: each batch uses the newest version.

    ```
    tilewright broker policy --max-batch 32 --max-wait 200
    ```
    """
    import tilewright

    count = flags.THREADS() if threads is None else threads
    with tilewright.Broker(
        name, max_batch=max_batch, max_wait=max_wait * 1e-6, agents=agents, rows=rows, lanes=lanes, threads=count,
        directory=directory, wait=wait, timeout=timeout,
    ) as server:  # fmt: skip
        server.start()
        if json:
            print_line({"serving": name, "lanes": server.lanes})
        else:
            facts({"serving": name, "batches": f"up to {max_batch} rows, {server.lanes} at once", "agents": agents})
        _watch(server, seconds, json)


def _watch(server: Broker, seconds: float | None, json: bool) -> None:
    deadline = None if seconds is None else time.monotonic() + seconds
    before = replace(server.stats(), requests=0, rows=0, batches=0, elapsed=0.0)  # agents may have been quick
    while server.is_serving and (deadline is None or time.monotonic() < deadline):
        left = _REPORT_SECONDS if deadline is None else min(_REPORT_SECONDS, deadline - time.monotonic())
        server.join(left)
        now = server.stats()
        if now.requests != before.requests or now.agents != before.agents:
            _report(before, now, json)
            before = now
    server.check()


def _report(before: BrokerStats, now: BrokerStats, json: bool) -> None:
    took = now.elapsed - before.elapsed
    requests, rows, batches = now.requests - before.requests, now.rows - before.rows, now.batches - before.batches
    if json:
        print_line({**asdict(now), "requests_per_second": requests / took})
        return
    each = rows / batches if batches else 0.0
    out.print(f"{now.agents} agents, {requests / took:.0f} calls/s, {each:.1f} rows a batch")
