"""Dataclasses made quickly are those of the standard library: same fields, same arguments, same errors."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import math
import pickle
from typing import Any, ClassVar

import pytest

from tilewright.support.classes import dataclass

FLAGS = ("frozen", "slots", "eq", "repr", "kw_only")
OPTIONS = [dict(zip(FLAGS, chosen, strict=True)) for chosen in itertools.product((False, True), repeat=len(FLAGS))]


class Empty:
    pass


class One:
    x: float


class Several:
    name: str
    size: int = 3
    parts: list[int] = dataclasses.field(default_factory=list)
    note: str = dataclasses.field(default="n", repr=False, compare=False)
    count: int = dataclasses.field(default=0, init=False)
    created: dict[str, int] = dataclasses.field(default_factory=dict, init=False, hash=False)
    last: str = dataclasses.field(default="z", kw_only=True)
    shared: ClassVar[int] = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", len(self.name))


class Own:
    a: int
    b: int = 2

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and self.a == other.a

    def __repr__(self) -> str:
        return f"own {self.a}"


class Hashed:
    a: int
    b: int = 2

    def __hash__(self) -> int:
        return 7


ARGUMENTS: dict[type, list[dict[str, Any]]] = {
    Empty: [{}],
    One: [{"x": 1.5}, {"x": math.nan}, {"x": 1.5}],
    Several: [{"name": "ab"}, {"name": "ab", "size": 4, "last": "q"}, {"name": "ab", "parts": [1], "note": "other"}],
    Own: [{"a": 1}, {"a": 1, "b": 3}, {"a": 2}],
    Hashed: [{"a": 1}, {"a": 1, "b": 3}, {"a": 1}],
}


def outcome(run: Any) -> Any:
    """The result of a call, or its error."""
    try:
        return run()
    except Exception as error:
        return type(error), str(error)


def twins(body: type, options: dict[str, bool]) -> tuple[Any, Any]:
    """A class made by us and by the standard library."""
    inside = {k: v for k, v in vars(body).items() if k not in ("__dict__", "__weakref__")}
    ours, theirs = (
        make(**options)(type(body.__name__, (), dict(inside))) for make in (dataclass, dataclasses.dataclass)
    )
    return ours, theirs


def signature(cls: type) -> list[tuple[Any, ...]]:
    return [(p.name, p.kind, p.annotation) for p in inspect.signature(cls).parameters.values()]


def same(mine: Any, other: Any) -> bool:
    """Whether two objects of twins hold the same and take the same changes. (Where the standard library's guards are
    asked for another name than a field's, versions of it differ.)"""
    pair = mine, other
    values = [repr([getattr(o, f.name) for f in dataclasses.fields(o)]) for o in pair]
    hashes = [outcome(lambda o=o: type(hash(o))) for o in pair]
    names = [f.name for f in dataclasses.fields(mine)][:1]
    changes = [outcome(lambda o=o: [setattr(copy.copy(o), n, 9) for n in names]) for o in pair]
    losses = [outcome(lambda o=o: [delattr(copy.copy(o), n) for n in names]) for o in pair]
    copies = [repr(dataclasses.asdict(copy.deepcopy(o))) for o in pair]
    return all(a == b for a, b in (values, hashes, changes, losses, copies))


@pytest.mark.parametrize("body", ARGUMENTS, ids=lambda body: body.__name__)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(k for k, v in o.items() if v) or "none")
def test_same_as_the_standard_librarys(body: type, options: dict[str, bool]) -> None:
    ours, theirs = twins(body, options)
    assert signature(ours) == signature(theirs)
    assert ours.__match_args__ == theirs.__match_args__
    assert hasattr(ours, "__slots__") == hasattr(theirs, "__slots__")
    assert ours.__dataclass_params__.frozen == theirs.__dataclass_params__.frozen
    for call in ({"y": 2}, {"name": 1, "count": 2}):
        assert outcome(lambda c=call: ours(**c)) == outcome(lambda c=call: theirs(**c))
    mine, others = ([cls(**a) for a in ARGUMENTS[body]] for cls in (ours, theirs))
    for a, b in zip(mine, others, strict=True):
        assert same(a, b)
        assert a != b
        assert (repr(a) == repr(b)) == (options["repr"] or "__repr__" in vars(body))
    for (a, b), (c, d) in zip(*(itertools.product(m, repeat=2) for m in (mine, others)), strict=True):
        assert (a == b) == (c == d)
        if options["eq"] and options["frozen"] and body is not Several:  # a list has no hash
            assert (hash(a) == hash(b)) == (hash(c) == hash(d))


