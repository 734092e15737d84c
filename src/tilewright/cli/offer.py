"""`tilewright offer`: offers a model's code and weights to the nodes that run `tilewright relay`."""

from __future__ import annotations

import os
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.common import JsonOption, TargetOption, bytes_text, err, facts, is_quiet, out, print_line
from tilewright.cli.inputs import read_weights
from tilewright.cli.models import ModelArgument, open_model
from tilewright.support.errors import Error, TransportError, WeightError
from tilewright.support.progress import progress

if TYPE_CHECKING:
    from tilewright.live.transport.serve import WeightServer

SECRET = "TILEWRIGHT_SECRET"

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="What nodes ask for, such as `policy`.", show_default=False)
]
SecretOption = Annotated[
    Path | None,
    typer.Option(
        "--secret-file",
        metavar="FILE",
        help=f"A file with the secret that learner and nodes share. [default: what {SECRET} holds, if it is set]",
        show_default=False,
    ),
]
TrustOption = Annotated[bool, typer.Option("--trust", help="Do without secret and TLS beyond this machine.")]
SecondsOption = Annotated[float | None, typer.Option("--seconds", min=0.0, help="End after so long.")]
_POLL = 0.1
"""Seconds between two checks of a server's progress."""


def offer(
    name: NameArgument,
    model: ModelArgument,
    watch: Annotated[
        Path | None,
        typer.Option("--watch", "-w", metavar="FILE", help="Publish this .safetensors or .npz whenever it changes."),
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 is on all networks.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 7070,
    secret_file: SecretOption = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", metavar="PEM", help="Speak TLS with this certificate and key.")
    ] = None,
    trust: TrustOption = False,
    seconds: SecondsOption = None,
    target: TargetOption = None,
    json: JsonOption = False,
) -> None:
    """Offer a model to other nodes: its code once, its weights whenever they change.

    On each node `tilewright relay` fetches what is new and packs it into the node's store, where any number of actors
    read it with `tilewright.attach("NAME")`. A learner in Python calls `tilewright.serve_weights` instead; one in any
    other language writes its weights to a file beside the watched one and renames it.

    ```
    python -c "import secrets; print(secrets.token_hex(32))" > secret
    tilewright offer policy policy.tw --secret-file secret --watch w.safetensors
    ```
    """
    import tilewright

    secret = read_secret(secret_file)
    tls = None
    if certificate:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        load_pem(lambda: tls.load_cert_chain(certificate), certificate)
    with progress(f"open {model.name}", enabled=not is_quiet(json)):
        opened = open_model(model, None, {}, target=target)
        if watch and watch.exists():
            opened.update(read_weights(watch))
    with tilewright.serve_weights(name, opened, host=host, port=port, secret=secret, tls=tls, trust=trust) as server:
        if json:
            print_line({"serving": server.address, "version": server.version})
        else:
            facts({"serving": server.address, "version": server.version, "watching": watch or "-"})
        _loop(server, watch, seconds, json)


def _loop(server: WeightServer, watch: Path | None, seconds: float | None, json: bool) -> None:
    deadline = None if seconds is None else time.monotonic() + seconds
    seen = _state(watch)
    while deadline is None or time.monotonic() < deadline:
        time.sleep(_POLL)
        result = _state(watch)
        if watch is None or result is None or result == seen:
            continue
        seen = result
        start = time.perf_counter()
        try:
            version = server.publish(read_weights(watch))
        except WeightError as error:
            # The learner may still be writing, or may write better ones next time.
            report_line(error, json)
            continue
        report = {"version": version, "seconds": time.perf_counter() - start, **server.stats()}
        if json:
            print_line(report)
        else:
            sent = bytes_text(report["bytes_sent"])
            out.print(f"version {version}: offered to {report['connections']} nodes; {sent} sent so far")


def _state(path: Path | None) -> tuple[int, int, int] | None:
    """(inode, size, time of modification in ns) of a file, by which a change is noticed; None if there is no file."""
    if path is None:
        return None
    try:
        result = os.stat(path)
    except FileNotFoundError:
        return None
    return result.st_ino, result.st_size, result.st_mtime_ns


def read_secret(path: Path | None) -> str | None:
    """The secret in a file, or in the environment; None if there is neither."""
    if path is None:
        return os.environ.get(SECRET) or None
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TransportError(f"the secret cannot be read: {error}", where=str(path)) from None


def load_pem(load: Any, path: Path) -> None:
    """Call `load`; an error names the file if its contents are invalid for TLS."""
    try:
        load()
    except (OSError, ssl.SSLError) as error:
        raise TransportError(f"cannot be used for TLS: {error}", where=str(path)) from None


def report_line(error: Error, json: bool) -> None:
    """Report an error without ending the program."""
    if json:
        print_line(error.to_dict())
    else:
        err.print(str(error), style="red")
