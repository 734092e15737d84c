"""Groups that are lowered once for many compiles."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.transform.graph.graphs import tensor
from tilewright import compiler, ops
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.transform import remember
from tilewright.transform.call import KernelCall
from tilewright.transform.graph.fuse import Group, fuse
from tilewright.transform.remember import Lowered, lower_once, remembering


def product(width: int) -> Graph:
    b = GraphBuilder("product")
    x, w = b.input("x", tensor(24, 48)), b.param("w", tensor(48, width))
    return b.finish((ops.emit1(b, "relu", ops.emit1(b, "matmul", x, w)),))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is really lowered."""
    names: list[str] = []
    real: Callable[[Group, str], KernelCall] = remember.lower_group

    def noted(group: Group, name: str) -> KernelCall:
        names.append(name)
        return real(group, name)

    monkeypatch.setattr(remember, "lower_group", noted)
    return names


def test_equal_groups_of_one_name_are_lowered_once(made: list[str]) -> None:
    first, again, other = (fuse(product(width))[0] for width in (32, 32, 40))
    known: Lowered = {}
    with remembering(known):
        call = lower_once(first, "a")
        assert lower_once(again, "a") is call, "another graph of the same content"
        assert lower_once(again, "b").func.name == "b" and lower_once(other, "a").func != call.func
    assert made == ["a", "b", "a"]
    with remembering(known):
        assert lower_once(first, "a") is call, "for as long as it is kept"
    assert lower_once(first, "a") == call and made == ["a", "b", "a", "a"], "nothing is remembered outside"


def test_not_too_many_are_remembered(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remember, "MOST", 2)
    group = fuse(product(32))[0]
    known: Lowered = {}
    with remembering(known):
        for name in "abca":
            lower_once(group, name)
    assert len(known) == 2 and made == list("abca")


def test_programs_are_the_same(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile after another one, with what that lowered, makes the bytes of one that knows nothing."""
    import numpy as np

    from tilewright.targets.target import Target

    def program(width: int) -> tuple[str, ...]:
        monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        weights = {"w": np.ones((48, width), np.float32)}
        made = compiler.compile_graph(product(width), weights, Target.parse("x86-64-v3"), records=None)
        return tuple(step.kernel for step in made.manifest.run_steps)

    known: Lowered = {}
    with remembering(known):
        first, second, third = program(32), program(40), program(32)
    assert len(known) > 0 and first == third == program(32) != second == program(40)
