"""`tilewright publish`: publishes weights to a node's store, once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.common import (
    JsonOption,
    PackThreadsOption,
    TargetOption,
    bytes_text,
    facts,
    is_quiet,
    print_json,
    time_text,
)
from tilewright.cli.inputs import read_weights
from tilewright.cli.models import ModelArgument, open_model
from tilewright.support import flags
from tilewright.support.progress import progress

if TYPE_CHECKING:
    from tilewright.live.store import Publisher

StoreName = Annotated[
    str, typer.Argument(metavar="NAME", help="The store's name, such as `policy`.", show_default=False)
]
DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--directory",
        metavar="DIR",
        help="Where stores stand. [default: TILEWRIGHT_STORE_DIR or /dev/shm/tilewright-UID]",
        show_default=False,
    ),
]


def publish(
    name: StoreName,
    model: ModelArgument,
    weights: Annotated[
        Path | None,
        typer.Option("--weights", "-w", metavar="FILE", help="Weights in place of the model's: .safetensors or .npz."),
    ] = None,
    version: Annotated[
        int | None, typer.Option("--version", "-n", min=0, help="Their version. [default: one more than the newest]")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Take a version that does not grow: actors go back to it.")
    ] = False,
    nan: Annotated[bool, typer.Option("--allow-nan", help="Take weights with NaN or infinity.")] = False,
    wait: Annotated[
        float, typer.Option("--wait", min=0.0, metavar="SECONDS", help="Stand by for another publisher to go.")
    ] = 0.0,
    directory: DirectoryOption = None,
    threads: PackThreadsOption = None,
    target: TargetOption = None,
    json: JsonOption = False,
) -> None:
    """Publish a model's weights, once, for all actors of this node.

    The first publish makes the store: from then on any process attaches with `tilewright.attach("NAME")`. Later ones
    bring new weights to actors while they run; a model of another structure replaces the program as well, and actors
    follow between two calls. Weights are checked as a whole (names, shapes, types, no NaN): if anything is wrong,
    nothing changes.

    ```
    tilewright publish policy policy.tw
    tilewright publish policy policy.tw --weights new.safetensors --version 1000
    tilewright publish policy old.tw --version 9 --force
    ```
    """
    from tilewright.live.store import Publisher

    with progress(f"open {model.name}", enabled=not is_quiet(json)):
        opened = open_model(model, 1, {}, target=target)
        if weights or version is not None:
            # Checked before anything is made; a new store begins with exactly these.
            inputs = read_weights(weights) if weights else opened.weights
            grows = version is not None and version > opened.version
            opened.update(inputs, version=version if grows else None, finite=not nan)
    count = flags.THREADS() if threads is None else threads
    start = time.perf_counter()
    with (
        progress(f"publish {name}", enabled=not is_quiet(json)),
        Publisher(name, opened, directory=directory, wait=wait, threads=count) as publisher,
    ):
        created = _first(publisher)
        if not (created and version in (None, publisher.version)):
            publisher.publish(opened.weights, version=version, force=force, finite=not nan)
        report = _report(publisher, created, time.perf_counter() - start)
    if json:
        print_json(report)
        return
    facts(
        {
            "store": f"{name}{' (new)' if created else ''}",
            "version": report["version"],
            "weights": f"{len(opened.params)} ({bytes_text(sum(a.nbytes for a in opened.weights.values()))})",
            "published in": time_text(report["seconds"]),
        }
    )


def _first(publisher: Publisher) -> bool:
    """Whether opening the publisher already published the model's weights, since it created the store or changed its
    program."""
    return bool(publisher.stats()["published"])


def _report(publisher: Publisher, created: bool, seconds: float) -> dict[str, Any]:
    return {"version": publisher.version, "made": created, "seconds": seconds, **publisher.stats()}
