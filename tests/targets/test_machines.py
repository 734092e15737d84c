"""Machines that a run pretends to be: their constants, this machine's instructions."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.support import flags
from tilewright.support.errors import TargetError
from tilewright.targets.host import native
from tilewright.targets.machines import MACHINES
from tilewright.targets.target import Target


@pytest.mark.parametrize("name", MACHINES)
def test_constants_are_the_machines_and_instructions_are_here(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(flags.HOST.name, name)
    target, here = Target.host(), native()
    assert target is Target.host()
    assert target.caches == MACHINES[name].caches
    assert target.l1 < target.l2 <= target.l3
    assert target.cores == MACHINES[name].cores
    assert (target.features, target.missing, target.isa, target.cpu) == (
        here.features,
        here.missing,
        here.isa,
        here.cpu,
    )
    monkeypatch.delenv(flags.HOST.name)
    assert Target.host() is here


def test_last_levels_are_those_that_the_cores_can_use() -> None:
    from tilewright.targets.host import L3_A_CORE

    assert all(machine.caches.l3 <= machine.cores * L3_A_CORE for machine in MACHINES.values())


def test_estimates_follow_the_pretended_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(flags.HOST.name, "graniterapids")
    server = Target.host()
    monkeypatch.setenv(flags.HOST.name, "qemu")
    small = Target.host()
    assert server.fingerprint != small.fingerprint
    assert server.memory_bandwidth == 4.8
    assert small.l2 == 4 << 20


def test_an_instruction_set_is_narrowed_on_the_pretended_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    level = "x86-64-v2"
    if not set(Target.parse(level).features) <= set(native().features):
        pytest.skip(f"this machine has no {level}")
    monkeypatch.setenv(flags.HOST.name, "icelake")
    assert Target.on_host(level).l2 == 1280 << 10
    monkeypatch.setenv(flags.HOST.name, "zen4")
    assert Target.on_host(level).l2 == 1 << 20


def test_code_for_a_pretended_machine_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(flags.HOST.name, "graniterapids")
    a, b = te.placeholder((24, 40), name="A"), te.placeholder((40, 33), name="B")
    k = te.reduce_axis((0, 40), name="k")
    c = te.compute((24, 33), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    x, y = (np.random.default_rng(0).standard_normal(s, np.float32) for s in ((24, 40), (40, 33)))
    out = np.zeros((24, 33), np.float32)
    built = tw.build(te.create_schedule(c), [a, b, c])
    assert built.target.l2 == 2 << 20
    built(x, y, out)
    np.testing.assert_allclose(out, x @ y, rtol=1e-4, atol=1e-5)


def test_an_unknown_machine_is_refused_with_those_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(flags.HOST.name, "pentium")
    with pytest.raises(TargetError, match=r"TILEWRIGHT_HOST.*expected native, zen3.*graniterapids.*got 'pentium'"):
        Target.host()
