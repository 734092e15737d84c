"""JSON data and dataclasses: there and back, and where what does not fit stands."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from tilewright.runtime.schema import SchemaError, decode, encode


@dataclass(frozen=True)
class Leaf:
    name: str
    share: float = 0.5


@dataclass(frozen=True)
class Tree:
    count: int
    alive: bool
    shares: tuple[float, ...]
    pair: tuple[int, str]
    size: int | str | None = None
    leaf: Leaf | None = None
    leaves: tuple[Leaf, ...] = ()
    table: tuple[tuple[int, tuple[str, ...]], ...] = field(default_factory=tuple)


FULL = Tree(
    3, True, (1.0, -2.5), (7, "a"), "n", Leaf("x", 0.25), (Leaf("y"), Leaf("z", 1.0)), ((1, ("a", "b")), (2, ()))
)
DATA: dict[str, Any] = {
    "count": 3, "alive": True, "shares": [1.0, -2.5], "pair": [7, "a"], "size": "n",
    "leaf": {"name": "x", "share": 0.25}, "leaves": [{"name": "y", "share": 0.5}, {"name": "z", "share": 1.0}],
    "table": [[1, ["a", "b"]], [2, []]],
}  # fmt: skip


def test_there_and_back() -> None:
    assert encode(FULL) == DATA
    assert decode(Tree, json.loads(json.dumps(DATA)), "tree") == FULL
    least = Tree(0, False, (), (1, ""))
    assert decode(Tree, {"count": 0, "alive": False, "shares": [], "pair": [1, ""]}, "tree") == least
    assert decode(Tree, encode(least), "tree") == least
    with pytest.raises(TypeError, match="cannot encode set"):
        encode((set(),))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": True}, "tree.count: expected int, got bool"),
        ({"count": 1.0}, "tree.count: expected int, got float"),
        ({"alive": 1}, "tree.alive: expected bool, got int"),
        ({"shares": [1.0, 2]}, "tree.shares[1]: expected a finite float, got int"),
        ({"shares": [math.inf, 1.0]}, "tree.shares[0]: expected a finite float, got inf"),
        ({"shares": [1.0, math.nan]}, "tree.shares[1]: expected a finite float, got nan"),
        ({"shares": {}}, "tree.shares: expected a list, got dict"),
        ({"pair": [1]}, "tree.pair: expected 2 entries, got 1"),
        ({"pair": [1, "a", 2]}, "tree.pair: expected 2 entries, got 3"),
        ({"pair": [1, 2]}, "tree.pair[1]: expected str, got int"),
        ({"pair": "ab"}, "tree.pair: expected a list, got str"),
        ({"size": 1.0}, "tree.size: expected int or str or NoneType, got float"),
        ({"leaf": []}, "tree.leaf: expected Leaf or NoneType, got list"),
        ({"leaf": {}}, "tree.leaf: field 'name' is missing"),
        ({"leaf": {"name": "x", "share": math.inf}}, "tree.leaf.share: expected a finite float, got inf"),
        ({"leaves": [{"name": "x"}, 3]}, "tree.leaves[1]: expected an object, got int"),
        ({"leaves": [{"name": "x", "color": 1}]}, "tree.leaves[0]: unknown fields ['color']"),
        ({"table": [[1, ["a"]], [1, ["a", 2]]]}, "tree.table[1][1][1]: expected str, got int"),
        ({"other": 1}, "tree: unknown fields ['other']"),
    ],
)
def test_what_does_not_fit_is_told_by_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        decode(Tree, DATA | change, "tree")
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["count", "alive", "shares", "pair"])
def test_fields_without_a_default_are_needed(name: str) -> None:
    with pytest.raises(SchemaError, match=f"tree: field '{name}' is missing"):
        decode(Tree, {k: v for k, v in DATA.items() if k != name}, "tree")


@dataclass(frozen=True)
class Renamed:
    branch: int | None = field(default=None, metadata={"key": "strand"})
    origin: str = field(default="", metadata={"key": "made"})


def test_a_key_outlives_the_name_of_its_field() -> None:
    data = {"strand": 3, "made": "here"}
    assert encode(Renamed(3, "here")) == data
    assert decode(Renamed, data, "x") == Renamed(3, "here")
    with pytest.raises(SchemaError, match=r"unknown fields \['branch'\]"):
        decode(Renamed, {"branch": 3}, "x")
    with pytest.raises(SchemaError, match=r"x\.strand"):
        decode(Renamed, {"strand": "a"}, "x")


@pytest.mark.parametrize("data", [{"strand": 3}, {"made": "here"}, {}])
def test_a_renamed_field_can_be_left_out_and_so_can_its_neighbour(data: dict[str, Any]) -> None:
    assert decode(Renamed, data, "x") == Renamed(data.get("strand"), data.get("made", ""))


def test_an_order_of_keys_of_its_own_is_read_by_them() -> None:
    assert decode(Renamed, {"made": "here", "strand": 3}, "x") == Renamed(3, "here")
