"""Traces: the primitives applied to a function, as a program that prints, parses and replays.

    b0 = s.block("C")
    l0, l1 = s.loops(b0)
    v0, v1 = s.sample_perfect_tile(l0, n=2, max_innermost=16, decision=[4, 8])
    l2, l3 = s.split(l0, factors=[v0, v1])
    s.vectorize(l3)

    trace       := { instruction "\\n" }
    instruction := [ ref { "," ref } "=" ] "s" "." name "(" [ argument { "," argument } ] ")"
    argument    := value | name "=" value
    value       := ref | number | string | "None" | "True" | "False" | "[" [ value { "," value } ] "]" | map
    map         := "lambda" name { "," name } ":" "(" expr { "," expr } [ "," ] ")"
    ref         := ("b" | "l" | "v") digits

The text is read by the parser below and never executed. References name blocks, loops and sampled values through the
results of earlier instructions; a `decision` is kept separate from the attributes, so that it can be overridden.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NoReturn

from tilewright.ir.expr import Var
from tilewright.ir.rewrite import variables
from tilewright.schedule.index_map import IndexMap
from tilewright.support.classes import dataclass
from tilewright.support.errors import ParseError, ScheduleError

if TYPE_CHECKING:
    from tilewright.ir.loops import PrimFunc
    from tilewright.schedule.schedule import Schedule

RefKind = Literal["b", "l", "v"]


@dataclass(frozen=True, slots=True)
class Ref:
    """The result of an instruction: a block (`b0`), a loop (`l0`) or a sampled value (`v0`)."""

    kind: RefKind
    number: int

    def __str__(self) -> str:
        return f"{self.kind}{self.number}"


Value = None | bool | int | float | str | Ref | IndexMap | tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One primitive of a trace: its inputs in order, attributes by name, the decision that it took (if it samples), and
    its results."""

    primitive: str
    inputs: tuple[Value, ...] = ()
    attributes: tuple[tuple[str, Value], ...] = ()
    outputs: tuple[Ref, ...] = ()
    decision: Value = None

    def __str__(self) -> str:
        arguments = [value_text(v) for v in self.inputs]
        arguments += [f"{name}={value_text(v)}" for name, v in self.attributes]
        if self.decision is not None:
            arguments.append(f"decision={value_text(self.decision)}")
        results = f"{', '.join(map(str, self.outputs))} = " if self.outputs else ""
        return f"{results}s.{self.primitive}({', '.join(arguments)})"


@dataclass(frozen=True, slots=True)
class Trace:
    """The instructions that made a schedule, in order."""

    instructions: tuple[Instruction, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.instructions))

    def __len__(self) -> int:
        return len(self.instructions)

    @property
    def decisions(self) -> dict[int, Value]:
        """The decisions taken, by the position of the instruction that took them."""
        return {k: i.decision for k, i in enumerate(self.instructions) if i.decision is not None}

    def with_decisions(self, decisions: Mapping[int, Value | Sequence[Value]]) -> Trace:
        """A copy of the trace with other decisions for the instructions at the positions in `decisions`. Raises
        ScheduleError for an instruction that takes none."""
        changed = list(self.instructions)
        for k, decision in decisions.items():
            if changed[k].decision is None:
                raise ScheduleError(f"instruction {k} takes no decision: {changed[k]}")
            new = tuple(decision) if isinstance(decision, list | tuple) else decision
            changed[k] = replace(changed[k], decision=new)  # type: ignore[arg-type]
        return Trace(tuple(changed))

    def simplified(self) -> Trace:
        """A copy of the trace without look-ups whose results are unused."""
        used: set[Ref] = set()
        retained: list[Instruction] = []
        for i in reversed(self.instructions):
            if i.primitive in LOOKUPS and used.isdisjoint(i.outputs):
                continue
            retained.append(i)
            used.update(_refs((*i.inputs, *(v for _, v in i.attributes))))
        return Trace(tuple(reversed(retained)))

    def replay(self, func: PrimFunc) -> Schedule:
        """Apply the instructions to `func`. Raises ScheduleError where one does not fit."""
        from tilewright.schedule.schedule import Schedule

        schedule = Schedule(func)
        for instruction in self.instructions:
            schedule.execute(instruction)
        return schedule


LOOKUPS = frozenset({"block", "loop", "loops"})
"""Primitives that only look up existing blocks and loops."""


def _refs(values: Iterable[Value]) -> Iterator[Ref]:
    for v in values:
        if isinstance(v, Ref):
            yield v
        elif isinstance(v, tuple):
            yield from _refs(v)


def value_text(v: Value) -> str:
    """The text of a value in a trace."""
    match v:
        case None | bool() | Ref() | IndexMap():
            return str(v)
        case str():
            return json.dumps(v)
        case tuple():
            return f"[{', '.join(map(value_text, v))}]"
        case float():
            return repr(v)
        case _:
            return str(int(v))


