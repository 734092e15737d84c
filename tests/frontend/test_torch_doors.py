"""Modules with awkward arguments through every door: as a module, as an exported program, as ONNX files of both of its
exporters and under torch.compile. All give what eager PyTorch gives.

Modules stand together, so that one export serves many. Those that PyTorch's older exporter refuses, or says otherwise,
are in a group without that door.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.interop import as_numpy
from tilewright.support.errors import ModelError, UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is an extra: `make torch` runs this")
pytest.importorskip("onnxscript", reason="PyTorch's exporter to ONNX needs it")
nn, F, leaves = torch.nn, torch.nn.functional, torch.utils._pytree.tree_leaves

torch.manual_seed(0)
image, squares, line = torch.randn(2, 3, 6, 7), torch.randn(2, 3, 8, 8), torch.randn(2, 3, 9)
grid = torch.rand(2, 5, 4, 2) * 2.6 - 1.3
volume, grid3 = torch.randn(1, 2, 4, 5, 3), torch.rand(1, 3, 4, 2, 3) * 2.6 - 1.3
tokens = torch.randint(0, 10, (3, 5))
steps = torch.randn(5, 2, 3)

Case = tuple[Any, tuple[Any, ...]]


def sampled(mode: str, padding: str, corners: bool) -> Case:
    def f(x: Any, g: Any) -> Any:
        return F.grid_sample(x, g, mode=mode, padding_mode=padding, align_corners=corners)

    return f, (image, grid)


def resized(x: Any, **options: Any) -> Case:
    return lambda x: F.interpolate(x, **options), (x,)


EVERYWHERE: dict[str, Case] = {
    "grid: cubic, border": sampled("bicubic", "border", False),
    "grid: cubic, reflection, corners": sampled("bicubic", "reflection", True),
    "grid: linear, zeros": sampled("bilinear", "zeros", False),
    "grid: nearest, border": sampled("nearest", "border", True),
    "nearest by a scale": resized(image, scale_factor=1.7, mode="nearest"),
    "linear by two scales": resized(image, scale_factor=(1.3, 0.7), mode="bilinear"),
    "linear, corners": resized(image, size=(9, 13), mode="bilinear", align_corners=True),
    "cubic": resized(image, size=(9, 5), mode="bicubic"),
    "a line": resized(line, size=11, mode="linear"),
    "a volume": resized(volume, scale_factor=1.5, mode="trilinear"),
    "max pool, rounded up": (nn.MaxPool2d(3, 2, 1, ceil_mode=True), (squares,)),
    "max pool, dilated, rounded up": (nn.MaxPool2d(2, 3, dilation=2, ceil_mode=True), (squares,)),
    "average pool, rounded up": (nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), (squares,)),
    "adaptive average": (nn.AdaptiveAvgPool2d((4, 2)), (squares,)),
    "transposed, padding of the output": (
        nn.ConvTranspose2d(3, 6, 3, stride=3, padding=1, output_padding=2, groups=3),
        (image,),
    ),
    "transposed, dilated": (nn.ConvTranspose1d(3, 4, 3, stride=2, padding=2, output_padding=1, dilation=2), (line,)),
    "circular": (nn.Conv2d(3, 4, 3, padding=(2, 1), padding_mode="circular"), (image,)),
    "same, dilated": (nn.Conv2d(3, 4, (2, 4), padding="same", dilation=(2, 1)), (image,)),
    "groups": (nn.GroupNorm(3, 3, eps=1e-3), (image,)),
    "instances with statistics": (nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (image,)),
    "local response": (nn.LocalResponseNorm(3, alpha=0.1, beta=0.6, k=2.0), (image,)),
    "layers without weights": (nn.LayerNorm([6, 7], elementwise_affine=False), (image,)),
    "embedding": (nn.Embedding(10, 4, padding_idx=-1), (tokens,)),
    "LSTM": (nn.LSTM(3, 4, num_layers=2, bidirectional=True), (steps,)),
    "GRU without biases": (nn.GRU(3, 4, bias=False), (steps, torch.randn(1, 2, 4))),
    "RNN": (nn.RNN(3, 4, nonlinearity="relu"), (steps,)),
    "softplus": (nn.Softplus(beta=3), (image,)),
    "padding that cuts": (lambda x: F.pad(x, (-1, 2, 1, -2), value=3.0), (image,)),
}
NEWER: dict[str, Case] = {
    "grid: a volume": (lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=False), (volume, grid3)),
    "nearest, exact": resized(image, size=(9, 4), mode="nearest-exact"),
    "area": resized(image, size=(4, 5), mode="area"),
    "linear, smoothed": resized(image, size=(4, 5), mode="bilinear", antialias=True),
    "cubic, smoothed": resized(image, size=(4, 5), mode="bicubic", antialias=True),
    "root mean square": (nn.RMSNorm((6, 7), eps=None), (image,)),
    "columns and back": (
        lambda x: F.fold(F.unfold(x, (2, 3), dilation=(1, 2), padding=1, stride=2), (6, 7), (2, 3), (1, 2), 1, 2),
        (image,),
    ),
}

NO_FILE: dict[str, Case] = {
    "adaptive maxima": (nn.AdaptiveMaxPool2d((3, None)), (squares,)),
    "LSTM with projections": (nn.LSTM(3, 4, proj_size=2), (steps,)),
    "bags of means": (nn.EmbeddingBag(10, 4, mode="mean"), (tokens,)),
    "bags of maxima": (nn.EmbeddingBag(10, 4, mode="max", padding_idx=2), (tokens,)),
}
"""PyTorch's newer exporter refuses the first, writes no valid node for the second, and loops over sequences for bags,
which other hosts run."""
GROUPS = {"everywhere": EVERYWHERE, "newer": NEWER, "no file": NO_FILE}


class Together(nn.Module):  # type: ignore[misc, name-defined]
    """All modules and functions of a group; tensors that several take are inputs of their own."""

    def __init__(self, cases: dict[str, Case]) -> None:
        super().__init__()
        self.calls = [(f, len(args)) for f, args in cases.values()]
        self.parts = nn.ModuleList([f for f, _ in self.calls if isinstance(f, nn.Module)])

    def forward(self, *inputs: Any) -> list[Any]:
        results, at = [], 0
        for f, count in self.calls:
            results += leaves(f(*inputs[at : at + count]))
            at += count
        return results


def by_module(module: Any, inputs: tuple[Any, ...]) -> list[Any]:
    return list(tw.compile(module, inputs, dynamic=None)(*inputs))


def by_program(module: Any, inputs: tuple[Any, ...]) -> list[Any]:
    return list(tw.compile(torch.export.export(module, inputs))(*inputs))


def by_onnx(module: Any, inputs: tuple[Any, ...], **options: Any) -> list[Any]:
    file = io.BytesIO()
    torch.onnx.export(module, inputs, file, verbose=False, **options)
    return list(tw.compile(file.getvalue(), fallback="never")(*inputs))


def by_file(module: Any, inputs: tuple[Any, ...]) -> list[Any]:
    return by_onnx(module, inputs, dynamo=True)


def by_script(module: Any, inputs: tuple[Any, ...]) -> list[Any]:
    return by_onnx(module, inputs, dynamo=False, opset_version=18)


def by_compile(module: Any, inputs: tuple[Any, ...]) -> list[Any]:
    torch._dynamo.reset()
    return list(torch.compile(module, backend="tilewright")(*inputs))


DOORS: list[Callable[..., list[Any]]] = [by_module, by_program, by_file, by_script, by_compile]


RUNS = [(name, door) for name in GROUPS for door in DOORS]
RUNS = [(n, d) for n, d in RUNS if n == "everywhere" or (d is not by_script and (n, d) != ("no file", by_file))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("group", "door"), RUNS, ids=lambda v: getattr(v, "__name__", v))
def test_every_door_gives_what_eager_pytorch_gives(group: str, door: Callable[..., list[Any]]) -> None:
    cases = GROUPS[group]
    module = Together(cases).eval()
    inputs = tuple(x.clone() for _, args in cases.values() for x in args)
    with torch.no_grad():
        got = door(module, inputs)
        at = 0
        for name, (f, args) in cases.items():
            for want in leaves(f(*args)):
                x, y = np.asarray(as_numpy(got[at], name)), want.numpy()
                at += 1
                assert (x.shape, x.dtype) == (y.shape, y.dtype), name
                np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5, err_msg=name)
        assert at == len(got)


BYTES = torch.randint(0, 256, (1, 3, 9, 11), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
RESIZED: dict[str, dict[str, Any]] = {
    "nearest": {"size": (5, 17), "mode": "nearest"},
    "linear": {"size": (5, 17), "mode": "bilinear"},
    "linear by a scale, corners": {"scale_factor": 1.7, "mode": "bilinear", "align_corners": True},
    "cubic": {"size": (13, 7), "mode": "bicubic"},
    "linear, smoothed": {"size": (5, 6), "mode": "bilinear", "antialias": True},
    "cubic, smoothed": {"size": (12, 5), "mode": "bicubic", "antialias": True},
}


@pytest.mark.parametrize("door", [by_module, by_program, by_compile], ids=lambda f: f.__name__)
def test_bytes_are_resized_bit_for_bit(door: Callable[..., list[Any]]) -> None:
    """Eager PyTorch computes these with weights of 16 bits; its decomposition for compilers does not."""
    cases: dict[str, Case] = {name: resized(BYTES, **options) for name, options in RESIZED.items()}
    inputs = (BYTES,) * len(cases)
    got = door(Together(cases).eval(), tuple(x.clone() for x in inputs))
    for x, (name, (f, args)) in zip(got, cases.items(), strict=True):
        np.testing.assert_array_equal(np.asarray(as_numpy(x, name)), f(*args).numpy(), err_msg=name)


def test_bytes_in_a_file_are_resized_as_onnx_says() -> None:
    """`Resize` knows no weights of 16 bits and does not round lines to bytes first: a file gives the numbers that are
    computed in f32 and rounded once, which are not eager PyTorch's (docs/disagreements.md)."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    for name in ("linear", "cubic"):
        f, _ = resized(BYTES, **RESIZED[name])
        (got,) = by_file(Together({name: (f, (BYTES,))}).eval(), (BYTES,))
        exact = torch.nn.functional.interpolate(BYTES.float(), **RESIZED[name]).clamp(0, 255).numpy()
        numbers = np.asarray(as_numpy(got, name)).astype(np.float64)
        assert np.abs(numbers - exact).max() <= 0.5001, name
        assert (numbers != f(BYTES).numpy()).any(), name


