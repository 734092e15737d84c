"""Groups that are lowered once for many compiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.transform.graph.graphs import tensor
from tilewright import compiler, ops
from tilewright.ir.graph import Graph, GraphBuilder
from tilewright.ir.key import key
from tilewright.transform import remember
from tilewright.transform.call import KernelCall
from tilewright.transform.graph.fuse import Group, fuse
from tilewright.transform.lower import lower_group
from tilewright.transform.remember import Lowered, lower_once, remembering


def product(width: int) -> Graph:
    b = GraphBuilder("product")
    x, w = b.input("x", tensor(24, 48)), b.param("w", tensor(48, width))
    return b.finish((ops.emit1(b, "relu", ops.emit1(b, "matmul", x, w)),))


@pytest.fixture
def lowered_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is really lowered."""
    names: list[str] = []
    real: Callable[[Group, str], KernelCall] = remember.lower_group

    def noted(group: Group, name: str) -> KernelCall:
        names.append(name)
        return real(group, name)

    monkeypatch.setattr(remember, "lower_group", noted)
    return names


def test_equal_groups_are_lowered_once(lowered_names: list[str]) -> None:
    first, repeated, other = (fuse(product(width))[0] for width in (32, 32, 40))
    known: Lowered = {}
    with remembering(known):
        call = lower_once(first, "a")
        assert lower_once(repeated, "a") is call, "another graph of the same content"
        assert lower_once(repeated, "b") == replace(call, func=replace(call.func, name="b"))
        assert lower_once(other, "c").func != call.func
        with remembering():
            assert lower_once(first, "a") is call, "what is known around is known inside"
    assert lowered_names == ["a", "c"]
    with remembering(known):
        assert lower_once(first, "a") is call, "for as long as it is kept"
    assert lower_once(first, "a") == call and lowered_names == ["a", "c", "a"], "nothing is remembered outside"


def test_equal_layers_are_lowered_once(lowered_names: list[str]) -> None:
    """Each call has its own values, in the order of the parameters, and its own name."""
    b = GraphBuilder("layers")
    x, w, v = (b.param(name, tensor(48, 48)) for name in "xwv")
    y = ops.emit1(b, "relu", ops.emit1(b, "matmul", x, w))
    z = ops.emit1(b, "relu", ops.emit1(b, "matmul", y, v))
    groups = fuse(b.finish((ops.emit1(b, "relu", ops.emit1(b, "matmul", v, z)), ops.emit1(b, "matmul", z, z))))
    with remembering():
        calls = [lower_once(group, f"k{i}") for i, group in enumerate(groups)]
    bare = [lower_group(group, f"k{i}") for i, group in enumerate(groups)]
    assert [call.args for call in calls] == [call.args for call in bare]
    assert [call.func.name for call in calls] == [call.func.name for call in bare]
    assert [key(call.func) for call in calls] == [key(call.func) for call in bare]
    assert [call.group for call in calls] == groups and calls[0].func.body is calls[1].func.body
    assert lowered_names == ["k0", "k3"], "a product of one matrix is another function"


@pytest.mark.parametrize("values", [(0.0, -0.0), (0, False), (1.0, 2.0)])
def test_nodes_that_differ_in_attributes_are_lowered_separately(
    lowered_names: list[str], values: tuple[float, float]
) -> None:
    b = GraphBuilder("pads")
    x = b.input("x", tensor(24, 48))
    padded = [ops.emit1(b, "pad", x, before=(1, 1), after=(0, 0), mode="constant", value=value) for value in values]
    with remembering():
        for group in fuse(b.finish(tuple(padded))):
            lower_once(group, "a")
    assert len(lowered_names) == 2


def test_a_limited_number_is_remembered(lowered_names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remember, "MAX_GROUPS", 2)
    groups = {name: fuse(product(width))[0] for name, width in (("a", 32), ("b", 40), ("c", 48))}
    known: Lowered = {}
    with remembering(known):
        for name in "abca":
            lower_once(groups[name], name)
    assert len(known) == 2 and lowered_names == list("abca")


def test_programs_are_the_same(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile after another one, with what that lowered, makes the bytes of one that knows nothing."""
    import numpy as np

    from tilewright.targets.target import Target

    def program(width: int) -> tuple[str, ...]:
        monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        weights = {"w": np.ones((48, width), np.float32)}
        created = compiler.compile_graph(product(width), weights, Target.parse("x86-64-v3"), records=None)
        return tuple(step.kernel for step in created.manifest.run_steps)

    known: Lowered = {}
    with remembering(known):
        first, second, third = program(32), program(40), program(32)
    assert len(known) > 0 and first == third == program(32) != second == program(40)
