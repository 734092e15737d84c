"""Awkward arguments to the doors: a right result or a clear error of ours, never another exception.

A case is a function of its seed: a call that would work, of which one or two arguments are something else: wrong types,
wrong ranks, foreign objects, arrays of strange memory. What comes out must be what the reference gives.

    python -m tests.fuzz.doors 17 300      the seeds 17 to 316, by hand
"""

from __future__ import annotations

import random
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

import tilewright as tw

Random = random.Random


class Raising:
    """An array, as it says; asked for its numbers, it fails."""

    shape = (3, 4)
    dtype = np.dtype(np.float32)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no numbers")

    def __dlpack__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no capsule")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class Sub(torch.Tensor):
    """A subclass of tensors."""


class Own(np.ndarray):
    """A subclass of arrays."""


OBJECTS: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: 0,
    lambda: -1,
    lambda: 1 << 63,
    lambda: 1 << 80,
    lambda: 0.5,
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: True,
    lambda: 1j,
    lambda: "",
    lambda: "x",
    lambda: "é\0",
    lambda: b"x",
    list,
    lambda: [1],
    lambda: [None],
    lambda: (),
    lambda: ("x", 1),
    dict,
    lambda: {"x": 1},
    lambda: {1: 2},
    lambda: {"x": {0: "n"}},
    lambda: {"x": None},
    lambda: set(),
    lambda: object(),
    lambda: lambda x: x,
    lambda: int,
    lambda: Fraction(1, 3),
    lambda: iter([1]),
    lambda: Path("/nowhere/at/all"),
    lambda: np.float32(1),
    lambda: np.int64(2),
    lambda: np.zeros(3),
    lambda: np.zeros((0, 4), np.float32),
    lambda: torch.zeros(2),
    lambda: torch.nn.Linear(2, 2),
    Raising,
    MagicMock,
    lambda: np.array(["a"]),
    lambda: np.datetime64("2020-01-01"),
    lambda: memoryview(b"abc"),
    lambda: slice(3),
    lambda: ...,
    lambda: NotImplemented,
    lambda: ValueError("x"),
)


def unaligned(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    raw = np.zeros(x.nbytes + 1, np.uint8)
    y = raw[1:].view(x.dtype).reshape(x.shape)
    y[...] = x
    return y


ARRAYS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "as it is": lambda x: x,
    "of f64": lambda x: x.astype(np.float64),
    "of f16": lambda x: x.astype(np.float16),
    "of i64": lambda x: x.astype(np.int64),
    "of bool": lambda x: x > 0,
    "complex": lambda x: x.astype(np.complex64),
    "of objects": lambda x: x.astype(object),
    "of text": lambda x: x.astype(str),
    "swapped": lambda x: x.astype(x.dtype.newbyteorder()),
    "backwards": lambda x: x[::-1].copy()[::-1],
    "backwards in rows": lambda x: x[..., ::-1].copy()[..., ::-1],
    "in columns": np.asfortranarray,
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "not aligned": unaligned,
    "read only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "a broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "a matrix": lambda x: np.matrix(x) if x.ndim == 2 else x,
    "a subclass": lambda x: x.view(Own),
    "of no rows": lambda x: x[:0],
    "one row": lambda x: x[:1],
    "one dimension more": lambda x: x[None],
    "one dimension less": lambda x: x[0],
    "one column less": lambda x: x[..., 1:],
    "a list": lambda x: x.tolist(),
    "a number": lambda x: 1.0,
    "a record": lambda x: np.zeros(x.shape, [("a", np.float32)]),
    "a tensor": torch.tensor,
    "a tensor that learns": lambda x: torch.tensor(x).requires_grad_(),
    "a parameter": lambda x: torch.nn.Parameter(torch.tensor(x)),
    "a tensor, transposed": lambda x: torch.tensor(np.ascontiguousarray(x.T)).T,
    "a tensor of bf16": lambda x: torch.tensor(x).bfloat16(),
    "a sparse tensor": lambda x: torch.tensor(x).to_sparse(),
    "a tensor on meta": lambda x: torch.tensor(x).to("meta"),
    "a tensor of a subclass": lambda x: torch.tensor(x).as_subclass(Sub),  # type: ignore[arg-type]
    "a lazy negative": lambda x: torch.complex(torch.tensor(x), -torch.tensor(x)).conj().imag,
    "an expanded tensor": lambda x: torch.tensor(x[:1]).expand(*x.shape),
    "a nested tensor": lambda x: torch.nested.nested_tensor([torch.tensor(r) for r in x]),
    "a quantised tensor": lambda x: torch.quantize_per_tensor(torch.tensor(x), 0.1, 0, torch.qint8),
    "an object": lambda x: object(),
}


# --- what is called ---------------------------------------------------------------------------------------------------


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.inner(x).tanh()


def loss(model: Any, x: Any, y: Any) -> Any:
    return ((model(x) - y) ** 2).mean()


