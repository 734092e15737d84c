"""The parts of a PyTorch module that are read: names, symbols, containers, weights, errors; run by `make torch`."""

from __future__ import annotations

import math
import sys
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.frontend.torch.torch_checks import Functional, assert_close, check, interpreted, nn, torch
from tilewright.frontend.read import import_model
from tilewright.frontend.torch import export
from tilewright.ir.dtype import BY_NAME, dtype
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.specs import ParamSpec, TargetSpec
from tilewright.support.errors import ArtifactError, CallError, Error, ModelError, UnsupportedError


def read(module: Any, example: Any = None, dynamic: Any = "auto", dims: Any = None) -> Any:
    return import_model(module, dims, example, dynamic)


def types(imported: Any) -> list[str]:
    return [f"{v.name}: {v.type}" for v in imported.graph.inputs]


class State(nn.Module):  # type: ignore[misc,name-defined]
    """An observation and a recurrent state [layers, batch, width]."""

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, layers)

    def forward(self, obs: Any, state: tuple[Any, Any], scale: float = 2.0) -> Any:
        y, state = self.lstm((obs * scale).unsqueeze(0), state)
        return y.squeeze(0), state


# --- symbols --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "layers"), [(1, 1), (1, 2), (2, 2), (4, 1)])
def test_the_batch_is_located(batch: int, layers: int) -> None:
    """Also where the example's batch is 1, and where as many layers as batch entries make it ambiguous."""
    state = torch.zeros(layers, batch, 3)
    imported = read(State(layers), (torch.zeros(batch, 4), (state, state.clone())))
    shapes = ["obs: f32[batch, 4]", *(f"state_{k}: f32[{layers}, batch, 3]" for k in (0, 1))]
    assert types(imported) == shapes
    assert imported.interface.outputs == ("output0", "output1", "output2")


def test_other_inputs_may_be_static() -> None:
    imported = read(Functional(lambda x, table: x @ table), (torch.zeros(2, 4), torch.zeros(4, 5)))
    assert types(imported) == ["args_0: f32[batch, 4]", "args_1: f32[4, 5]"]


def test_symbols_as_asked_for() -> None:
    net = nn.Linear(4, 3)
    imported = read(net, torch.zeros(1, 5, 4), {"input": {0: "batch", 1: "time"}})
    assert types(imported) == ["input: f32[batch, time, 4]"]
    assert types(read(net, torch.zeros(1, 5, 4), None)) == ["input: f32[1, 5, 4]"]
    assert types(read(net, torch.zeros(1, 5, 4), dims={"batch": 7})) == ["input: f32[7, 5, 4]"]
    with pytest.raises(ModelError, match=r"no dimension of the inputs has this name: expected batch, got time"):
        read(net, torch.zeros(1, 5, 4), dims={"time": 7})


def test_wrong_symbols_are_all_listed() -> None:
    with pytest.raises(ModelError) as caught:
        read(nn.Linear(4, 3), torch.zeros(2, 4), {"obs": {0: "n"}, "input": {5: "n", 0: "a b"}})
    text = str(caught.value)
    assert "no input has this name: expected input" in text
    assert "has no such axis" in text and "must be an identifier" in text


def test_code_that_fixes_the_batch_says_so() -> None:
    def fixed(x: Any) -> Any:
        return x.reshape(4, -1) if x.shape[0] == 4 else x.view(11, 3)

    with pytest.raises(ModelError, match=r"cannot be exported with symbolic dimensions(.|\n)*dynamic=None"):
        read(Functional(fixed), torch.zeros(4, 3))
    assert types(read(Functional(fixed), torch.zeros(4, 3), None)) == ["args_0: f32[4, 3]"]


def test_bounds_come_from_the_code() -> None:
    def bounded(x: Any) -> Any:
        return x * 2 if x.shape[0] <= 99 else x

    (symbol,) = read(Functional(bounded), torch.zeros(4, 3)).graph.symbols
    assert (symbol.name, symbol.lo, symbol.hi) == ("batch", 1, 99)


def test_a_batch_of_one_that_would_come_out_otherwise_is_refused() -> None:
    for squeeze, least in ((lambda x: x.squeeze(), 2), (lambda x: x.squeeze(1), 1), (lambda x: x[1:] * 2, 1)):
        (symbol,) = read(Functional(squeeze), torch.zeros(4, 3)).graph.symbols
        assert symbol.lo == least


# --- containers -----------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "mean std")


