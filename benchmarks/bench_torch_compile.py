"""The cost of a call through `torch.compile` beside a backend that computes nothing.

Times are the least of many calls, variants in turn, in one process with one thread. "null" returns ready tensors,
"frozen" does not look at weights, "watched" is the default, which digests them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from benchmarks.torch_vision import resnet18
from tilewright.dynamo.backend import tilewright
from tilewright.runtime.native import native


def ready(gm: torch.fx.GraphModule, examples: Any) -> Any:
    """A graph's function that gives the same tensors at every call: those of the first one."""
    values = [n.meta["val"] for n in gm.graph.output_node().args[0]]
    results = [torch.zeros([d if isinstance(d, int) else d.node.hint for d in v.shape]) for v in values]

    def run(args: list[Any]) -> list[Any]:
        return list(results)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def least(calls: dict[str, Callable[[], Any]], rounds: int, each: int) -> dict[str, float]:
    """Microseconds of the fastest call of each."""
    result = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            for _ in range(each):
                start = time.perf_counter_ns()
                call()
                result[name] = min(result[name], (time.perf_counter_ns() - start) / 1e3)
    return result


def compiled(module: nn.Module, dynamic: bool | None) -> dict[str, Callable[..., Any]]:
    """The variants of a module, with symbolic sizes if `dynamic`; each is traced by itself, as wrappers are classes of
    their own."""
    backends: dict[str, dict[str, Any]] = {
        "null": {"backend": aot_autograd(fw_compiler=ready)},
        "frozen": {"backend": tilewright, "options": {"freeze": True}},
        "watched": {"backend": tilewright},
    }
    return {"eager": module, **{name: torch.compile(module, dynamic=dynamic, **how) for name, how in backends.items()}}


class Transposed(nn.Module):
    """Several results of a transposed argument: next to nothing but layouts."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.mT * 2
        return y + 1, y.tanh(), y.mT + y.sum()


class Sum(nn.Module):
    """A sum of all its arguments: next to nothing but arguments."""

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        return sum(arguments[1:], arguments[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(17, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 6)).eval()
    cases = [
        ("a sum of 3", Sum(), [torch.randn(16) for _ in range(3)], None, 2000),
        ("a sum of 10", Sum(), [torch.randn(16) for _ in range(10)], None, 2000),
        ("a sum of 10, any size", Sum(), [torch.randn(16) for _ in range(10)], True, 2000),
        ("3 results of a turned argument", Transposed(), [torch.randn(3, 16).mT], None, 2000),
        ("M64, batch 1", mlp, [torch.randn(1, 17)], None, 2000),
        ("M64, batch 8", mlp, [torch.randn(8, 17)], None, 2000),
        ("M64, any batch", mlp, [torch.randn(8, 17)], True, 2000),
        ("ResNet-18", resnet18()[0].eval(), [torch.randn(1, 3, 224, 224)], None, 3),
    ]
    with torch.no_grad():
        for name, module, xs, dynamic, each in cases:
            torch._dynamo.reset()
            fs = compiled(module, dynamic)
            for f in fs.values():
                f(*xs)
            times = least({k: partial(f, *xs) for k, f in fs.items()}, args.rounds, each)
            print(name, ", ".join(f"{k} {t:.1f} us" for k, t in times.items()))
        for nbytes in (23 << 10, 1 << 20, 45 << 20):
            data = torch.randn(nbytes // 4)
            digest = partial(native().digest, data.data_ptr(), nbytes)
            took = least({"digest": digest}, args.rounds, 20)["digest"]
            print(f"digest of {nbytes >> 10} KiB: {took:.1f} us, {nbytes / took / 1e3:.1f} GB/s")


if __name__ == "__main__":
    main()
