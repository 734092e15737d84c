"""Instructions that a process must ask for are used only where the kernel grants them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tilewright.native import link
from tilewright.support import machine, permission
from tilewright.targets import host

AMX = ("amx-int8", "amx-tile")


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A kernel that grants nothing, under a CPU that has the instructions."""
    import llvmlite.binding as llvm

    features = {**llvm.get_host_cpu_features(), **dict.fromkeys(AMX, True)}
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: features)
    for module in (machine, link):
        monkeypatch.setattr(module, "forbidden", lambda: permission.NEEDED)
    host.native.cache_clear()
    yield
    host.native.cache_clear()


@pytest.mark.usefixtures("refusing")
def test_what_is_refused_is_missing() -> None:
    assert not set(AMX) & set(machine.describe().features)
    target = host.host()
    assert set(AMX) <= set(target.missing) and not any(dot.rows > 1 for dot in target.isa.dots)
    assert link.missing_features(["avx", *AMX]) == [*(["avx"] if link.missing_features(["avx"]) else []), *AMX]


def test_other_systems_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = permission.forbidden.__wrapped__
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert asked() == permission.NEEDED


@pytest.mark.parametrize("answer,denied", [(0, frozenset()), (-1, permission.NEEDED)])
def test_the_kernels_answer_decides(answer: int, denied: frozenset[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def __init__(self, name: str | None) -> None:
            pass

        def syscall(self, *arguments: int) -> int:
            assert arguments == (158, 0x1023, 18)
            return answer

    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(permission.ctypes, "CDLL", Library)
    assert permission.forbidden.__wrapped__() == denied


def test_what_is_granted_can_be_used() -> None:
    """Where the kernel grants them, and only there, this machine has them."""
    has = set(AMX) <= set(machine.describe().features)
    assert has == (not link.missing_features(AMX))
