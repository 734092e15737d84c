"""Files of PyTorch's exporters: `model.update` takes the module's dictionary of weights, and demands nothing that the
exporter invented. The models here are written as the exporters write them; `test_torch_exported.py` asks them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import tilewright as tw
from tests.frontend.onnx.build import info, model, node
from tilewright.frontend.onnx.registry import RULES
from tilewright.frontend.onnx.rules import usual  # noqa: F401  fills RULES
from tilewright.support.errors import WeightError

Array = np.ndarray[Any, Any]
F = np.float32
RNG = np.random.default_rng(4)


@pytest.fixture(autouse=True)
def _no_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Unique` stands for any operator that Tilewright lacks, whose results have a size that data decides."""
    monkeypatch.delitem(RULES, "Unique")


def random(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(F)


def by_torch_export(nodes: list[tuple[onnx.NodeProto, str]], names: list[str], **arguments: Any) -> onnx.ModelProto:
    """A model with the module's names, and with each node the operation that it comes of."""
    for n, origin in nodes:
        entry = n.metadata_props.add()
        entry.key, entry.value = "pkg.torch.onnx.fx_node", f"%y : call_function[target=torch.ops.aten.{origin}"
    m = model([n for n, _ in nodes], **arguments)
    m.producer_name = "pytorch"
    signature = m.graph.metadata_props.add()
    signature.key = "pkg.torch.export.ExportedProgram.graph_signature"
    lines = [f"p_{name.replace('.', '_')}: PARAMETER target='{name}'" for name in names]
    signature.value = "\n# inputs\n" + "\n".join(lines) + "\nx: USER_INPUT\n"
    return m


def linear_and_norms() -> onnx.ModelProto:
    nodes = [
        (node("MatMul", ["x", "val_0"], ["h"]), "linear.default](args = (%x, %p_fc_weight, %p_fc_bias)"),
        (node("Add", ["h", "fc.bias"], ["l"]), "linear.default](args = (%x, %p_fc_weight, %p_fc_bias)"),
        (node("LayerNormalization", ["l", "a.weight", "fc.bias"], ["m"]), "layer_norm.default](args = (%l, [4], "
         "%p_a_weight, %p_a_bias, 1e-05)"),
        (node("LayerNormalization", ["m", "a.weight", "fc.bias"], ["o"]), "layer_norm.default](args = (%m, [4], "
         "%p_b_weight, %p_b_bias, 1e-05)"),
        (node("Where", ["mask", "o", "scalar"], ["y"]), "where.self](args = (%b_mask, %o, %c_scalar)"),
    ]  # fmt: skip
    return by_torch_export(
        nodes,
        ["fc.weight", "fc.bias", "a.weight", "a.bias", "b.weight", "b.bias"],
        inputs=[info("x", ["n", 20, 3])],
        outputs=["y"],
        weights={
            "val_0": random(3, 4),
            "fc.bias": np.zeros(4, F),
            "a.weight": np.ones(4, F),
            "mask": RNG.random((20, 4)) < 0.5,
            "scalar": np.array(2.5, F),
        },
    )


def norm(x: Array, scale: Array, bias: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    result: Array = centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + bias
    return result


def test_transposed_and_shared_weights_have_the_modules_names() -> None:
    m = linear_and_norms()
    compiled = tw.compile(m)
    new = {"fc.weight": random(4, 3)} | {k: random(4) for k in ("fc.bias", "a.weight", "a.bias", "b.weight", "b.bias")}
    assert set(compiled.weights) == set(new)
    held = {t.name: onnx.numpy_helper.to_array(t) for t in m.graph.initializer}
    np.testing.assert_array_equal(compiled.weights["fc.weight"], held["val_0"].T)
    x = random(2, 20, 3)
    compiled.update(new)
    y = norm(x @ new["fc.weight"].T + new["fc.bias"], new["a.weight"], new["a.bias"])
    want = np.where(held["mask"], norm(y, new["b.weight"], new["b.bias"]), F(2.5))
    np.testing.assert_allclose(compiled(x), want, rtol=1e-4, atol=1e-5)


def test_a_weight_that_the_exporter_folded_away_is_refused() -> None:
    compiled = tw.compile(linear_and_norms())
    with pytest.raises(WeightError, match=r"gone.weight.*no such weight"):
        compiled.update({**compiled.weights, "gone.weight": random(4)})


def by_scopes(nodes: list[onnx.NodeProto], **arguments: Any) -> onnx.ModelProto:
    m = model(nodes, **arguments)
    m.producer_name = "pytorch"
    return m


def test_the_older_exporter() -> None:
    nodes = [
        node("Identity", ["norm.bias"], ["norm.running_mean"]),
        node("Identity", ["norm.weight"], ["norm.running_var"]),
        node("MatMul", ["x", "onnx::MatMul_12"], ["h"], name="/fc/MatMul"),
        node("Add", ["fc.bias", "h"], ["l"], name="/fc/Add"),
        node("BatchNormalization", ["l", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"], ["b"]),
        node("Add", ["b", "onnx::Add_40"], ["o"]),
        node("MatMul", ["o", "onnx::MatMul_41"], ["p"]),
        node("MatMul", ["p", "table"], ["y"]),
    ]
    table = random(6, 4)
    m = by_scopes(
        nodes,
        inputs=[info("x", ["n", 4, 3])],
        outputs=["y"],
        weights={
            "norm.weight": np.ones(4, F),
            "norm.bias": np.zeros(4, F),
            "onnx::MatMul_12": random(3, 4),
            "fc.bias": random(4),
            "onnx::Add_40": random(1, 4),
            "onnx::MatMul_41": table.T.copy(),
            "table": table,
        },
    )
    compiled = tw.compile(m)
    new = {f"norm.{k}": np.abs(random(4)) for k in ("weight", "bias", "running_mean", "running_var")}
    new |= {"fc.weight": random(4, 3), "fc.bias": random(4), "table": random(6, 4)}
    assert set(compiled.weights) == set(new)
    compiled.update({**new, "norm.num_batches_tracked": np.array(3)})
    x = random(2, 4, 3)
    y = x @ new["fc.weight"].T + new["fc.bias"]
    column = {k.removeprefix("norm."): v[:, None] for k, v in new.items() if k.startswith("norm.")}
    y = (y - column["running_mean"]) / np.sqrt(column["running_var"] + 1e-5) * column["weight"] + column["bias"]
    y = (y + onnx.numpy_helper.to_array(m.graph.initializer[4])) @ new["table"].T @ new["table"]
    np.testing.assert_allclose(compiled(x), y, rtol=1e-3, atol=1e-4)


def with_folds() -> onnx.ModelProto:
    """A model of `y = x * exp(log_std) + scale * 2 + 1 + (a * b)[0] + table[[2, 0]].sum(0) + other`, beside the
    weights."""
    arguments = {name: random(4) for name in ("log_std", "scale", "a", "b", "other")} | {"table": random(3, 4)}
    created = {
        "exp": np.exp(arguments["log_std"]),
        "add_1": arguments["scale"] * 2 + 1,
        "mul_2": (arguments["a"] * arguments["b"])[None],
        "index": arguments["table"][[2, 0]],
        "cos": np.cos(np.arange(4, dtype=F)),
    }
    names, nodes, last = [*created, *arguments], [(node("Relu", ["x"], ["h0"]), "relu.default](args = (%x,)")], "h0"
    for k, name in enumerate(["exp", "add_1", "mul_2", "cos", "log_std", "scale", "a", "b", "other"], 1):
        nodes.append((node("Mul" if k == 1 else "Add", [last, name], [f"h{k}"]), "add.Tensor](args = (%a, %b)"))
        last = f"h{k}"
    nodes.append((node("Concat", [last, "index", "table"], ["y"], axis=0), "cat.default](args = ()"))
    assert len(names) == 11
    weights = {**arguments, **created}
    return by_torch_export(
        nodes, [*arguments, "gone.weight", "n.num_batches_tracked"], inputs=[info("x", [2, 4])], outputs=["y"],
        weights=weights,
    )  # fmt: skip


def test_weights_of_which_the_exporter_created_constants_cannot_change() -> None:
    m = with_folds()
    compiled = tw.compile(m)
    assert set(compiled.weights) == {"other"}
    held = {t.name: onnx.numpy_helper.to_array(t) for t in m.graph.initializer}
    x, new = random(2, 4), random(4)
    before = compiled(x)
    compiled.update({"other": new, "n.num_batches_tracked": np.array(3)})
    np.testing.assert_allclose(compiled(x)[:2] - before[:2], np.tile(new - held["other"], (2, 1)), atol=1e-5)
    created = {"log_std": "exp", "scale": "add_1", "a": "mul_2", "b": "mul_2", "table": "index"}
    for name, constant in created.items():
        with pytest.raises(WeightError, match=f"{name}.*cannot change.*constant '{constant}'"):
            compiled.update({"other": new, name: held[name]})
    with pytest.raises(WeightError, match=r"gone.weight.*cannot change: it is not in the file"):
        compiled.update({"other": new, "gone.weight": new})


def test_constants_that_come_from_no_weight_leave_weights_free() -> None:
    """Tables of positions, masks, new weights that are all ones or zeros."""
    ones, table = np.ones(6, F), np.sin(np.arange(6, dtype=F) / 3)
    nodes = [
        (node("Mul", ["x", "scale"], ["h"]), "mul.Tensor](args = (%x, %p_scale)"),
        (node("Add", ["h", "bias"], ["i"]), "add.Tensor](args = (%h, %p_bias)"),
        (node("Add", ["i", "sin"], ["j"]), "add.Tensor](args = (%i, %sin)"),
        (node("Mul", ["j", "ones"], ["k"]), "mul.Tensor](args = (%j, %ones)"),
        (node("Add", ["k", "w"], ["y"]), "add.Tensor](args = (%k, %p_w)"),
    ]
    weights = {"scale": ones, "bias": 0 * ones, "w": random(6), "sin": table, "ones": ones}
    m = by_torch_export(nodes, ["scale", "bias", "w"], inputs=[info("x", [6])], outputs=["y"], weights=weights)
    assert set(tw.compile(m).weights) == {"scale", "bias", "w"}


@pytest.mark.filterwarnings("ignore::tilewright.parts.context.FallbackWarning")
@pytest.mark.parametrize("fallback", [False, True])
def test_numbers_that_are_part_of_the_program_cannot_change(fallback: bool) -> None:
    """A file that is not PyTorch's: its floats are weights, but bounds and exponents are built in."""
    nodes = [
        node("Clip", ["x", "low", "high"], ["c"]),
        node("Pow", ["c", "two"], ["p"]),
        node("Mul", ["p", "two"], ["q"]),
        node("Mul", ["q", "w"], ["r"]),
        node("Erf", ["r"], ["e"]),
        node("Unique", ["e"], ["y"]) if fallback else node("Identity", ["e"], ["y"]),
    ]
    numbers = {"low": np.array(-1, F), "high": np.array(1, F), "two": np.array(2, F), "w": random(3)}
    m = model(nodes, [info("x", [3])], ["y"], numbers)
    compiled = tw.compile(m)
    x = random(3)
    compiled(x)
    new = {**numbers, "w": 2 * numbers["w"]} if fallback else {"w": 2 * numbers["w"]}
    compiled.update(new)
    for name in ("low", "high", "two"):
        with pytest.raises(WeightError, match=f"{name}.*cannot change: its number is part of the program"):
            compiled.update({**new, name: np.array(3, F)})


def test_large_tied_weights_stay_one() -> None:
    weight = random(600, 600)
    nodes = [
        node("Identity", ["a.weight"], ["b.weight"]),
        node("MatMul", ["x", "a.weight"], ["h"]),
        node("MatMul", ["h", "b.weight"], ["y"]),
    ]
    m = by_scopes(nodes, inputs=[info("x", ["n", 600])], outputs=["y"], weights={"a.weight": weight})
    compiled = tw.compile(m)
    assert set(compiled.weights) == {"a.weight"}
    compiled.update({"a.weight": 2 * weight, "b.weight": 2 * weight})
    with pytest.raises(WeightError, match="was one tensor"):
        compiled.update({"a.weight": weight, "b.weight": 3 * weight})


@pytest.mark.parametrize("code", [TensorProto.INT64, TensorProto.BOOL])
def test_large_tables_of_integers_are_no_weights(code: int) -> None:
    """A table of any producer: an update leaves it out, and the file's stays."""
    table = RNG.integers(0, 2, (10, 8)).astype(bool if code == TensorProto.BOOL else np.int64)
    nodes = [node("Cast", ["ge"], ["t"], to=1), node("MatMul", ["x", "t"], ["h"]), node("Mul", ["h", "w"], ["y"])]
    compiled = tw.compile(model(nodes, [info("x", ["n", 10])], ["y"], {"ge": table, "w": random(8)}))
    new, x = random(8), random(3, 10)
    compiled.update({"w": new})
    np.testing.assert_allclose(compiled(x), x @ table.astype(F) * new, rtol=1e-5, atol=1e-5)
