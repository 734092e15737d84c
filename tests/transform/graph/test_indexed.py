"""Scatters and gathers whose index is repeated along the last axes move rows, and give what those of elements give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright as tw

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, int]] = {
    "rows": ((9, 7), (20, 1), 20, 0),
    "negative and many": ((5, 3, 4), (11, 1, 1), 11, 0),
    "of each batch": ((3, 6, 8), (3, 10, 1), 10, 1),
    "one index for all batches": ((3, 6, 8), (1, 10, 1), 10, 1),
    "one place": ((4, 6), (1, 1), 3, 0),
}
"""The data's shape, the index's before it is expanded, how many places there are and along which axis."""


def model(
    data: tuple[int, ...], index: tuple[int, ...], shape: tuple[int, ...], axis: int, reduction: str | None
) -> Any:
    def value(name: str, dims: tuple[int, ...], kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, dims)

    inputs = [value("x", data), value("r", index, TensorProto.INT64)]
    nodes = [helper.make_node("Expand", ["r", "shape"], ["i"])]
    if reduction is None:
        nodes.append(helper.make_node("GatherElements", ["x", "i"], ["y"], axis=axis))
    else:
        inputs.append(value("u", shape))
        nodes.append(helper.make_node("ScatterElements", ["x", "i", "u"], ["y"], axis=axis, reduction=reduction))
    sizes = helper.make_tensor("shape", TensorProto.INT64, [len(shape)], shape)
    graph = helper.make_graph(nodes, "rows", inputs, [value("y", shape if reduction is None else data)], [sizes])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.daily(5)
@pytest.mark.parametrize("reduction", [None, "none", "add", "max"])
@pytest.mark.parametrize("case", CASES)
def test_rows_are_moved(case: str, reduction: str | None) -> None:
    data, lone, count, axis = CASES[case]
    shape = (*data[:axis], count, *data[axis + 1 :])
    source = np.random.default_rng(5)
    x, u = source.standard_normal(data).astype(np.float32), source.standard_normal(shape).astype(np.float32)
    r = source.integers(-data[axis], data[axis], lone)
    compiled = tw.compile(model(data, lone, shape, axis, reduction))
    text = str(compiled.show("graph"))
    assert "_elements(" not in text and ("gather" if reduction is None else "scatter_nd") in text
    index = np.broadcast_to(r, shape) % data[axis]
    if reduction is None:
        np.testing.assert_array_equal(compiled(x, r), np.take_along_axis(x, index, axis))
        return
    combine = {"none": lambda old, new: new, "add": np.add, "max": np.maximum}[reduction]
    wanted = x.copy()
    for point in np.ndindex(*shape):
        place = (*point[:axis], index[point], *point[axis + 1 :])
        wanted[place] = combine(wanted[place], u[point])
    np.testing.assert_allclose(compiled(x, r, u), wanted, rtol=1e-5, atol=1e-6)


def test_what_is_no_row_stays() -> None:
    """An index of its own for each element, or one of fewer columns than the data has."""
    text = str(tw.compile(model((9, 7), (20, 7), (20, 7), 0, "add")).show("graph"))
    assert "scatter_elements" in text
    text = str(tw.compile(model((9, 7), (20, 1), (20, 5), 0, "add")).show("graph"))
    assert "scatter_elements" in text
