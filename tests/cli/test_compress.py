"""`tilewright compress`: the small file that it writes, and what it says of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import tilewright as tw

from .conftest import Cli


def test_compress_writes_a_file_that_runs(cli: Cli, layer: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.random.default_rng(1).standard_normal((40, 4)).astype(np.float32))
    (tmp_path / "recipe.toml").write_text("[prune]\nshare = 0.25\n[share]\nvalues = 4\n")
    options = ("--recipe", tmp_path / "recipe.toml", "--max-drop", "1", "--png", tmp_path / "c.png")
    code, text, _ = cli("compress", layer, "--data", tmp_path / "data.npy", "-o", tmp_path / "c.tw", "--json", *options)
    report = json.loads(text)
    assert code == 0 and "25% pruned" in report["recipe"] and report["file_bytes"] == (tmp_path / "c.tw").stat().st_size
    assert tw.load(tmp_path / "c.tw")(np.ones((2, 4), np.float32)).shape == (2, 3)
    assert (tmp_path / "c.png").stat().st_size > 1000


def test_compress_refuses_in_one_line(cli: Cli, layer: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.ones((4, 4), np.float32))
    (tmp_path / "bad.toml").write_text("[prune]\nmuch = 1\n")
    data = ("--data", tmp_path / "data.npy")
    for options, said in (
        ((*data, "--recipe", tmp_path / "bad.toml"), "no such key"),
        ((*data, "--recipe", tmp_path / "none.toml"), "none.toml"),
        (("--data", tmp_path / "none.npy"), "none.npy"),
        ((*data, "-o", tmp_path / "data.npy"), "write over"),
    ):
        code, text, errors = cli("compress", layer, *options)
        assert (
            code in (1, 2) and said in " ".join((text + errors).replace("│", " ").split()) and "Traceback" not in errors
        )
