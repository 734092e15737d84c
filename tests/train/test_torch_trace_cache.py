"""Losses that were traced before: what makes another trace makes another tape, numbers of weights do not, and steps of
a kept loss are those of a fresh one, bit by bit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make test does without PyTorch; make torch runs this")

from torch import nn  # noqa: E402  after what may skip
from torch.nn import functional as F  # noqa: E402

from tilewright.support.cache import ObjectCache  # noqa: E402
from tilewright.train import torch_loss, trace_cache  # noqa: E402
from tilewright.train.entry import compile_step  # noqa: E402
from tilewright.train.optimizers import SGD  # noqa: E402
from tilewright.train.tape import tape_of  # noqa: E402

Loss = Callable[..., Any]


class Small(nn.Module):
    """A layer with whatever else the tests give it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 3)
        self.other = nn.Linear(3, 3)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


def changed(model: Any, change: Callable[[Any], Any]) -> Any:
    change(model)
    return model


def with_buffer(value: float, persistent: bool) -> Any:
    return changed(Small(), lambda m: m.register_buffer("scale", torch.full((3,), value), persistent=persistent))


def tied(model: Any) -> Any:
    model.other.weight = model.layer.weight
    return model


def through_both(model: Any, x: Any) -> Any:
    return model.other(model.layer(x)).sum()


def without_gradients(model: Any, x: Any) -> Any:
    with torch.no_grad():
        y = model.layer(x)
    return model.other(y).sum()


def batch(*shape: int, **options: Any) -> tuple[Any, ...]:
    return (torch.zeros(shape or (4, 3), **options),)


def tape(model: Any, loss: Loss, arguments: tuple[Any, ...]) -> str | None:
    result = tape_of(lambda *b: loss(model, *b), model, arguments)
    return None if result is None else result[0]


def ordinary(model: Any, x: Any) -> Any:
    return model(x).sum()


DIFFERENT: dict[str, list[tuple[Any, Loss]]] = {
    "numbers in the code": [(Small(), lambda m, x: (m(x) * 2).sum()), (Small(), lambda m, x: (m(x) * 3).sum())],
    "attributes": [(Small(scale=s), lambda m, x: (m(x) * m.scale).sum()) for s in (0.5, 0.25)],
    "tensors in the code": [(Small(), lambda m, x, s=s: (m(x) * torch.tensor([s, 1.0, 1.0])).sum()) for s in (2, 3)],
    "tensors held": [(Small(held=torch.tensor([s, 1.0, 1.0])), lambda m, x: (m(x) * m.held).sum()) for s in (2, 3)],
    "buffers not saved": [(with_buffer(s, False), lambda m, x: (m(x) * m.scale).sum()) for s in (2, 3)],
    "views of weights that are held": [
        (
            changed(Small(), lambda m, s=s: setattr(m, "held", m.layer.weight.data.fill_(s))),
            lambda m, x: (x @ m.held).sum(),
        )
        for s in (2, 3)
    ],
    "which weights": [(Small(), lambda m, x: m.layer(x).sum()), (Small(), lambda m, x: m.other(x).sum())],
    "ties": [(Small(), through_both), (tied(Small()), through_both)],
    "what is trained": [
        (Small(), through_both),
        (changed(Small(), lambda m: m.layer.requires_grad_(False)), through_both),
    ],
    "names": [(Small(a=nn.Linear(3, 3)), ordinary), (Small(b=nn.Linear(3, 3)), ordinary)],
    "detached": [
        (Small(), through_both),
        (Small(), without_gradients),
        (Small(), lambda m, x: m.other(m.layer(x).detach()).sum()),
        (Small(), lambda m, x: m.other(m.layer(x).data).sum()),
    ],
    "functions of one operator": [
        (Small(), ordinary),
        (Small(), lambda m, x: torch.addmm(m.layer.bias, x, m.layer.weight.t()).sum()),
    ],
    "modes": [(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).train(mode), ordinary) for mode in (True, False)],
    "dropout": [(nn.Sequential(nn.Linear(3, 3), nn.Dropout(p)), ordinary) for p in (0.5, 0.25)],
    "hooks": [
        (changed(Small(), lambda m: m.layer.register_forward_hook(lambda *a: a[2] * 2)), ordinary),
        (Small(), ordinary),
    ],
    "metrics": [(Small(), lambda m, x, n=n: {"loss": m(x).sum(), n: m(x).mean()}) for n in ("mean", "other")],
    "results": [(Small(), lambda m, x: {"loss": m(x).sum()}), (Small(), ordinary)],
    "the default type": [
        (Small(), lambda m, x: m(x).sum() * torch.ones(())),
        (Small(), lambda m, x: m(x).sum() * torch.ones((), dtype=torch.float64)),
    ],
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_another_trace_is_another_tape(what: str) -> None:
    tapes = [tape(model, loss, batch()) for model, loss in DIFFERENT[what]]
    assert None not in tapes and len(set(tapes)) == len(tapes)
    assert tapes == [tape(model, loss, batch()) for model, loss in DIFFERENT[what]]