X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
Y = X[:, :2] * 0.5


@cache
def compiled() -> Any:
    return tw.compile(Small(), torch.tensor(X))


@cache
def product() -> Any:
    return tw.comprehension("C[i, j] +! A[i, k] * B[j, k]")


@cache
def step() -> Any:
    return tw.compile_step(Small(), loss, tw.train.SGD(0.0), example=(X, Y))


@cache
def transformed() -> Any:
    from tests.dynamo.torch_backend import register

    register()
    return torch.compile(Small(), backend="tilewright", dynamic=True)


Call = tuple[str, Callable[[], Any], Callable[[], Any] | None]
"""The name of a call, the call, and its expected result where it has one."""


def odd(rng: Random) -> Any:
    return rng.choice(OBJECTS)()


def strange(rng: Random, x: np.ndarray[Any, Any]) -> tuple[str, Any]:
    name = rng.choice(list(ARRAYS))
    return name, ARRAYS[name](x)


def numbers_of(x: Any) -> np.ndarray[Any, Any]:
    """The numbers of an array of f32 that a call took."""
    if isinstance(x, torch.Tensor):
        return np.asarray(x.detach().to_dense().float().resolve_neg())
    return np.asarray(x)


def eager(x: Any) -> Any:
    with torch.no_grad():
        return Small()(torch.tensor(numbers_of(x).copy())).numpy()


def of_model(rng: Random) -> Call:
    name, x = strange(rng, X)
    way = rng.randrange(3)
    if way == 0:
        return f"model({name})", lambda: compiled()(x), lambda: eager(x)
    if way == 1:
        return f"run({name})", lambda: compiled().run({compiled().inputs[0].name: x}), None
    out_name, out = strange(rng, np.zeros((3, 2), np.float32))
    return f"model({name}, out={out_name})", lambda: compiled()(x, out=out), lambda: eager(x)


def of_odd_model_call(rng: Random) -> Call:
    a, b = odd(rng), odd(rng)
    calls: list[tuple[str, Callable[[], Any]]] = [
        (f"model({a!r})", lambda: compiled()(a)),
        (f"model(x, out={a!r})", lambda: compiled()(X, out=a)),
        (f"model(x, {a!r})", lambda: compiled()(X, a)),
        (f"run({a!r})", lambda: compiled().run(a)),
        (f"run(x, out={a!r})", lambda: compiled().run({"x": X}, out=a)),
        (f"update({a!r})", lambda: compiled().update(a)),
        (f"update(w: {a!r}, b: {b!r})", lambda: compiled().update({"inner.weight": a, "inner.bias": b})),
        (f"update(version={a!r})", lambda: compiled().update(Small().state_dict(), version=a)),
        (f"show({a!r})", lambda: compiled().show(a)),
        (f"save({a!r})", lambda: compiled().save(a) if not isinstance(a, str | int | bytes | MagicMock) else None),
        (f"load({a!r})", lambda: None if isinstance(a, MagicMock) else tw.load(a)),
        (f"dim({a!r}, {b!r})", lambda: tw.dim(a, b)),
        (f"dim(likely={a!r})", lambda: tw.dim(1, 8, likely=a)),
        (f"profile({a!r})", lambda: compiled().profile(a)),
        (f"memory(batch={a!r})", lambda: compiled().memory(batch=a)),
        (f"empty_outputs({a!r})", lambda: compiled().empty_outputs(a)),
    ]
    name, call = rng.choice(calls)
    return name, call, None


OPTIONS = (
    "threads dims dynamic target precision fast name params state ragged fallback custom_ops records require_records"
).split()


def of_compile(rng: Random) -> Call:
    arguments: dict[str, Any] = {"model": Small(), "example": torch.tensor(X)}
    for name in rng.sample(["model", "example", *OPTIONS], rng.choice((1, 1, 2))):
        arguments[name] = odd(rng) if name != "example" or rng.random() < 0.4 else strange(rng, X)[1]
    changed = ", ".join(f"{k}={v!r}"[:80] for k, v in arguments.items() if not isinstance(v, Small))
    return f"compile({changed})", lambda: tw.compile(arguments.pop("model"), **arguments) is None, None


STEP_OPTIONS = (
    "clip trained groups averages accumulate reduce bucket schedule seed fast precision symbolic memory threads target "
    "on_nonfinite"
).split()


def of_compile_step(rng: Random) -> Call:
    attributes: dict[str, Any] = {"model": Small(), "loss": loss, "optimizer": tw.train.SGD(0.1), "example": (X, Y)}
    for name in rng.sample([*attributes, *STEP_OPTIONS], rng.choice((1, 1, 2))):
        attributes[name] = odd(rng)
    changed = ", ".join(f"{k}={v!r}"[:80] for k, v in attributes.items() if not isinstance(v, Small))
    return (
        f"compile_step({changed})",
        lambda: tw.compile_step(attributes.pop("model"), attributes.pop("loss"), **attributes) is None,
        None,
    )


