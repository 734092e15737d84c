"""Sizes of PyTorch modules that not every number can be: halved maps that are joined, and multiples of a symbol
(`torch.export.Dim("n") * 32`); run by `make torch`."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw
from tests.frontend.torch.torch_checks import Functional, assert_close, interpreted, nn, torch
from tilewright.frontend.read import import_model
from tilewright.frontend.torch import importer
from tilewright.support.errors import CallError, ModelError, UnsupportedError

SIDES = {"x": {0: "n", 2: "h", 3: "w"}}


class UNet(nn.Module):  # type: ignore[misc,name-defined]
    """A U-Net of a few levels: maps that were halved are joined with those from before."""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(3, 3, 3, stride=2, padding=1) for _ in range(levels))
        self.up = nn.ModuleList(nn.ConvTranspose2d(3 + 3 * (k > 0), 3, 2, stride=2) for k in range(levels))

    def forward(self, x: Any) -> Any:
        maps = [x]
        for layer in self.down:
            maps.append(layer(maps[-1]))
        y = maps.pop()
        for layer in self.up:
            y = torch.cat([layer(y), maps.pop()], 1)
        return y


def _symbols(imported: Any) -> list[tuple[str, int, int | None, int]]:
    members = {d for v in imported.graph.inputs for d in v.type.shape if hasattr(d, "multiple")}
    return sorted((d.name, d.lo, d.hi, d.multiple) for d in members)


@pytest.mark.parametrize("levels", [1, 3])
def test_heights_and_widths_are_multiples_of_what_the_module_needs(levels: int) -> None:
    module, unit = UNet(levels).eval(), 2**levels
    imported = import_model(module, None, torch.zeros(1, 3, 64, 64), SIDES)
    assert [(name, multiple) for name, _, _, multiple in _symbols(imported)] == [("h", unit), ("n", 1), ("w", unit)]
    x = torch.randn(2, 3, unit, 3 * unit)
    assert_close(interpreted(imported, x), module(x))


def test_calls_with_other_sizes_are_refused() -> None:
    model = tw.compile(UNet(2).eval(), torch.zeros(1, 3, 64, 64), dynamic=SIDES)
    with pytest.raises(CallError, match=r"h in 4.*a multiple of 4, got 6"):
        model(torch.zeros(1, 3, 6, 8).numpy())


def test_callers_state_multiples_and_ranges() -> None:
    dims = {"h": tw.dim(32, 640, multiple=32), "w": tw.dim(1, 64, multiple=6)}
    imported = import_model(UNet(2).eval(), dims, torch.zeros(1, 3, 64, 64), SIDES)
    assert _symbols(imported) == [("h", 32, 640, 32), ("n", 1, None, 1), ("w", 12, 64, 12)]


def test_a_range_that_the_module_needs_is_selected_from_the_caller() -> None:
    """Windows of seven pixels fit no smaller map, which export finds out; sizes are large ones."""
    module = Functional(lambda x: x.unfold(2, 7, 7).sum(-1))
    dims = {"h": tw.dim(700, 7000, multiple=7)}
    imported = import_model(module, dims, torch.zeros(1, 3, 14, 4), {"args_0": {2: "h"}})
    assert _symbols(imported) == [("h", 700, 7000, 7)]
    x = torch.randn(1, 3, 707, 4)
    assert_close(interpreted(imported, x), module(x))


def test_maps_that_are_halved_to_one_pixel_in_small_examples() -> None:
    module = nn.Sequential(*(nn.Conv2d(2, 2, 3, stride=2, padding=1) for _ in range(5)), nn.BatchNorm2d(2)).eval()
    for dims in (None, {"h": 160, "w": 224}):
        imported = import_model(module, dims, torch.zeros(1, 2, 96, 128), {"input": {2: "h", 3: "w"}})
        x = torch.randn(1, 2, 160, 224)
        assert_close(interpreted(imported, x), module(x))


def _exported(module: Any, shapes: Any, *args: Any) -> Any:
    with torch.no_grad():
        return torch.export.export(module.eval(), args, dynamic_shapes=shapes)


@pytest.mark.parametrize("offset", [0, 8])
def test_exported_sizes_may_be_multiples_of_a_symbol(offset: int) -> None:
    module = UNet(2)
    h, w = (torch.export.Dim(name, min=1, max=20) * 4 for name in "hw")
    program = _exported(module, ({2: h + offset if offset else h, 3: w},), torch.zeros(1, 3, 64, 32))
    imported = import_model(program)
    assert _symbols(imported) == [("x_dim2", 4 + offset, 80 + offset, 4), ("x_dim3", 4, 80, 4)]
    x = torch.randn(1, 3, 20, 8)
    assert_close(interpreted(imported, x), module(x))


def test_exported_multiples_can_be_numbers() -> None:
    side = torch.export.Dim("h", min=1, max=20) * 4
    program = _exported(UNet(2), ({2: side},), torch.zeros(1, 3, 64, 32))
    assert str(import_model(program, {"x_dim2": 24}).graph.inputs[0].type) == "f32[1, 3, 24, 32]"
    with pytest.raises(ModelError, match="x_dim2 cannot be this size: expected a multiple of 4, got 26"):
        import_model(program, {"x_dim2": 26})


def test_sizes_of_two_inputs_that_depend_on_each_other() -> None:
    n = torch.export.Dim("n")
    add = Functional(lambda x, y: x.repeat(2) + y)
    with pytest.raises(UnsupportedError, match=r"a size depends on another input's sizes: got batch \* 2"):
        import_model(_exported(add, (({0: n}, {0: n * 2}),), torch.zeros(5), torch.zeros(10)))
    odd = _exported(Functional(lambda x: x + 1), (({0: n * 2 + 1},),), torch.zeros(7))
    with pytest.raises(UnsupportedError):
        import_model(odd)


@pytest.mark.costly(2)
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("options", [{"batch_first": True}, {"num_layers": 2, "bidirectional": True}])
def test_recurrent_layers_take_any_number_of_steps(kind: str, options: dict[str, Any]) -> None:
    """PyTorch's exporter would run the steps of the example one by one."""
    module = getattr(nn, kind)(3, 2, **options).eval()
    batch, time = (0, 1) if options.get("batch_first") else (1, 0)
    model = tw.compile(module, torch.zeros(4, 5, 3), dynamic={"input": {batch: "batch", time: "time"}})
    assert "time" in model.inputs[0].shape and "time" in model.outputs[0].shape
    for steps, rows in ((1, 1), (5, 4), (17, 2), (40, 3)):
        x = torch.randn((rows, steps, 3) if batch == 0 else (steps, rows, 3))
        assert_close(model(x), tuple(torch.utils._pytree.tree_leaves(module(x))))


