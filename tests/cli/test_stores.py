"""Weight stores on the command line: publish, attach, store list, info, sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.cli.inputs import read_weights
from tilewright.live import store as weights
from tilewright.support.errors import WeightError

from .conftest import Cli


def scaled(program: Path, factor: float) -> dict[str, np.ndarray]:
    return {name: array * np.float32(factor) for name, array in tw.load(program).weights.items()}


@pytest.mark.parametrize(
    "command", [["publish"], ["attach"], ["store"], ["store", "list"], ["store", "info"], ["store", "sweep"]]
)
def test_help_teaches(cli: Cli, command: list[str]) -> None:
    code, page, _ = cli(*command, "--help")
    assert code == 0
    assert f"tilewright {' '.join(command)} " in page, "an example of the command"


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish"], ["publish", "policy"], ["publish", "policy", "m.tw", "--version", "-1"],
        ["publish", "policy", "m.tw", "--version", "x"], ["attach"], ["store", "fly"], ["store", "info"],
        ["attach", "policy", "--dim", "n"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_is_2(cli: Cli, root: Path, arguments: list[str]) -> None:
    assert cli(*arguments)[0] == 2


@pytest.mark.parametrize(
    "arguments",
    [["attach", "nobody"], ["store", "info", "nobody"], ["attach", "a/b"], ["publish", "policy", "nothing.tw"]],
    ids=" ".join,
)
def test_errors_are_1_and_name_the_thing(cli: Cli, root: Path, arguments: list[str]) -> None:
    code, text, error = cli(*arguments)
    assert (code, text) == (1, "")
    assert arguments[-1] in error
    code, text, _ = cli(*arguments, "--json")
    assert code == 1
    assert "error" in json.loads(text)


def test_a_store_s_life(cli: Cli, root: Path, program: Path, tmp_path: Path) -> None:
    """Made, published to, attached to, listed, looked at, swept."""
    code, text, _ = cli("publish", "policy", program)
    assert code == 0
    assert "policy (new)" in text
    np.savez(tmp_path / "step.npz", **scaled(program, 2.0))  # type: ignore[arg-type]
    code, text, _ = cli("publish", "policy", program, "--weights", tmp_path / "step.npz", "--version", 17, "--json")
    report = json.loads(text)
    assert (code, report["version"], report["made"]) == (0, 17, False)
    x = np.ones((2, 4), np.float32)
    np.save(tmp_path / "x.npy", x)
    code, text, _ = cli("attach", "policy", "-i", tmp_path / "x.npy", "--seconds", 0.05, "--json")
    seen = json.loads(text)
    assert code == 0
    assert (seen["version"], seen["versions"], seen["back"]) == (17, 1, 0)
    assert seen["inputs"] == ["x: f32[2, 4]"]
    assert seen["calls_per_second"] > 0
    model = tw.load(program)
    model.update(scaled(program, 2.0))
    with tw.attach("policy") as actor:
        assert (actor(x) == model(x)).all()
        code, text, _ = cli("store", "list")
        assert code == 0
        assert text.split("policy")[1].split()[:2] == ["layer", "17"]
        assert json.loads(cli("store", "list", "--json")[1])[0]["version"] == 17
        code, text, _ = cli("store", "info", "policy", "--verify")
        assert code == 0
        for words in ("17 current", "as it was published", "none now", str(os.getpid())):
            assert words in text, words
        assert json.loads(cli("store", "info", "policy", "--json")[1])["details"]["readers"][0]["calls"] == 1
        assert cli("store", "sweep")[:2] == (0, "nothing to sweep\n"), "somebody reads"
        assert (actor(x) == model(x)).all()
    code, text, _ = cli("store", "sweep", "--dry-run", "--json")
    assert [Path(r["path"]).name for r in json.loads(text)["removed"]] == ["policy"]
    assert weights.info("policy").version == 17
    code, text, _ = cli("store", "sweep")
    assert code == 0
    assert "freed" in text
    assert cli("store", "list")[1] == f"no stores in {root}\n"


def test_a_new_store_begins_with_the_weights_and_version_passed(
    cli: Cli, root: Path, program: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "step.npz", **scaled(program, 3.0))  # type: ignore[arg-type]
    report = json.loads(cli("publish", "policy", program, "-w", tmp_path / "step.npz", "-n", 9, "--json")[1])
    assert (report["version"], report["made"], report["published"]) == (9, True, 1)
    model = tw.load(program)
    model.update(scaled(program, 3.0))
    x = np.ones((1, 4), np.float32)
    assert (tw.attach("policy")(x) == model(x)).all()


def test_versions(cli: Cli, root: Path, program: Path) -> None:
    assert cli("publish", "policy", program, "--version", 5)[0] == 0
    code, _, error = cli("publish", "policy", program, "--version", 4)
    assert code == 1
    assert "version does not grow" in error
    assert weights.info("policy").version == 5
    assert cli("publish", "policy", program, "--version", 4, "--force")[0] == 0
    assert weights.info("policy").version == 4
    assert cli("publish", "policy", program)[0] == 0
    assert weights.info("policy").version == 5


def test_publishing_onnx(cli: Cli, root: Path, layer: Path) -> None:
    assert cli("publish", "policy", layer)[0] == 0
    assert tw.attach("policy")(np.ones((1, 4), np.float32)).shape == (1, 3)


def test_weights_that_do_not_fit_change_nothing(cli: Cli, root: Path, program: Path, tmp_path: Path) -> None:
    path = tmp_path / "step.npz"
    np.savez(path, w=np.full((4, 3), np.nan, np.float32), c=np.zeros(3))
    code, _, error = cli("publish", "policy", program, "--weights", path)
    assert code == 1
    for words in ("'w'", "NaN", "'b'", "is missing", "'c'", "no such weight"):
        assert words in error
    assert weights.stores() == []
    broken = {**scaled(program, 1.0), "b": np.array([1, np.nan, 2], np.float32)}
    np.savez(path, **broken)  # type: ignore[arg-type]
    assert cli("publish", "policy", program, "--weights", path)[0] == 1
    assert cli("publish", "policy", program, "--weights", path, "--allow-nan")[0] == 0


def test_another_publisher_has_it(cli: Cli, root: Path, program: Path) -> None:
    with tw.Publisher("policy", tw.load(program)):
        code, _, error = cli("publish", "policy", program)
        assert code == 1
        assert str(os.getpid()) in error
        assert weights.info("policy").publisher == os.getpid()
    assert cli("publish", "policy", program)[0] == 0


def test_damage_is_3(cli: Cli, root: Path, program: Path) -> None:
    cli("publish", "policy", program)
    segments = next((root / "policy").rglob("segments"))
    with open(segments, "r+b") as file:
        file.write(b"damage")
    assert cli("store", "info", "policy")[0] == 0
    code, text, _ = cli("store", "info", "policy", "--verify")
    assert code == 3
    assert "checksum" in text
    next((root / "policy").rglob("control")).write_bytes(bytes(10))
    code, text, _ = cli("store", "list")
    assert code == 0
    assert "policy" in text
    assert cli("store", "info", "policy")[0] == 3


def test_watching(root: Path, program: Path) -> None:
    """Lines of JSON until it is interrupted, which is no failure."""
    command = [sys.executable, "-m", "tilewright.cli", "attach", "policy", "--watch", "--rate", "200", "--json"]
    lines: list[dict[str, float]] = []
    with tw.Publisher("policy", tw.load(program)) as publisher:
        # A test run in the background of a shell ignores interrupts, and its children would too.
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heed) as watching:
            try:
                assert watching.stdout is not None
                for text in watching.stdout:
                    lines.append(json.loads(text))
                    if len(lines) == 1:
                        publisher.publish(scaled(program, 2.0), version=8)
                    if lines[-1]["version"] == 8:
                        break
                watching.send_signal(signal.SIGINT)
                assert watching.wait(timeout=120) == 0
            finally:
                watching.kill()
    seen = [line["version"] for line in lines]
    assert seen == sorted(seen)
    assert seen[-1] == 8
    assert all(line["calls_per_second"] < 300 for line in lines)


def test_weights_of_safetensors_files(tmp_path: Path) -> None:
    import ml_dtypes
    from safetensors.numpy import save_file

    arguments = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1, -2], np.int64)}
    path = tmp_path / "w.safetensors"
    save_file(arguments, path)
    result = read_weights(path)
    assert {k: (v.dtype, v.tolist()) for k, v in result.items()} == {
        k: (v.dtype, v.tolist()) for k, v in arguments.items()
    }
    header = b'{"c":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\x80\x3f\x00\x40")
    assert read_weights(path)["c"].astype(np.float32).tolist() == [1.0, 2.0]
    assert read_weights(path)["c"].dtype == ml_dtypes.bfloat16
    for content, name in ((b"", "w.safetensors"), (b"\xff" * 64, "w.safetensors"), (b"PK", "w.npz"), (b"", "w.pt")):
        bad = tmp_path / name
        bad.write_bytes(content)
        with pytest.raises(WeightError, match=name):
            read_weights(bad)
    with pytest.raises(WeightError, match="nothing"):
        read_weights(tmp_path / "nothing.npz")
