"""Prints expressions and statements as text that parses back to the same."""

from __future__ import annotations

import math

from tilewright.formulas.nests import Nest
from tilewright.formulas.parser import BINDING
from tilewright.formulas.syntax import SIGNS, Apply, Name, Node, Number, Range, Read, Reduction, Size

_SIGN = 7
"""The precedence of a sign or "not" before an operand."""
_ATOM = 9


def text_of(node: Node, least: int = 0) -> str:
    """The text of an expression, in parentheses if its operator binds weaker than `least`."""
    text, power = _parts(node)
    return f"({text})" if power < least else text


def _parts(node: Node) -> tuple[str, int]:
    match node:
        case Number(value=value):
            return _number(value)
        case Name(name=name):
            return name, _ATOM
        case Size(tensor=tensor, dim=dim):
            return f"{tensor}.shape[{dim}]", _ATOM
        case Read():
            return _read(node), _ATOM
        case Reduction():
            over = "" if node.over is None else f"[{', '.join(n.name for n in node.over)}]"
            return f"{node.reducer}{over}({text_of(node.body)})", _ATOM
        case Apply(name="if", args=(then, condition, orelse)):
            return f"{text_of(then, 1)} if {text_of(condition, 1)} else {text_of(orelse)}", 0
        case Apply(name="not", args=(inner,)):
            return f"not {text_of(inner, 3)}", 3
        case Apply(name="neg", args=(inner,)):
            # A literal after a sign would be read as a negative one.
            shown = f"({text_of(inner)})" if isinstance(inner, Number) else text_of(inner, _SIGN + 1)
            return f"-{shown}", _SIGN
        case Apply(name=name, args=args) if name in BINDING:
            power = BINDING[name]
            strict = 1 if name in BINDING and power == 4 else 0
            left, right = (power + 1, power) if name == "**" else (power + strict, power + 1)
            return f"{text_of(args[0], left)} {name} {text_of(args[1], right)}", power
    assert isinstance(node, Apply)
    return f"{node.name}({', '.join(map(text_of, node.args))})", _ATOM


def _number(value: bool | int | float) -> tuple[str, int]:
    if isinstance(value, float) and math.isnan(value):
        return "nan", _ATOM
    text = repr(value)
    return text, _SIGN if text.startswith("-") else _ATOM


def _read(node: Read) -> str:
    text = f"{node.tensor}[{', '.join(map(text_of, node.indices))}]"
    if node.fill is not None:
        return f"{node.outside}({text}, {text_of(node.fill)})"
    return f"{node.outside}({text})" if node.outside else text


def range_text(r: Range) -> str:
    return f"{r.index} in {text_of(r.lo)}:{text_of(r.hi)}"


def nest_text(nest: Nest) -> str:
    """The text of a nest, as a statement."""
    sign = "=" if nest.reducer is None else SIGNS[nest.reducer]
    body = text_of(nest.body)
    clauses = [range_text(r) for r in nest.ranges]
    if nest.condition is not None:
        clauses.append(text_of(nest.condition))
    where = f" where {', '.join(clauses)}" if clauses else ""
    return f"{nest.target}[{', '.join(nest.left)}] {sign} {body}{where}"