def test_pytorchs_recurrent_layers_are_its_own_once_more() -> None:
    """The operators that stand in for them while we trace are gone: decomposed they are steps, not unwritten memory."""
    lstm, x = nn.LSTM(3, 2), torch.randn(5, 4, 3)
    tw.compile(lstm, x)
    separate = torch.export.export(nn.Sequential(lstm), (x,)).run_decompositions()
    with torch.no_grad():
        torch.testing.assert_close(separate.module()(x), lstm(x))


@pytest.mark.costly(2)
@pytest.mark.parametrize(
    "how",
    [
        {"mode": "bicubic", "align_corners": False},
        {"mode": "bilinear", "align_corners": True},
        {"mode": "bilinear", "align_corners": False},
        {"mode": "nearest"},
        {"mode": "nearest-exact"},
    ],
)
def test_maps_are_resized_to_sizes_of_another_input(how: dict[str, Any]) -> None:
    """Tables of positions of vision transformers are resized like this, for images of any size."""
    table = torch.randn(1, 3, 4, 5)

    def resized(x: Any) -> Any:
        size = (x.shape[2] // 8, x.shape[3] // 8 + 1)
        return x.mean((1, 2, 3), keepdim=True) + nn.functional.interpolate(table, size=size, **how)

    module = Functional(resized)
    imported = import_model(module, None, torch.zeros(2, 3, 64, 64), {"args_0": {0: "b", 2: "h", 3: "w"}})
    for h, w in ((64, 64), (32, 40), (24, 8), (80, 129)):
        x = torch.randn(1, 3, h, w)
        assert_close(interpreted(imported, x), module(x))


def test_a_table_of_positions_that_is_a_buffer() -> None:
    """A buffer cut to the open size is a constant of the graph and has the module's name for it in `update` still."""

    class Positions(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("position_ids", 2 * torch.arange(16)[None], persistent=True)
            self.table = nn.Embedding(32, 3)

        def forward(self, x: Any) -> Any:
            return x + self.table(self.position_ids[:, : x.shape[1]])

    module = Positions().eval()
    model = tw.compile(module, torch.zeros(2, 5, 3), dynamic={"x": {0: "n", 1: "seq"}}, dims={"seq": tw.dim(1, 16)})
    for seq in (1, 9, 16):
        x = torch.randn(2, seq, 3)
        assert_close([model(x.numpy())], module(x))
    model.update({name: t.numpy() for name, t in module.state_dict().items()}, version=2)
    with pytest.raises(CallError):
        model(torch.zeros(1, 17, 3).numpy())


def test_a_loop_over_the_sequence_is_refused_at_once() -> None:
    """A loop is traced once, for a short sequence, and not for ever longer ones."""
    steps = 0

    def looped(x: Any) -> Any:
        nonlocal steps
        h, result = x[:, 0], []
        for t in range(x.shape[1]):
            steps += 1
            h = torch.tanh(h + x[:, t])
            result.append(h)
        return torch.stack(result, 1)

    with pytest.raises(ModelError, match=r"needs a number for seq, as a loop in Python.*"):
        import_model(Functional(looped), None, torch.zeros(2, 12, 3), {"args_0": {0: "n", 1: "seq"}})
    assert steps < 100


@torch.library.custom_op("tilewright_tests::no_rule", mutates_args=())  # type: ignore[untyped-decorator]
def no_rule(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@no_rule.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_a_program_without_a_rule_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes from 2 are tried where 1 is refused, but not where an operator is lacking."""
    walks: list[int] = []
    run = importer._Importer.run

    def counted(self: Any) -> Any:
        walks.append(self.least)
        return run(self)

    monkeypatch.setattr(importer._Importer, "run", counted)
    axes = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.export.export(Functional(lambda x: no_rule(x) * 2), (torch.randn(3, 4),), dynamic_shapes=(axes,))
    with pytest.raises(UnsupportedError, match="no_rule is not supported"):
        import_model(program)
    assert walks == [1]


STATED = {"p": (2, 6), "q": (3, 8), "r": (0, 5)}


@pytest.mark.parametrize("stated", ["q", "pq", "qr", "pqr"])
def test_names_of_one_size_have_what_is_common_to_their_ranges(stated: str) -> None:
    """The model adds inputs whose rows have a name each, of which the caller states some."""
    inputs = tuple(torch.full((4, 3), float(k)) for k in range(3))
    axes = {f"args_{k}": {0: symbol} for k, symbol in enumerate("pqr")}
    module = Functional(lambda x, y, z: x + 2 * y - z)
    compiled = tw.compile(module, inputs, dynamic=axes, dims={name: tw.dim(*STATED[name]) for name in stated})
    low, high = max(STATED[name][0] for name in stated), min(STATED[name][1] for name in stated)
    for size in range(10):
        x, y, z = (torch.full((size, 3), float(k)) for k in range(3))
        if low <= size <= high:
            assert_close([compiled(x, y, z)], [x + 2 * y - z])
        else:
            with pytest.raises(CallError, match=rf"expected {stated[0]} in {low}\.\.{high}, got {size}"):
                compiled(x, y, z)
    with pytest.raises(ModelError, match="p, q are one size of the model, and their ranges have none in common"):
        tw.compile(module, inputs, dynamic=axes, dims={"p": tw.dim(2, 4), "q": tw.dim(5, 8)})


def test_sizes_of_one_where_pytorch_looks_at_numbers() -> None:
    """The covariance of one row is a scalar; PyTorch compares numbers for it, which fake tensors do not have."""
    module = Functional(lambda x: torch.cov(x) * 2)
    imported = import_model(module, example=torch.randn(3, 10), dynamic={"args_0": {0: "rows"}})
    x = torch.randn(2, 10)
    assert_close(interpreted(imported, x), module(x))
    with pytest.raises(CallError, match="rows in 2"):
        tw.compile(module, torch.randn(3, 10), dynamic={"args_0": {0: "rows"}})(torch.randn(1, 10))
