"""The cells of recurrent layers, each written once, as its formula.

Gates are named in the order of their columns in the weights. `i` in a formula is the inputs' share of the gate i, and
`h @ Ri` the product of the state with that gate's recurrent weights; F, G and H are the layer's functions. A name with
`new_` is a state after the step. All else that knows a cell is derived from these lines: its reference, its loops, its
gradient, the steps of an unrolled layer, and what exporters write.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache

from tilewright.ir.attributes import Number
from tilewright.ops.pointwise import Functions
from tilewright.ops.steps import Program, Step
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Cell:
    """A recurrent cell.

    gates       names, in the order of their columns in the weights
    states      "h", and "c" if the cell has two
    functions   the operators that F, G and H are by default
    formula     lines of assignments; each state is assigned after the last use of its old value
    vectors     names of operands [H] that are the same for all rows: peepholes, or a bias that a gate scales
    retained    names of values that the backward pass reads; without them it reads the states
    """

    gates: tuple[str, ...]
    states: tuple[str, ...]
    functions: tuple[str, ...]
    formula: str
    vectors: tuple[str, ...] = ()
    retained: tuple[str, ...] = ()


LSTM = Cell(
    gates=("i", "o", "f", "g"),
    states=("h", "c"),
    functions=("sigmoid", "tanh", "tanh"),
    vectors=("pi", "po", "pf"),
    formula="""
i = F(i + h @ Ri + pi * c)
g = G(g + h @ Rg)
f = F(f + h @ Rf + pf * c)
new_c = f * c + i * g
o = F(o + h @ Ro + po * new_c)
seen = H(new_c)
new_h = o * seen
""",
    retained=("i", "o", "f", "g", "c", "seen"),
)
"""The LSTM of Hochreiter and Schmidhuber 1997, with the forget gate and the peepholes of Gers et al. 2000 and 2002."""

GRU = Cell(
    gates=("z", "r", "n"),
    states=("h",),
    functions=("sigmoid", "tanh"),
    formula="""
z = F(z + h @ Rz)
r = F(r + h @ Rr)
n = G(n + (r * h) @ Rn)
new_h = (1 - z) * n + z * h
""",
)
"""The GRU of Cho et al. 2014: the reset gate scales the state before the candidate's product."""

LINEAR_GRU = Cell(
    gates=GRU.gates,
    states=GRU.states,
    functions=GRU.functions,
    vectors=("bn",),
    formula="""
z = F(z + h @ Rz)
r = F(r + h @ Rr)
product = bn + h @ Rn
n = G(n + r * product)
new_h = (1 - z) * n + z * h
""",
    retained=("z", "r", "n", "product"),
)
"""The GRU of cuDNN and PyTorch: the reset gate scales the candidate's product (ONNX: `linear_before_reset`)."""

RNN = Cell(gates=("x",), states=("h",), functions=("tanh",), formula="new_h = F(x + h @ Rx)")
"""The simple recurrent cell of Elman 1990."""

_CELLS = {("lstm", False): LSTM, ("gru", False): GRU, ("gru", True): LINEAR_GRU, ("rnn", False): RNN}


def cell(kind: str, linear_before_reset: bool = False) -> Cell:
    """The cell "lstm", "gru" or "rnn"; `linear_before_reset` tells a GRU's two kinds from each other."""
    return _CELLS[kind, kind == "gru" and linear_before_reset]


def standard(kind: str) -> Functions:
    """The default activation functions of the cell `kind` ("lstm", "gru" or "rnn"), without attributes."""
    return tuple((name, ()) for name in cell(kind).functions)


@lru_cache(maxsize=64)
def program(of: Cell, functions: Functions, clip: float | None = None) -> Program:
    """The steps of the cell `of` with these functions; the arguments of F and G are clipped to +-`clip`.

    The program's arguments are the inputs' share of each gate, the states, the vectors.
    """
    lines = _Lines(of.gates, functions, clip, {}, [])
    for name in (*of.gates, *of.states, *of.vectors):
        lines.names[name] = len(lines.names)
    count = lines.count = len(lines.names)
    for line in ast.parse(of.formula).body:
        assert isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
        lines.names[line.targets[0].id] = lines.value(line.value)
    results = tuple(lines.names[f"new_{state}"] for state in of.states)
    retained = tuple(lines.names[name] for name in of.retained)
    return Program(len(of.gates), count, tuple(lines.steps), results, retained)


_OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}
_FUNCTIONS = "FGH"
_UNCLIPPED = "H"
"""The function whose argument is not clipped: it is applied to the new state, not to a gate."""


@dataclass(slots=True)
class _Lines:
    """The translation of a cell's formula to steps. `gates`: the names of the cell's gates; `functions`: the
    activations that F, G and H stand for, with arguments clipped to +-`clip` unless it is None. `names`: the number of
    the value that each name has at present; `steps`: the steps so far; `count`: the number of values so far."""

    gates: Sequence[str]
    functions: Functions
    clip: float | None
    names: dict[str, int]
    steps: list[Step]
    count: int = 0

    def value(self, e: ast.expr) -> int:
        """The number of the value of the expression `e`; adds the steps that compute it."""
        match e:
            case ast.Name(name):
                return self.names[name]
            case ast.Constant(int(number)):
                return self.step("constant", value=float(number))
            case ast.BinOp(start, ast.Add(), ast.BinOp(state, ast.MatMult(), ast.Name(weights))):
                return self.step("product", self.value(start), self.value(state), gate=self.gates.index(weights[1:]))
            case ast.BinOp(left, operator, right):
                return self.step(_OPERATORS[type(operator)], self.value(left), self.value(right))
            case ast.Call(ast.Name(name), [argument]):
                return self.function(name, self.value(argument))
        raise AssertionError(ast.dump(e))

    def function(self, name: str, x: int) -> int:
        if self.clip is not None and name not in _UNCLIPPED:
            x = self.step("clip", x, min=-self.clip, max=self.clip)
        op, attrs = self.functions[_FUNCTIONS.index(name)]
        return self.step(op, x, **dict(attrs))

    def step(self, op: str, *operands: int, **attrs: Number) -> int:
        self.steps.append((op, operands, tuple(attrs.items())))
        return self.count + len(self.steps) - 1