def of_step(rng: Random) -> Call:
    (a, x), (b, y) = strange(rng, X), strange(rng, Y)
    if rng.random() < 0.5:
        b, y = "y", Y

    def wanted() -> Any:
        return np.float32(((eager(x) - numbers_of(y)) ** 2).mean())

    return f"step({a}, {b})", lambda: step()(x, y)["loss"], wanted


def of_comprehension(rng: Random) -> Call:
    (a, x), (b, y) = strange(rng, X), strange(rng, X)
    match rng.randrange(4):
        case 0:
            text = odd(rng)
            return f"comprehension({text!r})", lambda: tw.comprehension(text) is None, None
        case 1:
            number = odd(rng)
            return (
                f"comprehension(eps={number!r})",
                lambda: tw.comprehension("y[i] = x[i] + eps", eps=number)(X[0]) is None,
                None,
            )
        case 2:
            value = odd(rng)
            return f"product(x, {value!r})", lambda: product()(X, value), None
    return f"product({a}, {b})", lambda: product()(x, y), lambda: numbers_of(x) @ numbers_of(y).T


def of_torch(rng: Random) -> Call:
    name, x = strange(rng, X)
    # PyTorch's own guards end the process at nested tensors, and its decompositions convert mixed types.
    if not isinstance(x, torch.Tensor) or x.is_nested or x.dtype is torch.bfloat16:
        name, x = "a tensor", torch.tensor(X)
    if rng.random() < 0.7:
        return f"torch.compile, {name}", lambda: transformed()(x), lambda: Small()(x.detach()).detach().numpy()
    options = {rng.choice(("threads", "full", "report", "nothing", "fallback")): odd(rng)}

    def run() -> Any:
        torch._dynamo.reset()
        return torch.compile(Small(), backend="tilewright", options=options)(torch.tensor(X))

    return f"torch.compile(options={options!r})", run, None


def of_jax(rng: Random) -> Call:
    if find_spec("jax") is None:
        return "jax, which is not here", lambda: None, None
    import jax

    f = jax.jit(lambda x: jax.numpy.tanh(x) * 2)
    if rng.random() < 0.5:
        name, x = strange(rng, X)
        return f"jax, example {name}", lambda: tw.compile(f, x) is None, None
    arguments = {rng.choice(("params", "dims", "dynamic", "state", "example")): odd(rng)}
    example = arguments.pop("example", X)
    return f"jax, {arguments!r}, {example!r}", lambda: tw.compile(f, example, **arguments) is None, None


DOORS: tuple[Callable[[Random], Call], ...] = (
    of_model,
    of_model,
    of_odd_model_call,
    of_odd_model_call,
    of_compile,
    of_compile,
    of_compile_step,
    of_step,
    of_comprehension,
    of_torch,
    of_jax,
)


def check(seed: int) -> str:
    """ "right", "refused" or "left out"; "wrong: how" and "crashed: how" are faults, with the call."""
    rng = Random(seed)
    name, call, reference = rng.choice(DOORS)(rng)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory():
        warnings.simplefilter("ignore")
        try:
            result = call()
        except tw.Error as error:
            text = str(error)
            return "refused" if text.strip() and "malformed" not in text else f"wrong: {name}: says {text[:200]!r}"
        except Exception as error:
            if name.startswith("torch.compile"):
                return refused_by_torch(name, error)
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            return f"crashed: {name}: {type(error).__name__}: {str(error)[:200]} ({place})"
        if reference is None or result is None:
            return "right"
        try:
            want = reference()
        except Exception as error:
            return f"wrong: {name}: there is a result where the reference has none: {error}"
    return compare(name, result, want)


def refused_by_torch(name: str, error: BaseException) -> str:
    """The outcome of an error by which PyTorch refuses itself, or of ours through it."""
    text = f"{type(error).__name__}: {error}"
    ours = "tilewright" in text.lower() or isinstance(error.__cause__, tw.Error)
    eager_too = isinstance(error, RuntimeError | NotImplementedError | TypeError)
    return "refused" if ours or eager_too else f"crashed: {name}: {text[:300]}"


def compare(name: str, result: Any, want: Any) -> str:
    result = result[0] if isinstance(result, tuple | list) else result
    result = numbers_of(result)
    if result.shape != want.shape or not np.allclose(result, want, rtol=1e-4, atol=1e-5, equal_nan=True):
        return f"wrong: {name}: {result.tolist()!r:.150} for {want.tolist()!r:.150}"
    return "right"


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    outcomes: Counter[str] = Counter()
    for seed in range(first, first + count):
        result = check(seed)
        outcomes[result.split(":")[0]] += 1
        if ":" in result:
            print(seed, " ".join(result.split()), flush=True)
    print(dict(outcomes))


if __name__ == "__main__":
    main()