@dataclass(frozen=True, slots=True)
class Base:
    a: int
    b: str = "b"


@dataclass(frozen=True, slots=True)
class Derived(Base):
    c: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Foreign(Base):
    c: float = 1.0


@pytest.mark.parametrize("created", [Base(1), Derived(1, c=(2,)), Foreign(1)], ids=lambda o: type(o).__name__)
def test_frozen_ones_inherit_are_copied_and_retained(created: Base) -> None:
    assert pickle.loads(pickle.dumps(created)) == created == copy.deepcopy(created)
    assert dataclasses.replace(created, a=5).a == 5
    assert created != Base(2)
    assert not hasattr(created, "__dict__")
    for name in ("a", "c", "d"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(created, name, 3)
    match created:
        case Base(a, b):
            assert (a, b) == (1, "b")


def test_what_is_not_frozen_cannot_inherit_from_what_is() -> None:
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):

        @dataclass()
        class _(Base):
            c: int = 0


def test_one_in_itself_is_shown() -> None:
    @dataclass(slots=True)
    class Chain:
        rest: Any = None

    chain = Chain()
    chain.rest = chain
    assert repr(chain).endswith("Chain(rest=...)")


@dataclass(frozen=True)
class Open:
    """Frozen, without slots."""

    a: int = 1


class Child(Open):
    """No dataclass, but of one."""


def test_children_retain_fields_and_take_others() -> None:
    child = Child()
    child.other = 2  # type: ignore[attr-defined]
    assert child.other == 2  # type: ignore[attr-defined]
    del child.other  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError):
        child.a = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del child.a
    with pytest.raises(dataclasses.FrozenInstanceError):
        Open().other = 2  # type: ignore[attr-defined]


def test_a_default_that_changes_is_refused_and_a_field_declared_twice_stays_in_its_place() -> None:
    with pytest.raises(ValueError, match="mutable default"):

        @dataclass()
        class _:
            a: list[int] = []  # noqa: RUF012

    ours, theirs = (
        make(frozen=True, slots=True)(
            type("Twice", (Base,), {"__annotations__": {"c": "int", "a": "str"}, "a": "x", "c": 3})
        )
        for make in (dataclass, dataclasses.dataclass)
    )
    for cls in (ours, theirs):
        first = dataclasses.fields(cls)[0]
        assert (first.name, first.type, first.default) == ("a", "str", "x")
        assert [f.name for f in dataclasses.fields(cls)] == ["a", "b", "c"]


class Loud(Derived):
    """No dataclass, but of one, with methods that call those of its base."""

    def __init__(self, a: int) -> None:
        super().__init__(a, c=(a,))

    def __repr__(self) -> str:
        return super().__repr__() + "!"

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)

    def __hash__(self) -> int:
        return super().__hash__() + 1


def test_methods_created_at_first_use_are_those_of_the_class_that_has_them() -> None:
    one, two = Loud(1), Loud(1)
    assert one == two and one != Loud(2) and repr(one) == "Loud(a=1, b='b', c=(1,))!"
    assert hash(one) == hash(Derived(1, c=(1,))) + 1
    for cls in (Base, Derived):
        for name in ("__init__", "__eq__", "__hash__"):
            assert getattr(cls, name).__qualname__ == f"{cls.__qualname__}.{name}"
            assert inspect.isfunction(cls.__dict__[name])


def test_super_finds_the_base_below_a_class_whose_methods_are_not_created_yet() -> None:
    """`super()` asks the base's method with the class of the object, which has such a method of its own."""

    @dataclass(frozen=True)
    class First:
        x: int

    @dataclass(frozen=True)
    class Second(First):
        def __init__(self, x: int) -> None:
            super().__init__(x + 1)

        def __eq__(self, other: object) -> bool:
            return super().__eq__(other)

        def __hash__(self) -> int:
            return super().__hash__()

    @dataclass(frozen=True)
    class Third(Second):
        y: int = 0

    one = Third.__new__(Third)
    Second.__init__(one, 1)
    assert vars(one) == {"x": 2}  # and no y
    assert Second.__hash__(Third(1, 2)) == hash((1,))
    assert Second.__eq__(Third(1, 2), Third(1, 3)) and Third(1, 2) != Third(1, 3)


def test_a_base_shows_its_own_fields() -> None:
    @dataclass()
    class First:
        x: int

    @dataclass(repr=False)
    class Second(First):
        y: int = 2

    assert repr(Second(1)).endswith("Second(x=1)")
