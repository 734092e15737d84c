"""The hierarchy of errors: every error names the object that it is about, and all problems are listed at once.

Raise one problem directly:

    raise ShapeError("operands do not broadcast", where="m.onnx: node 'Add_3' (Add)", expected="(n, 4)", got="(n, 5)")

or collect several and raise them together, which raises nothing if the list is empty:

    problems = Problems()
    for name in missing:
        problems.add(WeightError("weight is missing", where=f"weight {name!r}"))
    problems.raise_if_any("the update was refused")

A single problem is raised as itself; several are raised as their common class, with `.problems` holding each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Self, TypedDict, Unpack

__all__ = [
    "ArtifactError",
    "BrokerError",
    "CacheError",
    "CallError",
    "CollectiveError",
    "CompileError",
    "ComprehensionError",
    "DTypeError",
    "EngineError",
    "Error",
    "ExpressionError",
    "FlagError",
    "MissingPackageError",
    "ModelError",
    "ParseError",
    "PluginError",
    "PluginWarning",
    "Problems",
    "RecordError",
    "RecordWarning",
    "ScheduleError",
    "ShapeError",
    "StoreError",
    "TargetError",
    "TransportError",
    "UnsupportedError",
    "ValueNeededError",
    "VerifyError",
    "WeightError",
    "user_line",
]

_MAX_LISTED = 100
"""The largest number of problems that one message lists."""


class Details(TypedDict, total=False):
    """The details of an error beside its first sentence: the keyword arguments of `Error`."""

    where: str | None
    expected: object
    got: object
    hint: str | None
    problems: Iterable[Error]


class Error(Exception):
    """Base of every error of Tilewright.

    Args:
        what: what is wrong, one sentence in lower case without a final stop.
        where: the thing it is about: file, node, operator, input, weight, block or loop.
        expected: what would have been right.
        got: what was found.
        hint: what the reader may do about it.
        problems: the single errors that this one lists.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        expected: object = None,
        got: object = None,
        hint: str | None = None,
        problems: Iterable[Error] = (),
    ) -> None:
        self.what = what
        self.where = where
        self.expected = None if expected is None else str(expected)
        self.got = None if got is None else str(got)
        self.hint = hint
        self.problems: tuple[Error, ...] = tuple(problems)
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.headline()]
        lines += [f"  {i}. {_indent(str(p))}" for i, p in enumerate(self.problems[:_MAX_LISTED], 1)]
        if len(self.problems) > _MAX_LISTED:
            lines.append(f"  ... and {len(self.problems) - _MAX_LISTED} more")
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)

    def headline(self) -> str:
        """The first line: where, what, expected, got."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        details = []
        if self.expected:
            details.append(f"expected {self.expected}")
        if self.got:
            details.append(f"got {self.got}")
        return f"{text}: {', '.join(details)}" if details else text

    def each(self) -> Iterator[Error]:
        """The single problems: those listed, or this error itself."""
        if not self.problems:
            yield self
        for problem in self.problems:
            yield from problem.each()

    def to_dict(self) -> dict[str, object]:
        """The fields as a dict, for `--json` output."""
        fields: dict[str, object] = {"error": type(self).__name__, "what": self.what}
        for name in ("where", "expected", "got", "hint"):
            value = getattr(self, name)
            if value is not None:
                fields[name] = value
        if self.problems:
            fields["problems"] = [p.to_dict() for p in self.problems]
        return fields

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only fields do not survive Exception's own pickling; workers send errors to their parents.
        return _rebuild, (type(self), self.what, dict(self.__dict__))

    @classmethod
    def combined(cls, problems: Iterable[Error], what: str | None = None, *, where: str | None = None) -> Self | Error:
        """One error for several problems, with the message `what` about the place `where`, to be raised by the caller.

        A single problem is returned as itself. Several become one error of `cls`, or, when called on `Error`, of the
        class that they share. Raises ValueError for no problem.
        """
        results = [single for problem in problems for single in problem.each()]
        if not results:
            raise ValueError("Error.combined needs at least one problem")
        if len(results) == 1:
            return results[0]
        kind = cls if cls is not Error else _common_class(results)
        merged = kind.__new__(kind)
        Error.__init__(merged, what or f"{len(results)} problems", where=where, problems=results)
        return merged


class ModelError(Error):
    """A model file or graph that cannot be read or is invalid."""


class MissingPackageError(ModelError):
    """An optional package is not installed that a model, or a requested function, needs."""


class UnsupportedError(ModelError):
    """A valid model that uses a feature which Tilewright lacks (operator, attribute, dtype). `any_size`: it is lacking
    for all sizes."""

    any_size = False


class ValueNeededError(UnsupportedError):
    """A value that decides the structure of a program is not known when compiling. `needs`: the importer's description
    of it."""

    def __init__(self, what: str, needs: object = None, **details: Unpack[Details]) -> None:
        super().__init__(what, **details)
        self.needs = needs


class ShapeError(ModelError):
    """Shapes that do not fit: ranks, dimensions, symbols. `open`: whether they may fit at run time, as some sizes are
    only known then."""

    open = False


class TooSmallError(ShapeError):
    """A symbolic dimension may be smaller than an operation needs. `needs`: the symbol and its least sufficient size,
    if the dimension is a single symbol."""

    needs: tuple[str, int] | None = None


class DTypeError(ModelError):
    """Element types that do not fit."""


class ParseError(Error):
    """Text of an IR or a trace that does not parse. `where` is file:line:column."""


class VerifyError(Error):
    """An IR that breaks a rule of its grammar; after a pass this is a defect of the compiler."""


class ExpressionError(Error, TypeError, ValueError):
    """A tensor expression that is not well formed: types, indices, axes. `where` is the line that wrote it."""

    def __init__(self, what: str, **details: Unpack[Details]) -> None:
        if details.get("where") is None:
            details["where"] = user_line()
        super().__init__(what, **details)


class ScheduleError(Error):
    """A schedule primitive that would change the program's meaning, or does not fit. Shows the loops.

    Args:
        loops: the program as text, as it stands before the refused step.
    """

    def __init__(self, what: str, *, loops: str | None = None, **details: Unpack[Details]) -> None:
        super().__init__(what, **details)
        self.loops = loops

    def __str__(self) -> str:
        text = super().__str__()
        loops = getattr(self, "loops", None)
        return f"{text}\nthe loops are:\n{loops.rstrip()}" if loops else text


class ComprehensionError(ModelError):
    """A comprehension that is not well formed or does not fit its arrays. Shows the place in its text.

    Args:
        excerpt: the line of the text and a line that marks the place.
    """

    def __init__(self, what: str, *, excerpt: str | None = None, **details: Unpack[Details]) -> None:
        super().__init__(what, **details)
        self.excerpt = excerpt

    def headline(self) -> str:
        """The first line, and the place below it."""
        excerpt = getattr(self, "excerpt", None)
        return f"{super().headline()}\n{excerpt}" if excerpt else super().headline()


class CompileError(Error):
    """Code generation or LLVM refused a program."""


class TargetError(Error):
    """A target that is unknown, or a machine that cannot run the code."""


class ArtifactError(Error):
    """A `.tw` file that is damaged, foreign, or of another version."""


class WeightError(Error):
    """Weights that are missing, extra, or of the wrong shape or dtype."""


class RecordError(Error):
    """An invalid tuning record, or an unusable database of them."""


class RecordWarning(UserWarning):
    """A tuning record, or a place of records, is ignored."""


class StoreError(Error):
    """A weight store that is missing, full, damaged, foreign, or owned by another user."""


class CallError(Error):
    """Arguments of a call that do not fit: count, name, rank, dims, dtype, device, contiguity."""


class BrokerError(Error):
    """A broker does not exist, does not answer, or does not fit its agents."""


class TransportError(Error):
    """Weights cannot be transferred between machines: addresses, connections, secrets, peers."""


class CollectiveError(Error):
    """A collective operation in which a rank does not take part, or whose ranks make different calls."""


class EngineError(Error):
    """An operation that an engine refuses, because of its arguments or of when it waits."""


class CacheError(Error):
    """The cache folder cannot be used."""


class FlagError(Error):
    """An environment flag has an invalid value."""


class PluginError(Error):
    """A plug-in provides an object of the wrong kind for its group, or a name that is already in use."""


class PluginWarning(UserWarning):
    """A plug-in is ignored, as it cannot be loaded or registered."""


def user_line() -> str | None:
    """The executing line outside of Tilewright, as "file:line"; None if there is none."""
    frame = sys._getframe(1)
    while str(frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE:
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return file_line(frame.f_code.co_filename, frame.f_lineno)


def file_line(file: str, line: int) -> str:
    """A place in a source file as errors name it: relative to the working folder where the file is in it."""
    inside = os.path.abspath(file).startswith(os.getcwd() + os.sep)
    return f"{os.path.relpath(file) if inside else file}:{line}"


_PACKAGE = __name__.partition(".")[0]


class Problems:
    """A list of problems that is raised as one error."""

    def __init__(self) -> None:
        self.errors: list[Error] = []

    def __len__(self) -> int:
        return len(self.errors)

    def __iter__(self) -> Iterator[Error]:
        return iter(self.errors)

    def add(self, problem: Error) -> None:
        """Record a problem without raising it."""
        self.errors.append(problem)

    def raise_if_any(self, what: str | None = None, *, where: str | None = None, kind: type[Error] = Error) -> None:
        """Raise all problems noted so far as one error (of `kind`, or of the class they share) with the message `what`
        about `where`; else do nothing."""
        if self.errors:
            raise kind.combined(self.errors, what, where=where)


def _common_class(errors: list[Error]) -> type[Error]:
    for candidate in type(errors[0]).__mro__:
        if issubclass(candidate, Error) and all(isinstance(e, candidate) for e in errors):
            return candidate
    return Error


def _rebuild(kind: type[Error], what: str, fields: dict[str, object]) -> Error:
    error = kind.__new__(kind)
    Exception.__init__(error, what)
    error.__dict__.update(fields)
    return error


def _indent(text: str) -> str:
    return text.replace("\n", "\n     ")
