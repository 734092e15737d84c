"""Damage to text: programs, graphs, traces and manifests with pieces lost, doubled, swapped and strange numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.fuzz.corpus import corpus
from tilewright import te
from tilewright.compiler import graph_passes
from tilewright.frontend.read import import_model
from tilewright.ir.loops import PrimFunc
from tilewright.ir.parser import parse_func
from tilewright.ir.verify import verify_func, verify_graph
from tilewright.ops import parse_graph
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.trace import parse_trace
from tilewright.targets.target import Target

PIECES = tuple(
    """( ) [ ] { } , : = -> < > + - * / // % @ $ " ' \\ # for if let block store select f32 i64 bool nan inf -inf 0 -1
    1e999 0x7 99999999999999999999 9223372036854775808 -9223372036854775809 \0 é \N{SNOWMAN} params where return
    graph func array base64 split( reorder( ........ (((((((( [[[[[[[[ -------- !!""".split()
) + ("\n", " ", "\t", "(" * 3000, "-" * 3000, "[" * 3000, "9" * 5000)


def damaged(text: str, other: str, rng: random.Random) -> str:
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        length = rng.choice((0, 1, 2, 5, 20))
        match rng.randrange(6):
            case 0:
                text = text[:at]
            case 1:
                text = text[:at] + rng.choice(PIECES) + text[at + length :]
            case 2:
                text = text[:at] + text[at + length :]
            case 3:
                start = rng.randrange(len(other) + 1)
                text = text[:at] + other[start : start + rng.choice((5, 20, 80))] + text[at + length :]
            case 4:
                text = text[:at] + text[at : at + length] * 2 + text[at + length :]
            case _:
                lines = text.split("\n")
                rng.shuffle(lines) if rng.random() < 0.2 else lines.append(rng.choice(lines))
                text = "\n".join(lines)
    return text


def matmul() -> PrimFunc:
    a, b = te.placeholder((8, 12), name="A"), te.placeholder((12, 6), name="B")
    k = te.reduce_axis((0, 12), name="k")
    c = te.compute((8, 6), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return te.create_prim_func([a, b, c], "matmul")


def _schedule() -> Schedule:
    s = Schedule(matmul())
    i, j, k0 = s.loops(s.block("C"))
    io, ii = s.split(i, factor=4)
    jo, ji = s.split(j, factor=3)
    s.reorder(io, jo, k0, ii, ji)
    s.vectorize(ji)
    s.parallel(io)
    return s


def sources() -> dict[str, tuple[list[str], Callable[[str], Any]]]:
    """Valid texts of each kind with what reads them."""
    graphs = []
    for data in corpus().values():
        graph = import_model(data).graph
        graphs.append(str(graph))
        for _, run in graph_passes(Target.host())[:4]:
            graph = run(graph)
        graphs.append(str(graph))
    s = _schedule()
    return {
        "graph": (graphs, parse_graph),
        "func": ([str(s.func), str(matmul())], parse_func),
        "trace": ([str(s.trace)], parse_trace),
    }


def read_damaged(known: dict[str, tuple[list[str], Callable[[str], Any]]], seed: int) -> str:
    """Read the damaged text of this seed; what is read must print and read back equal. Raises tilewright's errors."""
    rng = random.Random(seed)
    kind = rng.choice(sorted(known))
    texts, parse = known[kind]
    result = parse(damaged(rng.choice(texts), rng.choice(texts), rng))
    assert parse(str(result)) == result, f"a {kind} that does not print as it reads"
    match kind:
        case "trace":
            result.replay(matmul())
        case "func":
            verify_func(result)
        case _:
            verify_graph(result)
    return f"{kind} read"
