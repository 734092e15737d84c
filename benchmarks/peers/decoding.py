"""Frameworks that decode: a call makes the same number of tokens after the same number of earlier ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peers import vino
from tilewright.measure.contender import Prepared

STEPS = 16
"""Tokens of a call."""


def _ids(batch: int, rows: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, 1000, (batch, rows))


def state(path: str, earlier: int, batch: int, threads: int) -> Prepared:
    """Ours, with caches that stay."""
    import tilewright as tw

    model = tw.compile(path, state="auto", threads=threads)
    assert isinstance(model, tw.Model)
    retained = model.state(earlier + STEPS, batch=batch)
    retained(_ids(batch, earlier))
    results: list[Any] = []

    def call() -> None:
        retained.truncate(earlier)
        results[:] = [_decoded(lambda ids: retained(ids), batch)]

    return Prepared(call, lambda: {"logits": results[0]})


def own(path: str, earlier: int, batch: int, threads: int) -> Prepared:
    """Ours, with caches that come and go."""
    import tilewright as tw

    first = tw.compile(path, state="auto", threads=threads)  # the other takes no caches without rows
    assert isinstance(first, tw.Model)
    retained = first.state(earlier, batch=batch)
    retained(_ids(batch, earlier))
    caches = [np.ascontiguousarray(rows) for rows in retained.arrays().values()]
    model = tw.compile(path, threads=threads)
    results: list[Any] = []

    def call() -> None:
        past = caches

        def step(ids: Any) -> Any:
            nonlocal past
            logits, *past = model(ids, *past)
            return logits

        results[:] = [_decoded(step, batch)]

    return Prepared(call, lambda: {"logits": results[0]})


def onnxruntime(path: str, earlier: int, batch: int, threads: int) -> Prepared:
    """ONNX Runtime, whose caches stay its own values between calls."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    value = ort.OrtValue.ortvalue_from_numpy
    inputs = {"ids": value(_ids(batch, earlier))} | {k: value(v) for k, v in _no_rows(path, batch).items()}
    _, *caches = session.run_with_ort_values(names, inputs)
    results: list[Any] = []

    def call() -> None:
        past = caches

        def step(ids: Any) -> Any:
            nonlocal past
            arguments = {
                "ids": value(ids),
                **dict(zip((n.replace("present", "past") for n in names[1:]), past, strict=True)),
            }
            logits, *past = session.run_with_ort_values(names, arguments)
            return logits.numpy()

        results[:] = [_decoded(step, batch)]

    return Prepared(call, lambda: {"logits": results[0]}, {"version": ort.__version__})


def openvino(path: str, earlier: int, batch: int, threads: int) -> Prepared:
    """OpenVINO with its state: caches become variables. A call sets them back, which copies them once."""
    import openvino as ov
    from openvino._offline_transformations import apply_make_stateful_transformation

    core = ov.Core()
    graph = core.read_model(path)
    pairs = {n: n.replace("past", "present") for n in _no_rows(path, batch)}
    apply_make_stateful_transformation(graph, pairs)
    request = core.compile_model(graph, "CPU", vino.settings(threads)).create_infer_request()
    depth = _no_rows(path, batch)["past_k_0"].shape
    for variable in request.query_state():
        variable.state = ov.Tensor(np.zeros(depth, np.float32))
    request.infer({"ids": _ids(batch, earlier)})
    retained = [ov.Tensor(np.array(v.state.data)) for v in request.query_state()]
    results: list[Any] = []

    def call() -> None:
        for variable, tensor in zip(request.query_state(), retained, strict=True):
            variable.state = tensor
        results[:] = [_decoded(lambda ids: request.infer({"ids": ids}, share_outputs=True)["logits"], batch)]

    return Prepared(call, lambda: {"logits": results[0]}, {"version": ov.__version__})


def _decoded(step: Any, batch: int) -> np.ndarray[Any, Any]:
    """The logits of the last of some tokens, each the one thought likeliest after the one before."""
    ids = np.full((batch, 1), 7, np.int64)
    logits = np.zeros(0, np.float32)
    for _ in range(STEPS):
        logits = np.asarray(step(ids))
        ids = logits[:, -1].argmax(-1)[:, None]
    return np.array(logits[:, -1])


def _no_rows(path: str, batch: int) -> dict[str, np.ndarray[Any, Any]]:
    """Caches that are empty, by name."""
    import onnx

    result = {}
    for info in onnx.load(path, load_external_data=False).graph.input:
        if info.name.startswith("past"):
            sizes = [d.dim_value for d in info.type.tensor_type.shape.dim]
            result[info.name] = np.zeros((batch, sizes[1], 0, sizes[3]), np.float32)
    return result
