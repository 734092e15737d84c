"""`tilewright serve` and `tilewright bench-serve` in processes of their own; the old use of `serve`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw

from .conftest import Cli


@contextmanager
def serving(*arguments: object) -> Iterator[dict[str, Any]]:
    """A server that runs, and what it says of itself; SIGTERM must end it in order."""
    command = [sys.executable, "-m", "tilewright.cli", "serve", *map(str, arguments), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def test_a_model_and_a_load(cli: Cli, program: Path, tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    options = ("--http-port", 0, "--grpc-port", 0, "--local", tmp_path / "s", "--access-log", log, "--promise", 500)
    with serving(program, *options) as said:
        assert said["models"] == ["layer/1"] and said["grpc"]
        x = np.ones((2, 4), np.float32)
        with tw.client.Client(said["serving"]) as client:
            y = client.infer("layer", {"x": x})["y"]
        np.testing.assert_array_equal(tw.client.local(str(tmp_path / "s"), "layer")(x), y)
        picture = tmp_path / "load.png"
        command = ["bench-serve", said["serving"], "layer", "-r", 200, "--seconds", 1, "--promise", 2000]
        code, page, _ = cli(*command, "--png", picture, "--json")
        assert code == 0
        [point] = json.loads(page)
        assert point["statuses"] == {"200": round(point["offered"])} and point["goodput"] == point["offered"]
        assert 0 < point["p50"] <= point["p99"] <= point["p99.9"] < 2
        assert picture.read_bytes().startswith(b"\x89PNG")
        code, page, _ = cli("bench-serve", f"local:{tmp_path / 's'}", "layer", *command[3:], "--json")
        assert code == 0 and set(json.loads(page)[0]["statuses"]) == {"200"}
    assert len(log.read_text().splitlines()) > 150


def test_configuration(cli: Cli, program: Path, tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(f'http_port = 0\n[models.layer]\npath = "{program}"\nversion = "3"\n')
    code, page, _ = cli("serve", "--config", path, "--check", "--json")
    assert code == 0 and json.loads(page)["models"] == ["layer/3"]
    path.write_text("colour = 1\n[models.a]\n")
    code, _, err = cli("serve", "--config", path, "--check")
    assert code == 1 and "colour" in err and "models.a" in err
    path.write_text('certificate = "none.pem"\nrepository = "none"\n[tokens]\n"a-token-of-16-characters" = 5\n')
    code, _, err = cli("serve", "--config", path, "--check")
    assert code == 1 and "none.pem" in err and "repository" in err and "a list of scopes" in err
    path.write_text(f'clients = "c.pem"\n[models.layer]\npath = "{program}"\n')
    code, _, err = cli("serve", "--config", path, "--check")  # else clients would be let in without certificates
    assert code == 1 and "clients: has no use without a certificate" in err
    with serving("--dir", program.parent, "--http-port", 0, "--workers", 2) as said:
        assert said["workers"] == 2
        with tw.client.Client(said["serving"]) as client:
            assert client.metadata("layer")["versions"] == ["1"]


def test_wrong_usage(cli: Cli, tmp_path: Path) -> None:
    assert cli("serve")[0] == 2
    assert "wants --dir" in cli("serve", "--store", "policy", "--repository", "--check")[2]
    (tmp_path / "model.txt").write_text("")
    code, _, err = cli("serve", tmp_path / "model.txt")
    assert code == 1 and "is no model" in err
    code, _, err = cli("bench-serve", "http://127.0.0.1:1", "layer")
    assert code == 1 and "does not answer" in err
    assert cli("bench-serve", "http://127.0.0.1:1")[0] == 2
    assert cli("bench-serve", "http://127.0.0.1:1", "layer", "--policy", "aimd")[0] == 2
    assert cli("serve", tmp_path / "m.onnx", "--policy", "fifo")[0] == 1


def test_policies_of_a_file_beside_each_other(cli: Cli, program: Path) -> None:
    options = ("--policy", "deadline", "--policy", "aimd", "-r", 100, "--seconds", 0.5, "--promise", 2000)
    code, page, _ = cli("bench-serve", program, *options, "--json")
    assert code == 0
    points = json.loads(page)
    assert [p["policy"] for p in points] == ["deadline", "aimd"]
    assert all(p["statuses"] == {"200": round(p["offered"] * 0.5)} for p in points)


def test_an_option_of_offer_is_named(cli: Cli, program: Path) -> None:
    code, _, err = cli("serve", program, "--port", 8080)
    assert code == 2 and "an option of `tilewright offer NAME MODEL`" in err and "--http-port" in err


def test_the_old_use_still_offers(cli: Cli, program: Path) -> None:
    code, _, err = cli("serve", "policy", program, "--host", "0.0.0.0")
    assert "is called `tilewright offer` now" in err
    assert code == 1 and "open to the network" in err