def test_batches_count_by_shape_and_type() -> None:
    model, loss = Small(), lambda m, x: m(x.float()).sum()
    result = [
        tape(model, loss, item)
        for item in (batch(), batch(5, 3), batch(dtype=torch.int64), batch(requires_grad=True), (batch(3, 4)[0].t(),))
    ]
    assert None not in result and len(set(result)) == len(result)
    assert tape(model, loss, (torch.randn(4, 3),)) == result[0]


@pytest.mark.parametrize("persistent", ["parameters", "buffers"])
def test_numbers_of_weights_do_not_count(persistent: str) -> None:
    def scaled(model: Any, x: Any) -> Any:
        return (model(x) * (model.scale if persistent == "buffers" else model.other.weight)).sum()

    first = with_buffer(2, True)
    other = with_buffer(3, True)
    nn.init.ones_(other.layer.weight)
    assert tape(first, scaled, batch(3, 3)) == tape(other, scaled, batch(3, 3)) is not None


class Condition(nn.Module):
    """PyTorch's own control flow."""

    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 2, lambda y: y * 2, lambda y: y * 3, (x,))


WITHOUT: dict[str, Loss] = {
    "numbers asked for": lambda m, x: m(x).sum() * float(x.sum()),
    "branches that data decides": lambda m, x: m(x).sum() if x.sum() > 0 else m(x).mean(),
    "shapes that data decides": lambda m, x: m(x)[x > 0].sum(),
    "constants that change": lambda m, x: (m(x) + m.held.add_(1)).sum(),
    "parameters that change": lambda m, x: m(x).sum() + m.other.weight.detach().add_(1).sum(),
    "batches that change": lambda m, x: m(x.mul_(2)).sum(),
    "control flow": lambda m, x: Condition()(m(x)).sum(),
    "a generator": lambda m, x: (m(x) * torch.rand(3, generator=torch.Generator())).sum(),
    "errors": lambda m, x: m(x[0, :1]).sum(),
}


@pytest.mark.parametrize("what", WITHOUT)
def test_what_has_no_tape(what: str) -> None:
    model, x = Small(held=torch.zeros(3)), torch.ones(4, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert tape(model, WITHOUT[what], (x,)) is None
    assert (x == 1).all() and (model.held == 0).all()
    assert all((value == before[name]).all() for name, value in model.state_dict().items())


def test_control_flow_can_be_exported_after_a_tape() -> None:
    """TorchDynamo skips for good what it meets inside of a dispatch mode, if it is not told otherwise."""
    assert tape(Small(), WITHOUT["control flow"], batch()) is None
    program = torch.export.export(Condition(), (torch.ones(2),))
    assert torch.ops.higher_order.cond in [node.target for node in program.graph.nodes]


def test_tapes_leave_everything_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.LSTM(4, 2))
    model.stored, model.seen = None, []
    held = {name: (value, value.clone()) for name, value in model.state_dict(keep_vars=True).items()}
    flat = list(model[3]._flat_weights)

    def loss(model: Any, x: Any) -> Any:
        model.stored = y = model(x)[0]
        model.seen.append(y)
        model.more = y
        return y.sum()

    state = torch.get_rng_state()
    assert tape(model, loss, batch()) is not None
    assert (torch.get_rng_state() == state).all()
    assert model.stored is None and model.seen == [] and not hasattr(model, "more")
    assert all(a is b for a, b in zip(flat, model[3]._flat_weights, strict=True))
    now = model.state_dict(keep_vars=True)
    assert all(now[name] is value and (value == copy).all() for name, (value, copy) in held.items())
    assert model[1].num_batches_tracked == 0 and not torch.compiler.is_exporting()


