"""The order of the passes over graphs, in one text: what compiler.py lists and what states its own place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.compiler import pass_names
from tilewright.support.errors import PluginError
from tilewright.targets.target import Target
from tilewright.transform.graph import extra, vta
from tilewright.transform.graph.extra import GraphPass
from tilewright.transform.graph.options import Options

assert vta  # imported here: a memory that is described within a test is gone after it

MACHINES = {
    "x86-64-v3": "CPUs",
    "nvidia-sm_80": "GPUs",
    "cortex-m4": "machines with little memory",
    "vta-1x16x16": "accelerators",
}


def test_the_order_of_the_passes(golden: Callable[..., None]) -> None:
    parts = []
    for name, what in MACHINES.items():
        passes = pass_names(Target.parse(name), Options())["graph"]
        parts.append("\n".join([f"{what} ({name})", *(f"  {each}" for each in passes)]))
    passes = pass_names(Target.parse("x86-64-v3"), Options(compilers=("mine",)))["graph"]
    parts.append(f"before {passes[passes.index('partition') + 1]!r} where there are other compilers: partition")
    golden("\n\n".join(parts))


def test_a_place_may_be_beside_a_pass_that_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    yours = GraphPass("yours", lambda graph, _: graph, ("after", "mine"))
    mine = GraphPass("mine", lambda graph, _: graph, ("before", "fold scales"), lambda target: target.isa.fma)
    monkeypatch.setattr(extra, "members", lambda _: [type("", (), {"PASS": each}) for each in (yours, mine)])
    listed = [("fold scales", lambda graph: graph)]
    for machine, names in (("x86-64-v3", ["mine", "yours"]), ("x86-64", ["yours"])):
        assert [name for name, _ in extra.placed(listed, Target.parse(machine))] == [*names, "fold scales"]
    with pytest.raises(PluginError, match=r"pass 'yours': there is no such place: .*fold scales.*mine"):
        monkeypatch.setattr(extra, "members", lambda _: [type("", (), {"PASS": yours})])
        extra.placed(listed, Target.parse("x86-64-v3"))
