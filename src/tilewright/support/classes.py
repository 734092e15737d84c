"""`dataclass` as the standard library has it, made in a fifth of the time.

The standard library compiles each method of a class from a text of its own. That takes 0.6 to 0.9 ms a class, and the
compiler has 450 of them: two fifths of its import. Here the standard library finds the fields and makes the slots, only
`__init__` is compiled, when it is first asked for, and the other methods are closures. What comes out is a dataclass to
everybody: to `fields`, `replace` and `asdict`, to matching, and to subclasses that the standard library's decorator
makes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from types import FunctionType, MemberDescriptorType
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")

Fields = Sequence[Field[Any]]
Method = Callable[..., Any]


@dataclass_transform(field_specifiers=(dataclasses.field,))
def dataclass(
    *, frozen: bool = False, slots: bool = False, eq: bool = True, repr: bool = True, kw_only: bool = False
) -> Callable[[type[T]], type[T]]:
    """`dataclasses.dataclass` with those of its options that are used here; there are no `InitVar`s."""

    def create(ordinary: type[T]) -> type[T]:
        # The standard library lets none but frozen classes inherit from frozen ones, and makes the guards of those.
        guarded = frozen and any(map(dataclasses.is_dataclass, ordinary.__mro__[1:]))
        # Else the standard library would write down the signature, for which it compiles `__init__`.
        ordinary.__doc__ = ordinary.__doc__ or ordinary.__name__
        with_fields = dataclasses.dataclass(
            init=False, repr=False, eq=False, frozen=guarded, slots=slots, kw_only=kw_only
        )
        cls = with_fields(ordinary)
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # it is a dataclass now
        methods: dict[str, Method | _Initializer | None] = {"__init__": _Initializer(cls, fields, frozen)}
        if repr:
            methods["__repr__"] = _shower([f.name for f in fields if f.repr])
        if eq:
            hashed = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
            methods["__eq__"] = _comparer([f.name for f in fields if f.compare])
            methods["__hash__"] = _hasher(hashed) if frozen else None
        if frozen and not guarded:
            methods |= _guards(cls, slots, frozenset(f.name for f in fields))
            cls.__dataclass_params__.frozen = True  # type: ignore[attr-defined]
        for name, method in methods.items():
            # A class that compares in its own way has None for its hash, which the class's author did not write.
            if name not in cls.__dict__ or (name == "__hash__" and cls.__dict__[name] is None):
                if isinstance(method, FunctionType):
                    method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
                setattr(cls, name, method)
        return cls

    return create


class _Initializer:
    """`__init__` until it is asked for: a process makes objects of half of the classes that it imports."""

    __slots__ = ("_class", "_fields", "_frozen")

    def __init__(self, cls: type, fields: Fields, frozen: bool) -> None:
        self._class, self._fields, self._frozen = cls, fields, frozen

    def __get__(self, o: Any, owner: type | None = None) -> Any:
        """The compiled function, which takes this place, or the method of an object."""
        created = self._class.__dict__["__init__"]
        if created is self:
            created = _initializer(self._class, self._fields, self._frozen)
            created.__name__, created.__qualname__ = "__init__", f"{self._class.__qualname__}.__init__"
            type.__setattr__(self._class, "__init__", created)
        return created.__get__(o, owner)


def _initializer(cls: type, fields: Fields, frozen: bool) -> Method:
    """`__init__`, compiled: it runs for each of a million nodes. What has a slot is set by it, which takes two thirds
    of the time of `object.__setattr__`."""
    known: dict[str, Any] = {"__name__": cls.__module__, "__missing__": MISSING, "__set__": object.__setattr__}
    positional, keywords, body = ["self"], ["*"], []
    for f in fields:
        name = value = f.name
        if f.default is not MISSING:
            known[f"_of_{name}"] = f.default
        elif f.default_factory is not MISSING:
            known[f"_of_{name}"] = f.default_factory
            value = f"_of_{name}() if {name} is __missing__ else {name}"
        if f.init:
            default = "" if f"_of_{name}" not in known else f"=_of_{name}" if value == name else "=__missing__"
            (keywords if f.kw_only else positional).append(name + default)
        elif f"_of_{name}" not in known:
            continue
        else:
            value = f"_of_{name}" if value == name else f"_of_{name}()"
        slot = getattr(cls, name, None)
        if not frozen:
            body.append(f"self.{name} = {value}")
        elif isinstance(slot, MemberDescriptorType):
            known[f"_slot_{name}"] = slot.__set__
            body.append(f"_slot_{name}(self, {value})")
        else:
            body.append(f"__set__(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    arguments = ", ".join(positional + (keywords if len(keywords) > 1 else []))
    exec(f"def __init__({arguments}):\n " + "\n ".join(body or ["pass"]), known)
    created: Method = known["__init__"]
    created.__annotations__ = {f.name: f.type for f in fields if f.init} | {"return": None}
    return created


def _values(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """The attributes of an object that have these names."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda o: ()
    get = attrgetter(*names)
    return lambda o: (get(o),)


def _comparer(names: Sequence[str]) -> Method:
    values = _values(names)

    def __eq__(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hasher(names: Sequence[str]) -> Method:
    values = _values(names)

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _shower(names: Sequence[str]) -> Method:
    @recursive_repr()
    def __repr__(self: Any) -> str:
        return f"{self.__class__.__qualname__}({', '.join(f'{n}={getattr(self, n)!r}' for n in names)})"

    return __repr__


def _guards(cls: type, slots: bool, names: frozenset[str]) -> dict[str, Method | None]:
    """The methods that keep an object as it was made, and how one in slots is copied nevertheless."""

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    def __getstate__(self: Any) -> list[Any]:
        return [getattr(self, f.name) for f in dataclasses.fields(self)]

    def __setstate__(self: Any, state: list[Any]) -> None:
        for f, value in zip(dataclasses.fields(self), state, strict=True):
            object.__setattr__(self, f.name, value)

    guards: dict[str, Method | None] = {"__setattr__": __setattr__, "__delattr__": __delattr__}
    return guards | ({"__getstate__": __getstate__, "__setstate__": __setstate__} if slots else {})


__all__ = ["dataclass"]
