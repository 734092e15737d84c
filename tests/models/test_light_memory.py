"""The light real models: the arena of a call against its lower bound, planned without making machine code."""

from __future__ import annotations

import pytest

from benchmarks import light_models
from tilewright import kernels
from tilewright.compiler import compile_graph
from tilewright.frontend.read import import_model
from tilewright.runtime.arena import plan, temp_intervals
from tilewright.targets.target import Target


@pytest.mark.daily(2)
@pytest.mark.costly(6)
@pytest.mark.slow
@pytest.mark.parametrize("name", light_models.names())
def test_arena_is_close_to_its_lower_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")  # kernels without code must not be kept
    monkeypatch.setenv("TILEWRIGHT_VERIFY", "1")  # as users have it: this is about memory
    monkeypatch.setattr(kernels, "emit_llvm", lambda *_: "")
    monkeypatch.setattr(kernels, "compile_llvm", lambda *_, **__: b"")
    read = import_model(str(light_models.load(name).path))
    manifest = compile_graph(read.graph, read.weights, Target.host()).manifest
    sizes = [t.nbytes for t in manifest.run_temps]
    assert sizes and None not in sizes
    placed = plan(temp_intervals(manifest.run_temps, [s or 0 for s in sizes], threads=1))
    assert placed.live <= placed.arena <= 1.10 * placed.live