_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|\#[^\n]*)
    |(?P<newline>\n)
    |(?P<number>-?(?:[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|inf|nan)(?![A-Za-z0-9_]))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<sign>[=.,:()\[\]])""",
    re.VERBOSE,
)
_REF = re.compile(r"([blv])([0-9]{1,9})")
_WORDS: dict[str, Value] = {"None": None, "True": True, "False": False}


def parse_trace(text: str, *, source: str = "<trace>") -> Trace:
    """The trace that a text describes. Raises ParseError."""
    return _Parser(text, source).trace()


class _Parser:
    """Recursive descent over one text; `at` is the offset of the next token."""

    def __init__(self, text: str, source: str) -> None:
        self.text, self.source, self.at = text, source, 0

    def trace(self) -> Trace:
        results: list[Instruction] = []
        while True:
            kind, token = self.peek()
            if kind == "end":
                return Trace(tuple(results))
            if kind == "newline":
                self.take()
                continue
            results.append(self.instruction())
            kind, token = self.take()
            if kind not in ("newline", "end"):
                self.fail(f"expected the end of the line, got {token!r}")

    def instruction(self) -> Instruction:
        outputs: list[Ref] = []
        _, token = self.peek()
        if token != "s":
            outputs.append(self.ref())
            while self.accept(","):
                outputs.append(self.ref())
            self.expect("=")
        self.expect("s")
        self.expect(".")
        primitive = self.name()
        self.expect("(")
        inputs: list[Value] = []
        attributes: list[tuple[str, Value]] = []
        decision: Value = None
        while not self.accept(")"):
            if inputs or attributes or decision is not None:
                self.expect(",")
            name = self.keyword()
            value = self.value(0)
            if name is None and (attributes or decision is not None):
                self.fail("a positional argument after a named one")
            if name is None:
                inputs.append(value)
            elif name == "decision":
                decision = value
            elif name in dict(attributes):
                self.fail(f"argument {name!r} is given twice")
            else:
                attributes.append((name, value))
        return Instruction(primitive, tuple(inputs), tuple(attributes), tuple(outputs), decision)

    def keyword(self) -> str | None:
        """The name of a named argument, if one comes next."""
        start = self.at
        kind, token = self.take()
        if kind == "name" and self.accept("="):
            return token
        self.at = start
        return None

    def value(self, depth: int) -> Value:
        if depth > 20:
            self.fail("lists are nested too deeply")
        kind, token = self.take()
        if kind == "number":
            try:
                return float(token) if any(c in token for c in ".enf") else int(token)
            except ValueError:  # Python reads no more than 4300 digits
                self.fail(f"bad number {token[:40]}")
        if kind == "string":
            try:
                return str(json.loads(token))
            except ValueError:
                self.fail(f"bad string {token}")
        if token == "[":
            items: list[Value] = []
            while not self.accept("]"):
                if items:
                    self.expect(",")
                items.append(self.value(depth + 1))
            return tuple(items)
        if token == "lambda":
            return self.index_map()
        if kind == "name" and token in _WORDS:
            return _WORDS[token]
        match = _REF.fullmatch(token)
        if match is None:
            self.fail(f"expected a value, got {token or 'the end'!r}")
        return _ref(match)

    def index_map(self) -> IndexMap:
        from tilewright.ir.parser import parse_expr  # which compiles of models do without

        arguments: list[Var] = []
        if self.peek()[1] != ":":
            arguments.append(Var(self.name()))
            while self.accept(","):
                arguments.append(Var(self.name()))
        self.expect(":")
        self.expect("(")
        results = [
            parse_expr(part, variables=arguments, source=self.source) for part in self.parenthesized() if part.strip()
        ]
        foreign = {v.name for e in results for v in variables(e)} - {v.name for v in arguments}
        if foreign:
            self.fail(f"the map mentions {', '.join(sorted(foreign))}, which is not among its indices")
        return IndexMap(tuple(arguments), tuple(results))

    def parenthesized(self) -> list[str]:
        """The texts between the commas up to the parenthesis that closes an open one."""
        parts, depth, start = [], 0, self.at
        for k in range(self.at, len(self.text)):
            c = self.text[k]
            if c in "([":
                depth += 1
            elif c in ")]" and depth:
                depth -= 1
            elif c in ",)" and not depth:
                parts.append(self.text[start:k])
                start = k + 1
                if c == ")":
                    self.at = k + 1
                    return parts
        self.fail("the parenthesis is not closed")

    def ref(self) -> Ref:
        _, token = self.take()
        match = _REF.fullmatch(token)
        if match is None:
            self.fail(f"expected a result such as b0, l0 or v0, got {token or 'the end'!r}")
        return _ref(match)

    def name(self) -> str:
        kind, token = self.take()
        if kind != "name":
            self.fail(f"expected a name, got {token or 'the end'!r}")
        return token

    def accept(self, token: str) -> bool:
        start = self.at
        if self.take()[1] == token:
            return True
        self.at = start
        return False

    def expect(self, token: str) -> None:
        got = self.take()[1]
        if got != token:
            self.fail(f"expected {token!r}, got {got or 'the end'!r}")

    def peek(self) -> tuple[str, str]:
        start = self.at
        token = self.take()
        self.at = start
        return token

    def take(self) -> tuple[str, str]:
        while self.at < len(self.text):
            match = _TOKEN.match(self.text, self.at)
            if match is None:
                self.fail(f"unexpected character {self.text[self.at]!r}")
            self.at = match.end()
            if match.lastgroup != "space":
                return match.lastgroup or "", match.group()
        return "end", ""

    def fail(self, what: str) -> NoReturn:
        before = self.text[: self.at]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise ParseError(what, where=f"{self.source}:{line}:{column}")


def _ref(result: re.Match[str]) -> Ref:
    kind: RefKind = result[1]  # type: ignore[assignment]
    return Ref(kind, int(result[2]))
