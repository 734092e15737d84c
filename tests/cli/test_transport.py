"""Weights across nodes on the command line: offer and relay."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import tilewright as tw
from tilewright.support.errors import StoreError

from .conftest import Cli

SECRET = "a secret of more than sixteen bytes"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@pytest.mark.parametrize("command", ["offer", "relay"])
def test_help_teaches(cli: Cli, command: str) -> None:
    code, page, _ = cli(command, "--help")
    assert code == 0
    assert f"tilewright {command} " in page
    assert "--secret-file" in page


def test_wrong_usage(cli: Cli, program: Path, tmp_path: Path) -> None:
    assert cli("relay")[0] == 2
    assert cli("offer", "policy")[0] == 2
    code, _, err = cli("relay", "http://somewhere/policy")
    assert code == 1 and "tcp://HOST:PORT/NAME" in err
    (tmp_path / "short").write_text("short\n")
    for arguments, text in (
        (["offer", "policy", program, "--secret-file", tmp_path / "short"], "too short"),
        (["offer", "policy", program, "--secret-file", tmp_path / "missing"], "cannot be read"),
        (["offer", "policy", program, "--host", "0.0.0.0"], "open to the network"),
        (["offer", "policy", program, "--certificate", program], "cannot be used for TLS"),
        (["relay", "tcp://127.0.0.1:1/policy", "--ca", program], "cannot be used for TLS"),
    ):
        code, _, err = cli(*arguments, "--seconds", "0")
        assert code == 1 and text in err


def test_relay_says_what_is_wrong(cli: Cli, root: Path) -> None:
    code, page, _ = cli("relay", "tcp://127.0.0.1:1/policy", "--until", 1, "--seconds", 0.3, "--json")
    assert code == 1
    assert "cannot connect" in json.loads(page.splitlines()[0])["what"]


def test_a_relay_that_fails_leaves_the_signal_to_the_process(
    cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that runs inside of another program must not take its SIGTERM with it."""

    def refuse(*_: object, **__: object) -> None:
        raise StoreError("no store here")

    monkeypatch.setattr(tw, "relay", refuse)
    before = signal.getsignal(signal.SIGTERM)
    assert cli("relay", "tcp://127.0.0.1:1/policy")[0] == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_offer_and_relay(cli: Cli, program: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that changes on one side reaches an actor on the other; a damaged one is told and left out."""
    monkeypatch.setenv("TILEWRIGHT_SECRET", SECRET)
    port = free_port()
    newest = tmp_path / "newest.safetensors"
    command = [sys.executable, "-m", "tilewright.cli", "offer", "policy", str(program), "--watch", str(newest)]
    weights = tw.load(program).weights
    with subprocess.Popen([*command, "--port", str(port), "--json"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline())["version"] == 0

            def write() -> None:
                deadline = time.monotonic() + 60
                while not (root / "policy" / "current").exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
                save_file({name: np.zeros_like(array) for name, array in weights.items()}, tmp_path / "next")
                os.replace(tmp_path / "next", newest)

            thread = threading.Thread(target=write)
            thread.start()
            code, page, _ = cli("relay", f"tcp://127.0.0.1:{port}/policy", "--until", 1, "--seconds", 60, "--json")
            thread.join()
            assert code == 0
            assert [json.loads(line)["version"] for line in page.splitlines()][-1] == 1
            assert json.loads(process.stdout.readline())["version"] == 1
            with tw.attach("policy") as actor:
                assert actor.version == 1 and (actor(np.ones((2, 4), np.float32)) == 0).all()
            newest.write_bytes(b"not weights")
            assert "is no safetensors file" in json.loads(process.stdout.readline())["what"]
            assert process.poll() is None
        finally:
            process.terminate()


def test_relay_ends_when_told(program: Path, root: Path) -> None:
    """SIGTERM ends it cleanly; the store stays."""
    with tw.serve_weights("policy", tw.load(program)) as server:
        command = [sys.executable, "-m", "tilewright.cli", "relay", server.address, "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["version"] == 0
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 130
    with tw.attach("policy") as actor:
        assert actor.version == 0
    with pytest.raises(StoreError):
        tw.attach("another")
