"""Hostile fx graphs: a damaged `ExportedProgram`, or a graph of TorchDynamo, is refused with an error that names it.

Mutants are of programs that PyTorch made: operators exchanged, operands and numbers changed or missing, types and
shapes that are not what the operators give. `make fuzz` runs TILEWRIGHT_FUZZ_CASES (10,000) of them.
"""

from __future__ import annotations

import copy
import math
import os
import random
import time
from collections import Counter
from functools import cache
from typing import Any

import pytest

import tilewright as tw
from tilewright.frontend.read import import_model

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
nn = torch.nn

LONG = bool(os.environ.get("TILEWRIGHT_FUZZ"))
FIRST = int(os.environ.get("TILEWRIGHT_FUZZ_SEED", "0"))
COUNT = int(os.environ.get("TILEWRIGHT_FUZZ_CASES", "10000")) if LONG else 15
LIMIT_S = 60.0
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    64,
    1 << 31,
    1 << 40,
    -(1 << 63),
    (1 << 63) - 1,
    0.5,
    float("nan"),
    None,
    True,
    "x",
    [],
    [1, 2],
)


class Convolved(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Any) -> Any:
        return nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(1).mean(1, keepdim=True)


class Attending(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(11, 8), nn.Linear(8, 5)
        self.register_buffer("mask", torch.tril(torch.ones(6, 6)))

    def forward(self, words: Any) -> Any:
        e = self.embed(words)[:, None]
        y = nn.functional.scaled_dot_product_attention(e, e, e, attn_mask=self.mask == 0)[:, 0]
        return self.out(y).softmax(-1), *torch.topk(y, 3, dim=-1)


class Moving(nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any) -> Any:
        y = torch.cat([x[:, 1:], x[:, :1] * 0.5], 1).cumsum(1)
        z = torch.where(y > 0, y, y.roll(1, 1)).std(-1) + torch.fft.rfft(y, dim=1).abs().sum((1, 2))[:, None]
        return z.clamp(-1, 1), *torch.split(y.transpose(1, 2), [2, 2, 4], 1)


@cache
def programs() -> list[Any]:
    """Small programs, as exported and in core operators."""
    inputs = (
        (Convolved(), torch.randn(2, 3, 6, 6)),
        (Attending(), torch.randint(0, 11, (2, 6))),
        (Moving(), torch.randn(2, 6, 8)),
    )
    exported = [torch.export.export(module.eval(), (x,)) for module, x in inputs]
    return [*exported, *(p.run_decompositions() for p in exported)]


@cache
def operators() -> list[Any]:
    nodes = [n for p in programs() for n in p.graph.nodes if n.op == "call_function"]
    return sorted({n.target for n in nodes}, key=str)


def damaged(seed: int) -> Any:
    """A program with one to three changes; a function of its seed."""
    rng = random.Random(seed)
    program = copy.deepcopy(rng.choice(programs()))
    nodes = [n for n in program.graph.nodes if n.op in ("call_function", "placeholder")]
    for _ in range(rng.randint(1, 3)):
        damage(rng, rng.choice(nodes), nodes)
    return program


def damage(rng: random.Random, node: Any, nodes: list[Any]) -> None:
    calls = node.op == "call_function"
    match rng.randrange(5):
        case 0 if calls:
            node.target = rng.choice(operators())
        case 1 if calls and node.args:
            args = list(node.args)
            args[rng.randrange(len(args))] = changed(rng, rng.choice(args), nodes)
            node.args = tuple(args)
        case 2 if calls and node.args:
            node.args = node.args[: rng.randrange(len(node.args))]
        case 3 if calls:
            node.args = (*node.args, rng.choice(NUMBERS))
        case _:
            node.meta["val"] = stated(rng, node.meta.get("val"))


def changed(rng: random.Random, argument: Any, nodes: list[Any]) -> Any:
    """Another operand: of the nodes before and after, or a number; of a list one element."""
    if isinstance(argument, list | tuple) and argument and rng.random() < 0.7:
        items = list(argument)
        items[rng.randrange(len(items))] = changed(rng, items[0], nodes)
        return items
    return rng.choice(nodes) if rng.random() < 0.5 else rng.choice(NUMBERS)


def stated(rng: random.Random, held: Any) -> Any:
    """Another type, another shape, or none."""
    if not isinstance(held, torch.Tensor) or rng.random() < 0.2:
        return rng.choice((None, 3, "x", (), [None]))
    shape = list(held.shape)
    if shape and rng.random() < 0.7:
        shape[rng.randrange(len(shape))] = rng.choice((0, 1, 2, 5, 1 << 40))
    if math.prod(shape) >= 1 << 60:  # PyTorch itself makes no tensor of so many bytes
        shape = [1 << 40]
    dtype = rng.choice((torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn))
    return torch.empty(shape, dtype=dtype, device="meta") if rng.random() < 0.9 else None


def test_damaged_exported_programs() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + COUNT):
        program, started = damaged(seed), time.monotonic()
        try:
            import_model(program)
            outcomes["read"] += 1
        except tw.Error as error:
            assert str(error).strip(), seed
            outcomes["refused"] += 1
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        assert time.monotonic() - started < LIMIT_S, f"seed {seed} takes too long"
    assert 0.2 * COUNT < outcomes["refused"] < COUNT, outcomes


def test_damaged_graphs_of_dynamo() -> None:
    """The survey says of each node whether it is taken, whatever it is: PyTorch runs the rest."""
    from tilewright.frontend.torch.aten import survey

    refused = 0
    for seed in range(FIRST, FIRST + COUNT):
        try:
            refused += bool(survey(damaged(seed).graph_module, "damaged").refused)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    assert refused > 0.2 * COUNT


class Choosing(nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))


def test_a_region_that_is_its_own() -> None:
    """A branch that is the graph in which it stands."""
    from tilewright.frontend.torch.aten import survey

    program = torch.export.export(Choosing(), (torch.randn(3),))
    program.graph_module.true_graph_0 = program.graph_module
    with pytest.raises(tw.Error):
        import_model(program)
    assert survey(program.graph_module, "circle").refused