def test_what_is_right_for_one_size_alone_is_not_compiled_for_all() -> None:
    lstm = nn.LSTM(3, 4, proj_size=2).eval()
    with pytest.raises(UnsupportedError, match=r"for one size alone: aten\.lstm\.input"):
        tw.compile(lstm, (steps,))


def test_files_that_pytorch_cannot_read_are_one_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """PyTorch itself logs a traceback of its first way to read them."""
    from tilewright.cli.models import named

    path = tmp_path / "m.pt2"
    path.write_bytes(b"no archive")
    for read in (named, tw.compile):
        with pytest.raises(ModelError, match="the file is no program"):
            read(path)
    assert not [r for r in caplog.records if r.name.startswith("torch") and r.levelname == "WARNING"]


def test_a_file_of_torch_export_is_read_by_its_path(tmp_path: Path) -> None:
    module, x = nn.Linear(3, 2), torch.randn(4, 3)
    path = tmp_path / "linear.pt2"
    torch.export.save(torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},)), path)
    for model in (path, str(path)):
        compiled = tw.compile(model)
        for rows in (1, 5):
            y = torch.randn(rows, 3)
            np.testing.assert_allclose(compiled(y), module(y).detach(), rtol=1e-5, atol=1e-6)
    for model in (path, torch.export.load(path)):
        assert "2 of 2 operators are compiled" in str(tw.coverage(model))
    with pytest.raises(ModelError, match="no such file"):
        tw.compile(tmp_path / "other.pt2")


def test_what_is_no_file_of_torch_export_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder.pt2").mkdir()
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "weights.pt2")
    with pytest.raises(ModelError, match=r"folder\.pt2: it is a folder"):
        tw.compile(tmp_path / "folder.pt2")
    with pytest.raises(ModelError, match="no such file"):
        tw.compile("x" * 300 + ".pt2")
    with pytest.raises(ModelError, match=r"no program of torch\.export: got a file of torch\.save") as error:
        tw.compile(tmp_path / "weights.pt2")
    assert error.value.hint == "pass the PyTorch module itself, with an example of its inputs"
