"""`tilewright relay`: keeps a store of this node up to date with a learner's weights."""

from __future__ import annotations

import signal
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.common import Exit, JsonOption, PackThreadsOption, bytes_text, out, print_line
from tilewright.cli.offer import SecondsOption, SecretOption, TrustOption, load_pem, read_secret, report_line
from tilewright.cli.publish import DirectoryOption
from tilewright.support import flags

if TYPE_CHECKING:
    from tilewright.live.transport.relay import Relay

_POLL = 0.05
"""Seconds between two checks of a relay's progress."""


def relay(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="tcp://HOST:PORT/NAME of the learner.", show_default=False)
    ],
    name: Annotated[str | None, typer.Option("--name", help="Of the store here. [default: the NAME there]")] = None,
    secret_file: SecretOption = None,
    ca: Annotated[
        Path | None, typer.Option("--ca", metavar="PEM", help="Speak TLS; the certificates to trust.")
    ] = None,
    trust: TrustOption = False,
    until: Annotated[
        int | None, typer.Option("--until", min=0, metavar="VERSION", help="End when the store has this version.")
    ] = None,
    seconds: SecondsOption = None,
    directory: DirectoryOption = None,
    threads: PackThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Fetch a learner's weights, and its program when that changes, into a store of this node, until interrupted.

    Actors on this node run `tilewright.attach("NAME")` and know nothing of the network. Weights come once to the node
    and are packed once. One relay per store works, others stand by; if the connection breaks it is made again and goes
    on where it was, and actors keep the last version meanwhile. The program is native code: it is taken from a learner
    that a secret or TLS authenticates, or that is on this machine. Exit code 1 if --seconds are over before --until.

    ```
    tilewright relay tcp://learner:7070/policy --secret-file secret
    tilewright relay tcp://learner:7070/policy --ca ca.pem --until 1000
    ```
    """
    import tilewright

    secret = read_secret(secret_file)
    tls = None
    if ca:
        tls = ssl.create_default_context()
        load_pem(lambda: tls.load_verify_locations(ca), ca)
    count = flags.THREADS() if threads is None else threads
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with tilewright.relay(
            address, name=name, secret=secret, tls=tls, trust=trust, directory=directory, threads=count
        ) as working:
            done = _follow(working, until, seconds, json)
    finally:
        signal.signal(signal.SIGTERM, before)
    if not done:
        raise typer.Exit(Exit.ERROR)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _follow(working: Relay, until: int | None, seconds: float | None, json: bool) -> bool:
    """Show each version that arrives, for at most `seconds`; returns True once the store has version `until`. Without
    `until`, it returns True after `seconds`."""
    deadline = None if seconds is None else time.monotonic() + seconds
    published, error = 0, None
    while True:
        deferred = deadline is not None and time.monotonic() >= deadline
        if working.error is not None and str(working.error) != error:
            report_line(working.error, json)
        error = str(working.error) if working.error is not None else None
        stats = working.stats()
        if stats["published"] != published:
            published = stats["published"]
            if json:
                print_line(stats)
            else:
                out.print(f"version {stats['version']}; {bytes_text(stats['bytes_received'])} received so far")
        if until is not None and stats["version"] >= until:
            return True
        if deferred:
            return until is None
        time.sleep(_POLL)
