"""Random comprehensions with arrays that fit them: affine indices, strides, windows, pads, gathers, one to three
reductions, conditions, all element types."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

import numpy as np

from tilewright.ir.dtype import BY_NAME

FLOATS = ("f32", "f32", "f32", "f64", "f16", "bf16")
INTEGERS = ("i32", "i64", "i8", "u8", "i16", "u32")
MAX_POINTS = 6000


@dataclass(slots=True)
class Case:
    """A text, its arrays in calling order, and the sizes of all indices."""

    text: str
    arrays: list[np.ndarray]


@dataclass(slots=True)
class _Maker:
    rng: random.Random
    numbers: np.random.Generator
    dtype: str
    left: list[str] = field(default_factory=list)
    reduced: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    stated: set[str] = field(default_factory=set)

    def array(self, shape: list[int], dtype: str | None = None) -> str:
        name = f"{'ABDEFGH'[len(self.arrays) % 7]}{len(self.arrays)}"
        kind = BY_NAME[dtype or self.dtype]
        if kind.is_float:
            created = self.numbers.standard_normal(shape)
            if self.rng.random() < 0.15 and created.size:
                flat = created.reshape(-1)
                flat[self.rng.randrange(created.size)] = self.rng.choice([np.nan, np.inf, -np.inf])
        elif kind.kind == "bool":
            created = self.numbers.integers(0, 2, shape)
        else:
            created = self.numbers.integers(-7 if kind.kind == "int" else 0, 8, shape)
        self.arrays[name] = np.asarray(created).astype(kind.numpy)
        return name

    def place(self, indices: list[str]) -> tuple[str, int]:
        """An index expression and the size of a dimension that it stays inside of."""
        rng = self.rng
        i = rng.choice(indices)
        n = self.sizes[i]
        slack = rng.choice([0, 0, 1, 4])
        match rng.randrange(9):
            case 0 | 1 | 2:
                return i, n
            case 3:
                stride, shift = rng.choice([1, 2, 3]), rng.choice([0, 1, 2])
                self.stated.add(i)
                return f"{stride} * {i} + {shift}", max(0, n - 1) * stride + shift + 1 + slack
            case 4:
                j = rng.choice(indices)
                self.stated |= {i, j}
                stride = rng.choice([1, 2])
                return f"{stride} * {i} + {j}", stride * max(0, n - 1) + max(0, self.sizes[j] - 1) + 1 + slack
            case 5:
                self.stated.add(i)
                return f"{max(0, n - 1)} - {i}", max(1, n) + slack
            case 6:
                self.stated.add(i)
                return f"{i} // 2", max(0, n - 1) // 2 + 1 + slack
            case 7:
                self.stated.add(i)
                return f"{i} % 3", 3 + slack
        return str(rng.randrange(3)), 3 + slack

    def read(self) -> str:
        indices = self.left + self.reduced
        rank = self.rng.choice([0, 1, 1, 2, 2, 3]) if indices else 0
        places = [self.place(indices) for _ in range(rank)]
        kind = self.rng.random()
        if rank and kind < 0.12:
            shifted = [(f"{p} - {self.rng.choice([1, 2])}", max(1, n - self.rng.choice([0, 1]))) for p, n in places]
            for i in indices:
                self.stated.add(i)
            name = self.array([n for _, n in shifted])
            text = f"{name}[{', '.join(p for p, _ in shifted)}]"
            return self.rng.choice([f"pad({text}, 1)", f"clamp({text})", f"wrap({text})"])
        if rank and kind < 0.24:
            i = self.rng.choice(indices)
            self.stated.add(i)
            lookup = self.array([max(1, self.sizes[i])], self.rng.choice(["i64", "i32", "u8"]))
            places[0] = (f"{lookup}[{i}]", self.rng.choice([1, 4, 9]))
        name = self.array([n for _, n in places])
        return f"{name}[{', '.join(p for p, _ in places)}]"

    def expression(self, depth: int) -> str:
        rng = self.rng
        if depth == 0:
            return self.read() if rng.random() < 0.85 else str(rng.choice([1, 2, 3]))
        a, b = self.expression(depth - 1), self.expression(0)
        match rng.randrange(8):
            case 0 | 1 | 2:
                return f"{a} * {b}"
            case 3:
                return f"({a} + {b})"
            case 4:
                return f"({a} - {b})"
            case 5:
                return f"{rng.choice(['max', 'min'])}({a}, {b})"
            case 6 if self.left:
                i = self.rng.choice(self.left)
                self.stated.add(i)
                return f"({a} if {i} % 2 == 0 else {self.read()})"
        if BY_NAME[self.dtype].is_float and self.dtype in ("f32", "f64"):
            return f"{rng.choice(['tanh', 'abs', 'relu', 'sigmoid'])}({self.read()})"
        return self.read()

    def condition(self) -> str:
        i = self.rng.choice(self.reduced)
        self.stated.add(i)
        other = self.rng.choice(self.left + self.reduced + ["2"])
        if other != "2":
            self.stated.add(other)
        return self.rng.choice([f"{i} <= {other}", f"({i} + {other}) % 2 == 0", f"{i} != {other}"])


def generate(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    dtype = rng.choice(FLOATS) if rng.random() < 0.75 else rng.choice(INTEGERS)
    maker = _Maker(rng, np.random.default_rng(seed), dtype)
    maker.left = list("ijlm")[: rng.choice([0, 1, 1, 2, 2, 2, 3])]
    maker.reduced = list("kpq")[: rng.choice([0, 1, 1, 1, 2, 2, 3])]
    reducer = (
        rng.choice(["+!"] * 6 + ["max!", "min!", "*!", "any!", "all!", "argmax!", "argmin!"]) if maker.reduced else "="
    )
    if reducer in ("argmax!", "argmin!"):
        maker.reduced = maker.reduced[:1]
    for i in maker.left + maker.reduced:
        maker.sizes[i] = rng.choice([1, 2, 3, 5, 7, 8, 9, 16, 17, 33])
    while np.prod([maker.sizes[i] for i in maker.sizes], dtype=float) > MAX_POINTS:
        big = max(maker.sizes, key=lambda i: maker.sizes[i])
        maker.sizes[big] //= 2
    if rng.random() < 0.04 and reducer not in ("argmax!", "argmin!"):
        maker.sizes[rng.choice(list(maker.sizes) or ["i"])] = 0
    body = maker.expression(rng.choice([0, 1, 1, 2]))
    if not any(name in body for name in maker.arrays):
        body = f"{maker.read()} + {body}"
    missing = [k for k in maker.reduced if not re.search(rf"\b{k}\b", body)]
    if missing:  # each index that is reduced over stands somewhere
        sizes = [maker.sizes[k] for k in missing]
        body = f"{body} + {maker.array(sizes)}[{', '.join(missing)}]"
    if reducer in ("any!", "all!"):
        body = f"{body} > {maker.expression(0)}" if rng.random() < 0.5 else f"({body}) != 0"
    if reducer == "*!":
        body = body if BY_NAME[dtype].is_int else f"tanh(f32({body})) + 1.0"
    conditions = [maker.condition()] if maker.reduced and rng.random() < 0.2 and not reducer.startswith("arg") else []

    def alone(i: str, body: str) -> bool:
        """Whether a read runs through an index alone, so that its range follows."""
        return re.search(rf"[\[ ]{i}[,\]]", body) is not None

    ranges = [f"{i} in 0:{n}" for i, n in maker.sizes.items() if i in maker.stated or n == 0 or not alone(i, body)]
    where = f" where {', '.join(ranges + conditions)}" if ranges or conditions else ""
    text = f"Y[{', '.join(maker.left)}] {reducer} {body}{where}"
    used = sorted((n for n in maker.arrays if n in text), key=text.index)
    return Case(text, [maker.arrays[n] for n in used])