@dataclass
class Result:
    logits: Any
    value: Any


torch.export.register_dataclass(Result, serialized_type_name="Result")


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda x: x + 1, ["output0"]),
        (lambda x: (x + 1, x + 2), ["output0", "output1"]),
        (lambda x: {"a": x + 1, "b": {"c": x + 2}}, ["a", "b_c"]),
        (lambda x: {"heads": [x + 1, x + 2]}, ["heads_0", "heads_1"]),
        (lambda x: Pair(x + 1, x + 2), ["mean", "std"]),
        (lambda x: (x + 1, {"state": (x + 2, x + 3)}), ["output0", "state_0", "state_1"]),
        (lambda x: Result(x + 1, x.sum(1)), ["logits", "value"]),
        (lambda x: ({"h": x + 1}, {"h": x + 2}), ["output0_h", "output1_h"]),
    ],
)
def test_names_of_outputs(make: Any, names: list[str]) -> None:
    class Named(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return make(x)

    assert list(read(Named(), torch.zeros(2, 3)).interface.outputs) == names


def test_examples_of_all_kinds() -> None:
    class Two(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, obs: Any, goal: Any = None, *, scale: Any = None) -> Any:
            y = obs if goal is None else obs + goal
            return y if scale is None else y * scale

    obs = torch.zeros(2, 3)
    assert types(read(Two(), obs)) == ["obs: f32[batch, 3]"]
    assert types(read(Two(), obs.numpy())) == ["obs: f32[batch, 3]"]
    assert types(read(Two(), [obs, obs])) == ["obs: f32[batch, 3]", "goal: f32[batch, 3]"]
    imported = read(Two(), {"scale": np.zeros((2, 1)), "obs": obs})
    assert types(imported) == ["obs: f32[batch, 3]", "scale: f64[batch, 1]"]
    with pytest.raises(CallError, match=r"does not fit Two\.forward"):
        read(Two(), {"observation": obs, "goal": obs})
    with pytest.raises(ModelError, match="needs an example"):
        read(Two())


def test_a_dict_of_observations_is_one_argument() -> None:
    class Dict(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, obs: dict[str, Any]) -> Any:
            return obs["image"].flatten(1).float().sum(1) + obs["vector"].sum(1)

    example = {"image": torch.zeros(2, 3, 3, dtype=torch.uint8), "vector": torch.zeros(2, 4)}
    for case in (example, (example,)):
        assert types(read(Dict(), case)) == ["obs_image: u8[batch, 3, 3]", "obs_vector: f32[batch, 4]"]


def test_an_input_an_output_and_a_weight_may_share_a_name() -> None:
    class Same(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.h = nn.Parameter(torch.ones(3))

        def forward(self, h: Any) -> Any:
            return {"h": h + self.h}

    imported = read(Same(), torch.zeros(2, 3))
    assert (imported.interface.inputs, imported.interface.outputs) == (("h",), ("h",))
    assert set(imported.weights) == {"h"}
    import tilewright as tw

    model = tw.compile(imported)
    assert model.run({"h": np.zeros((1, 3), np.float32)})["h"].tolist() == [[1, 1, 1]]


# --- weights --------------------------------------------------------------------------------------------------------


class Weighted(nn.Module):  # type: ignore[misc,name-defined]
    """Tied parameters, buffers that are in `state_dict()` and that are not, integers, and what nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("order", torch.tensor([3, 1, 0, 2]))
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)
        self.register_buffer("unused", torch.zeros(2))
        self.log_alpha = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.embed(x))[:, self.order] * self.scale * self.log_alpha.exp()
        return self.head(y + torch.tensor([1.0, 2.0, 3.0, 4.0]))


def test_weights_are_those_of_the_state_dict() -> None:
    imported = check(Weighted(), lambda n: (torch.randint(0, 5, (n,)),))
    norm = {f"norm.{name}" for name in ("weight", "bias", "running_mean", "running_var")}
    assert set(imported.weights) == {"embed.weight", "order", "log_alpha", *norm}
    assert set(imported.interface.ignored) == {"head.weight", "norm.num_batches_tracked", "unused"}
    assert imported.interface.tied == (("head.weight", "embed.weight"),)


def test_an_exported_program_is_read_as_it_is() -> None:
    module = Weighted().eval()
    batch = torch.export.Dim("n", min=1)
    program = torch.export.export(module, (torch.zeros(3, dtype=torch.int64),), dynamic_shapes=({0: batch},))
    imported = read(program)
    assert types(imported) == ["x: i64[batch]"]
    assert set(imported.weights) | set(imported.interface.ignored) == set(module.state_dict())
    x = torch.tensor([1, 4])
    assert_close(interpreted(imported, x), module(x))


def test_training_mode_comes_back() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.BatchNorm1d(3))
    module[1].eval()
    read(module, torch.zeros(2, 3))
    assert [m.training for m in module] == [True, False, True] and module.training
    assert all(p.grad is None and p.requires_grad for p in module.parameters())


def test_the_graph_keeps_no_memory_of_the_module() -> None:
    module = nn.Linear(3, 2)
    imported = read(module, torch.zeros(1, 3))
    with torch.no_grad():
        module.weight.zero_()
    assert imported.weights["weight"].any()


# --- errors ---------------------------------------------------------------------------------------------------------


def test_all_that_is_unsupported_is_listed() -> None:
    class Bad(nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            a = torch.bernoulli(torch.sigmoid(x))
            b = torch.linalg.svd(x)[1]
            return a, b, torch.linalg.eigh(x @ x.T)[0]

    with pytest.raises(UnsupportedError) as caught:
        read(Bad(), torch.zeros(3, 3))
    text = str(caught.value)
    assert len(list(caught.value.each())) >= 3
    assert "aten.bernoulli" in text and "sample outside of the model" in text
    assert "test_torch_import.py:" in text and "torch.linalg.svd(x)[1]" in text


def test_state_that_is_retained_inside() -> None:
    class Counter(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.count += 1
            return x + self.count

    with pytest.raises(UnsupportedError, match="changes buffers of the module: count"):
        read(Counter(), torch.zeros(2, 3))


@pytest.mark.parametrize("norm", ["batch_norm", "instance_norm"])
@pytest.mark.parametrize("buffers", [False, True])
def test_norms_that_change_running_statistics_are_refused(norm: str, buffers: bool) -> None:
    """PyTorch's operators do not say that they change them."""
    function = getattr(nn.functional, norm)
    by_batch = {"training": True} if norm == "batch_norm" else {"use_input_stats": True}

    class Normed(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("var", torch.ones(3))

        def forward(self, x: Any, mean: Any, var: Any) -> Any:
            mean, var = (self.mean, self.var) if buffers else (mean, var)
            return function(x, mean, var, **by_batch), mean * 1

    with pytest.raises(UnsupportedError, match=r"changes buffers|arguments in place|running statistics"):
        read(Normed(), (torch.randn(2, 3, 4), torch.zeros(3), torch.ones(3)))


@pytest.mark.parametrize("form", ["module", "exported", "functional"])
def test_arguments_that_are_changed_in_place(form: str) -> None:
    """The caller would not see the change: eager PyTorch writes to its caller's memory, a program to its own."""

    def cached(x: Any, cache: Any) -> Any:
        cache[:, 1] = x
        return cache.sum(1)

    def activated(x: Any, cache: Any) -> Any:
        return torch.relu_(x) + cache[:, 0]

    def through_a_view(x: Any, cache: Any) -> Any:
        cache.view(-1).mul_(2)
        return x + 1

    for function, name in ((cached, "args_1"), (activated, "args_0"), (through_a_view, "args_1")):
        example = (torch.zeros(2), torch.zeros(2, 3))
        model: Any = Functional(function)
        if form != "module":
            model, example = torch.export.export(model, example), None
        if form == "functional":
            model = model.run_decompositions()
        with pytest.raises(UnsupportedError, match=rf"forward changes arguments in place: {name}"):
            import_model(model, example=example, dynamic=None)


def test_sizes_that_depend_on_data() -> None:
    with pytest.raises(Error, match=r"data|cannot be exported"):
        read(Functional(lambda x: torch.zeros(int(x.long()[0, 0].item()))), torch.zeros(2, 3))


def test_what_raises_while_tracing() -> None:
    def broken(x: Any) -> Any:
        raise KeyError("observation")

    with pytest.raises(ModelError, match="KeyError: 'observation'"):
        read(Functional(broken), torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ("observation", r"no tensors: expected a tensor or a NumPy array.*got str"),
        ((2, 8), r"no tensors.*got tuple"),
        ((torch.zeros(2, 8), torch.zeros(1)), r"does not fit Linear.forward.*expected \(input.*\), got 2 arguments"),
        (torch.zeros(2, 8).to_sparse(), r"dense tensors with numbers: got input \(torch.sparse_coo\)"),
        (torch.nested.nested_tensor([torch.zeros(2, 8)]), r"dense tensors with numbers: got input \(nested\)"),
        (torch.zeros(2, 8, device="meta"), r"dense tensors with numbers: got input \(on the meta device\)"),
        (np.zeros((2, 8), ">f4"), r"PyTorch has no tensors of such an array: got >f4\[2, 8\]"),
        (np.array([None]), r"PyTorch has no tensors of such an array: got object\[1\]"),
        (torch.zeros(2, 7), r"Linear cannot run on the example.*2x7 and 8x4.*got input float32\[2, 7\]"),
        (torch.zeros(2, 8).double(), r"Linear cannot run on the example.*Double and Float.*got input float64\[2, 8\]"),
    ],
    ids=["string", "shape", "arguments", "sparse", "nested", "meta", "bytes", "objects", "width", "type"],
)
def test_an_example_that_does_not_fit(example: Any, message: str) -> None:
    with pytest.raises(Error, match=message) as caught:
        read(nn.Linear(8, 4), example)
    assert "dynamic" not in str(caught.value)


def test_parameters_without_a_shape() -> None:
    with pytest.raises(CallError, match=r"no shape yet: got weight, bias"):
        read(nn.LazyLinear(4), torch.zeros(2, 8))


def test_modules_of_torchscript_are_refused() -> None:
    """The whole module by name; one that holds a traced module is exported."""
    traced = torch.jit.trace(nn.Linear(3, 2), torch.zeros(1, 3))
    for module in (traced, torch.jit.script(nn.Linear(3, 2))):
        with pytest.raises(ModelError, match="does not export TorchScript: got"):
            read(module, torch.zeros(2, 3))
    assert read(nn.Sequential(traced), torch.zeros(2, 3)).graph.inputs


def test_examples_of_arrays_that_are_no_tensors_memory() -> None:
    backwards = np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1]
    for example in (backwards, backwards.astype(BY_NAME["bf16"].numpy)):
        (array,) = read(nn.ReLU(), example).graph.inputs
        assert array.dtype is dtype(example.dtype)


def test_sizes_are_results() -> None:
    module = Functional(lambda x: (x + 1, x.shape[0], 2 * x.shape[0] + x.shape[1]))
    model = tw.compile(module, torch.zeros(4, 3))
    for n in (2, 5):
        _, rows, mixed = model(torch.zeros(n, 3))
        assert (rows.dtype, rows.shape, int(rows), int(mixed)) == (torch.int64, (), n, 2 * n + 3)


def test_modules_that_never_end_are_not_run_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where something fails, the module is run to see whether the example is to blame."""

    def endless(x: Any) -> Any:
        return torch._higher_order_ops.while_loop(lambda x: x.sum() < math.inf, lambda x: (x.tanh(),), (x,))

    def huge(x: Any) -> Any:
        return x.expand(1 << 31, 1 << 30, 3).sum()

    monkeypatch.setattr(export, "TIMEOUT_S", 0.5)
    assert "loop" in {node.op for node in read(Functional(endless), torch.zeros(3)).graph.nodes}  # it is not run
    with pytest.raises(ModelError, match=r"cannot be exported|too large"):
        read(Functional(huge), torch.zeros(3))
    assert sys.getprofile() is None


def test_the_manifest_checks_ignored_names() -> None:
    params = (ParamSpec("w", "f32", (1,)),)
    target = TargetSpec("x86_64", "generic")
    assert Manifest("m", target, params=params, ignored=("log_std",)).ignored == ("log_std",)
    for ignored in (("w",), ("",), ("a", "a")):
        with pytest.raises(ArtifactError, match="the name is empty or used twice"):
            Manifest("m", target, params=params, ignored=ignored)
    assert Manifest("m", target, params=params, ignored=("v",), tied=(("v", "w"),)).tied == (("v", "w"),)
    for tied in ((("u", "w"),), (("v", "u"),), (("w", "w"),)):
        with pytest.raises(ArtifactError, match="is tied to no parameter"):
            Manifest("m", target, params=params, ignored=("v",), tied=tied)


class Branches(nn.Module):
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


class Samples(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.distributions.Categorical(logits=x).sample()


@pytest.mark.parametrize("module", [Branches(), Samples()])
def test_what_depends_on_values_is_explained(module: Any, capfd: pytest.CaptureFixture[str]) -> None:
    torch.distributions.Distribution.set_default_validate_args(True)  # TorchDynamo, once it has run, leaves it off
    with pytest.raises(ModelError, match=r"(?s)test_torch_import.py:\d+: return .*draw or branch outside"):
        import_model(module, None, torch.zeros(2, 3), "auto")
    assert capfd.readouterr().err == ""


# --- sizes that data decides ----------------------------------------------------------------------------------------


class Masked(nn.Module):  # type: ignore[misc,name-defined]
    """Rows that a mask chooses through a layer, numbers that one chooses, places; and their number times the input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        rows = x[x[:, 0] > 0]
        chosen = torch.masked_select(x, x[0] > 0.2)
        return self.layer(rows).relu(), rows.mean(0), chosen, torch.nonzero(x > 0.5), x[x < -1] * 2, rows.shape[0] * x


class Once(nn.Module):  # type: ignore[misc,name-defined]
    """A submodule that is there once, and one that stands once in a row."""

    def forward(self, x: Any) -> Any:
        once, places, counts = torch.unique(x, return_inverse=True, return_counts=True)
        runs, lengths = torch.unique_consecutive(x.flatten().round(), return_counts=True)
        return once, places, counts, runs, lengths, once * 2


def test_unique() -> None:
    """NaN are all different for PyTorch."""
    x = torch.tensor([[3.0, 1.0, 1.0], [float("nan"), 3.0, -0.0], [0.0, float("nan"), 7.0]])
    module = Once().eval()
    model = tw.compile(module, (x,))
    for case in (x, torch.randint(0, 4, (5, 3)).float(), torch.ones(1, 3)):
        for got, want in zip(model(case), module(case), strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)


class MaskedPut(nn.Module):  # type: ignore[misc,name-defined]
    """Rows that a mask chooses go through a layer and back to their places; also numbers, and one value for all."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        rows, numbers, same = x.clone(), x.clone(), x.clone()
        mask = x[:, 0] > 0
        rows[mask] = self.layer(rows[mask]).relu()
        numbers[x > 0.5] = x[x > 0.5] * 2
        same[mask, :] = x[0] - 1
        added = x.index_put((mask,), x[mask] * 3, accumulate=True)
        return rows, numbers, same, added


def test_masked_put() -> None:
    """Interpreted and compiled, also where nothing or everything is chosen."""
    torch.manual_seed(0)
    module = MaskedPut().eval()
    check(module, lambda batch: (torch.randn(batch, 8),))
    model = tw.compile(module, (torch.randn(3, 8),))
    for x in (torch.randn(1, 8), torch.randn(30, 8), -torch.ones(2, 8), torch.ones(9, 8)):
        with torch.no_grad():
            assert_close(model(x), module(x))


@pytest.mark.parametrize("threads", [1, 2])
def test_masks(threads: int) -> None:
    """Interpreted and compiled, also where nothing or everything is chosen."""
    torch.manual_seed(0)
    module = Masked().eval()
    check(module, lambda batch: (torch.randn(batch, 8),))
    model = tw.compile(module, (torch.randn(3, 8),), threads=threads)
    for x in (torch.randn(1, 8), torch.randn(30, 8), -torch.ones(2, 8), torch.ones(9, 8)):
        with torch.no_grad():
            assert_close(model(x), module(x))


class Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def forward(self, x: Any) -> Any:
        return x * torch.randn(3, generator=self.generator)


def test_a_generator_of_a_module_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"torch\.Generator"):
        tw.compile(Drawing().eval(), (torch.ones(2, 3),))


def test_modules_and_functions_of_torch_compile_are_traced_as_they_were_written() -> None:
    """Inductor's code would read the memory of tensors that have none."""
    doubled = torch.compile(lambda t: t.sin() * 2)

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = torch.compile(nn.Linear(3, 3)), nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return doubled(self.outer(self.inner(x)))

    x = torch.randn(4, 3)
    wrapped: Any = torch.compile(nn.Linear(3, 2))
    nested: Any = Nested()
    originals = wrapped._orig_mod, lambda t: nested.outer(nested.inner._orig_mod(t)).sin() * 2
    for module, original in zip((wrapped, nested), originals, strict=True):
        compiled = tw.compile(module, (x,))
        for rows in (1, 5):
            y = torch.randn(rows, 3)
            np.testing.assert_allclose(compiled(y), original(y).detach(), rtol=1e-5, atol=1e-5)
        compiled.update(module.state_dict())
