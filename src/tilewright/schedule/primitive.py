"""Primitives declared once: a function of programs becomes methods of `Schedule` and `Stage` and a step of traces.

    @on_block
    def double_buffer(func: PrimFunc, block: str, buffer: str | None = None) -> PrimFunc: ...

    class StoragePrimitives:
        double_buffer = double_buffer

    schedule.double_buffer("B")     # what a block or loop is called, or a reference to it, in the place of its name
    stage.double_buffer()           # the stage is the block, an axis is a loop

The parameters after the program are blocks and loops by name, then others. A function returns the new program, or (new
program, name or names of created blocks or loops); the methods return references to these, or their stages. In a trace
the arguments stand in order; one whose default is None is written by name, unless it is None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, wraps
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from tilewright.ir.loops import PrimFunc

if TYPE_CHECKING:
    from tilewright.schedule.recording import BlockRef, LoopRef, Recording
    from tilewright.schedule.stages import Axis, Stage

P = ParamSpec("P")
Function = TypeVar("Function", bound=Callable[..., Any])
OfSchedule = TypeVar("OfSchedule", bound=Callable[..., Any])
OfStage = TypeVar("OfStage", bound=Callable[..., Any])
Subject = Literal["block", "loop"]


class Primitive(Generic[Function, OfSchedule, OfStage]):
    """A schedule primitive: a function of programs that is also a method of the classes to which it is assigned, and a
    step of traces.

    Called directly, it calls the function. As a method it calls `apply` of its instance, whose `supplies` names the
    leading parameters that the instance itself provides.
    """

    def __init__(self, function: Function, subjects: tuple[Subject, ...], makes: Subject = "block") -> None:
        self.function = function
        self.subjects = subjects
        self.makes = makes
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__wrapped__ = function
        self._methods: dict[int, Callable[..., Any]] = {}

    @cached_property
    def signature(self) -> inspect.Signature:
        """The signature of the primitive's function."""
        return inspect.signature(self.function)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The function's parameters after the program, in order, with their defaults (`Parameter.empty`: none)."""
        return {name: parameter.default for name, parameter in list(self.signature.parameters.items())[1:]}

    def bind(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments after the program by parameter name, blocks and loops first. Raises TypeError if `args` and
        `named` do not fit the function."""
        values = dict(self.defaults)
        if len(args) > len(values) or not named.keys() <= set(list(values)[len(args) :]):
            self.signature.bind(None, *args, **named)  # says what is wrong
        values.update(zip(values, args, strict=False))
        values.update(named)
        if inspect.Parameter.empty in values.values():
            self.signature.bind(None, *args, **named)
        return values

    if TYPE_CHECKING:

        @property
        def __call__(self) -> Function: ...

    else:

        def __call__(self, *args, **named):
            return self.function(*args, **named)

    @overload
    def __get__(self, instance: Recording, owner: type) -> OfSchedule: ...
    @overload
    def __get__(self, instance: Stage, owner: type) -> OfStage: ...
    @overload
    def __get__(self, instance: None, owner: type) -> Callable[..., Any]: ...
    def __get__(self, instance: Recording | Stage | None, owner: type) -> Any:
        supplies: tuple[Subject, ...] = getattr(owner, "supplies", ())
        are_leading = supplies == self.subjects[: len(supplies)]
        supplied = 1 + (len(supplies) if are_leading else 0)
        method = self._methods.get(supplied) or self._method(supplied)
        return method if instance is None else MethodType(method, instance)

    def _method(self, supplied: int) -> Callable[..., Any]:
        """The function as a method, without the program and the first `supplied` parameters, which the instance
        provides."""

        @wraps(self.function)
        def method(instance: Any, /, *args: Any, **named: Any) -> Any:
            return instance.apply(self, args, named)

        parameters = list(self.signature.parameters.values())
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        method.__signature__ = inspect.Signature([own, *parameters[supplied:]])  # type: ignore[attr-defined]
        return self._methods.setdefault(supplied, method)


_Of = Callable[Concatenate[PrimFunc, str, P], PrimFunc]
_Making = Callable[Concatenate[PrimFunc, str, P], tuple[PrimFunc, str]]
_MakingSeveral = Callable[Concatenate[PrimFunc, str, P], tuple[PrimFunc, tuple[str, ...]]]
_MakingIn = Callable[Concatenate[PrimFunc, str, str, P], tuple[PrimFunc, str]]


@overload
def on_block(
    function: _Of[P],
) -> Primitive[_Of[P], Callable[Concatenate[BlockRef | str, P], None], Callable[P, None]]: ...
@overload
def on_block(
    function: _Making[P],
) -> Primitive[_Making[P], Callable[Concatenate[BlockRef | str, P], BlockRef], Callable[P, Stage]]: ...
@overload
def on_block(
    function: _MakingSeveral[P],
) -> Primitive[
    _MakingSeveral[P],
    Callable[Concatenate[BlockRef | str, P], tuple[BlockRef, ...]],
    Callable[P, tuple[Stage, ...]],
]: ...
def on_block(function: Callable[..., Any]) -> Any:
    """Declare a primitive whose parameters are the program, a block and others."""
    return Primitive(function, ("block",))


def loop_on_block(
    function: _Making[P],
) -> Primitive[_Making[P], Callable[Concatenate[BlockRef | str, P], LoopRef], Callable[P, LoopRef]]:
    """Declare a primitive whose parameters are the program, a block and others, and which makes a loop."""
    return Primitive(function, ("block",), "loop")


def on_loop(
    function: _Of[P],
) -> Primitive[_Of[P], Callable[Concatenate[LoopRef | str, P], None], Callable[Concatenate[Axis, P], None]]:
    """Declare a primitive whose parameters are the program, a loop and others."""
    return Primitive(function, ("loop",))


def on_block_in_loop(
    function: _MakingIn[P],
) -> Primitive[
    _MakingIn[P],
    Callable[Concatenate[BlockRef | str, LoopRef | str, P], BlockRef],
    Callable[Concatenate[Axis, P], Stage],
]:
    """Declare a primitive whose parameters are the program, a block, a loop and others, and which makes a block."""
    return Primitive(function, ("block", "loop"))


def names(cls: type) -> frozenset[str]:
    """The names of a class's methods that are primitives."""
    return frozenset(n for base in cls.__mro__ for n, value in vars(base).items() if isinstance(value, Primitive))