def learner(seed: int) -> Any:
    """Batch norm's counters and statistics, dropout, a tied weight, a constant."""

    class Learner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.inner = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.25))
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
            self.last.weight = self.first.weight
            self.held = torch.arange(6.0)

        def forward(self, x: Any) -> Any:
            return self.last(self.inner(self.first(x)) + self.held)

    return Learner()


def mixed(model: Any, x: Any, y: Any) -> Any:
    result = model(x)
    return {"loss": F.cross_entropy(result, y), "mean": result.mean()}


def stepped(seed: int) -> list[Any]:
    step = compile_step(learner(seed), mixed, SGD(0.1), (torch.zeros(8, 6), torch.zeros(8, dtype=torch.int64)), seed=3)
    rng = np.random.default_rng(seed)
    results = [step(rng.normal(size=(8, 6)).astype(np.float32), rng.integers(6, size=8)) for _ in range(4)]
    return [
        results,
        {name: value.numpy().tobytes() for name, value in step.state_dict().items()},
        list(step.state_dict()),
    ]


def test_steps_of_a_retained_loss_are_those_of_a_fresh_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    fresh = [stepped(seed) for seed in (1, 2)]
    monkeypatch.setenv("TILEWRIGHT_CACHE", "1")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    assert stepped(1) == fresh[0]
    monkeypatch.setattr(torch_loss, "_read", None)  # which would be called
    assert [stepped(seed) for seed in (1, 2)] == fresh


def test_what_an_entry_is_retained_under(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {
        trace_cache.name_of("t", ("loss",)),
        trace_cache.name_of("u", ("loss",)),
        trace_cache.name_of("t", ("loss", "mean")),
    }
    with monkeypatch.context() as patched:
        patched.setattr(torch, "__version__", "1")
        names.add(trace_cache.name_of("t", ("loss",)))
    for name, value in (("package_version", "another"), ("plugins", None)):
        with monkeypatch.context() as patched:
            patched.setattr(
                trace_cache if value else trace_cache.plugins,
                name if value else "digests",
                lambda value=value: value or ("x",),
            )
            names.add(trace_cache.name_of("t", ("loss",)))
    assert len(names) == 6


def test_entries_say_all_or_are_none(tmp_path: Path) -> None:
    store = ObjectCache(tmp_path)
    read = torch_loss._read(torch_loss._Loss(learner(1), mixed), (torch.zeros(8, 6), torch.zeros(8).long()), False)
    trace_cache.put("loss-1", read, store)
    assert trace_cache.get("loss-1", store) == read
    assert read.counters == ("inner.1.num_batches_tracked",) and read.tied == (("last.weight", "first.weight"),)
    assert trace_cache.get("loss-2", store) is None
    for entry in (b"", b"no entry", b"\0" * 64):
        store.put("loss-3", entry)
        assert trace_cache.get("loss-3", store) is None


PROGRAM = """
import sys
import torch
from tilewright.train import SGD
from tilewright.train.entry import compile_step
step = compile_step(torch.nn.Linear(3, 1), lambda m, x: m(x).square().mean(), SGD(0.1), (torch.ones(4, 3),))
print(*sorted({"sympy", "torch._dynamo"}.intersection(sys.modules)))
"""


def test_the_exporter_is_not_loaded_twice(tmp_path: Path) -> None:
    def loaded() -> list[str]:
        run = [sys.executable, "-c", PROGRAM]
        environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(tmp_path)}
        return subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout.split()

    assert loaded() == ["sympy", "torch._dynamo"]
    assert loaded() == []
