"""The script for machines with a GPU, dry: every part on a driver of ours, and parts that fail or hang."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import pytest

from benchmarks import bench_gpu
from benchmarks.bench_gpu import PARTS, Part, run_all
from tests.runtime.gpu.fake_driver import FakeDriver, recorded_modules

LAST = ("networks", "sanitizer")
"""Parts that need PyTorch with CUDA, and NVIDIA's tool."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the fake driver is a library for x86-64")
def test_parts_run_dry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEWRIGHT_PROCESSES", "1")
    monkeypatch.setattr(bench_gpu, "_torch", lambda: None)
    monkeypatch.setattr(bench_gpu.shutil, "which", lambda _: None)
    modules = recorded_modules(monkeypatch)
    fake = FakeDriver(tmp_path, modules)
    fake.emulate = False
    monkeypatch.setenv("TILEWRIGHT_CUDA", str(fake.path))
    for part in PARTS:
        rows = list(part.run(True))
        assert rows, part.name
        bench_gpu.write(rows, tmp_path)
        assert json.loads((tmp_path / "gpu.json").read_text()) and part.name[:5] in (tmp_path / "gpu.md").read_text()
        if part.name in LAST:
            assert [r["unit"] for r in rows] == ["not run"]
    assert not fake.problems
    texts = [module.text for module, _ in modules.values()]
    assert sum("wgmma.mma_async" in text for text in texts) >= 2  # products of four warps are among them
    assert any("cp.async.bulk.tensor" in text for text in texts)
    assert sum(p.seconds for p in PARTS) <= 600 and bench_gpu.TOTAL_SECONDS <= 480


def test_a_part_that_fails_or_hangs_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_gpu, "SHORTEST_SECONDS", 0.5)
    row = json.dumps({"part": "x", "case": "a | b", "value": 2, "unit": "s"})
    programs = {
        "fails": "import os; os.abort()",
        "hangs": f"import time; print('ROW ' + {row!r}, flush=True); time.sleep(60)",
        "fine": f"print('ROW ' + {row!r})",
    }
    parts = [Part(name, lambda _: iter(()), 2.0) for name in programs]

    def command(name: str) -> list[str]:
        return [sys.executable, "-S", "-c", programs[name]]

    rows = run_all(parts, tmp_path, command, 60.0)
    assert [(r["part"], r["unit"]) for r in rows] == [("fails", "failed"), ("x", "s"), ("hangs", "failed"), ("x", "s")]
    assert (tmp_path / "gpu.md").read_text().count("a / b") == 2
    assert [r["unit"] for r in run_all(parts, tmp_path, command, 0.1)] == ["not run"] * 3
