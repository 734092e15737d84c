"""The zoo's models as files for other runtimes, and their calls: what `bench_zoo_peers` prepares and times.

python -m benchmarks.zoo.peers NAME      exports, compiles and saves one model, in build/zoo-peers/NAME, and notes which
                                         runtimes it kills
python -m benchmarks.zoo.peers NAME --inductor      compiles it with Inductor, into that compiler's cache

PyTorch's ways, eager and Inductor, run the module itself, which is built anew from the same random numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

import tilewright as tw
from benchmarks import models
from benchmarks.peers import vino
from benchmarks.zoo import built, litert
from benchmarks.zoo.entry import Entry
from benchmarks.zoo.probe import arguments, brief, leaves
from tilewright.dynamo.backend import tilewright

FOLDER = models.ROOT / "build" / "zoo-peers"
MAX_BYTES = 400 << 20
"""The most bytes of a model's weights: larger ones are left out of this race."""

KILLED = "killed.json"
UNEXPORTED = "unexported.txt"
"""Why there is no ONNX file."""
PARTS = "parts.txt"
"""Why there is no program of the whole model: `torch.compile` cuts it into parts and runs in PyTorch what we lack."""
INDUCTOR = "inductor.txt"
"""Says that Inductor's cache has this model."""

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]
Results = Callable[[], list[Array]]


def prepare(name: str, folder: Path) -> None:
    """Write a model's ONNX file, our program of it, its inputs and what eager PyTorch gives."""
    entry = built(name)
    size = sum(p.numel() * p.element_size() for p in entry.module.parameters())
    if size > MAX_BYTES:
        raise SystemExit(f"{name}: {size >> 20} MiB of weights, more than {MAX_BYTES >> 20}")
    folder.mkdir(parents=True, exist_ok=True)
    for old in (KILLED, UNEXPORTED, PARTS):
        (folder / old).unlink(missing_ok=True)
    with torch.no_grad():
        expected = [leaf.numpy() for leaf in leaves(entry.call(entry.module))]
        np.savez(folder / "outputs.npz", *expected)
        try:
            model = tw.compile(entry.module, entry.example, dynamic=None)
        except tw.Error as refusal:
            (folder / PARTS).write_text(brief(refusal))
        else:
            model.save(folder / "ours.tw")
            np.savez(folder / "ours.npz", *[t.numpy() for t in arguments(entry, model)])
        inputs = exported(entry, folder)
    np.savez(folder / "inputs.npz", **inputs)
    note_killed(folder)


def exported(entry: Entry, folder: Path) -> dict[str, Array]:
    """Write a model's ONNX file, or why there is none, and return the file's inputs."""
    path = folder / "model.onnx"
    try:
        export(entry, path)
    except Exception as error:  # the exporter may raise anything
        (folder / UNEXPORTED).write_text(f"not exported: {said(error.__cause__ or error)}")
        return {}
    return feeds(entry, onnx.load(path, load_external_data=False))


def said(error: BaseException) -> str:
    """An exception's kind and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:150]}"


def note_killed(folder: Path) -> None:
    """Write down the runtimes whose process this model kills: each has one of its own, and the race has one for all."""
    result = {}
    for runtime, make in FILES.items():
        if runtime == "litert":
            continue  # its file is made later, by a process that dies alone
        child = os.fork()
        if not child:
            try:
                make(folder)[0]()
            finally:  # what it raises is said where it races
                os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            result[runtime] = f"killed by signal {os.WTERMSIG(status)}"
    (folder / KILLED).write_text(json.dumps(result))


def absent(folder: Path) -> dict[str, str]:
    """The runtimes that a model kills, with how, and those that have no file of it, with why."""
    path = folder / KILLED
    result: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    if (folder / UNEXPORTED).exists():
        result |= dict.fromkeys(("onnxruntime", "openvino"), (folder / UNEXPORTED).read_text())
    if (folder / litert.UNCONVERTED).exists():
        result["litert"] = (folder / litert.UNCONVERTED).read_text()
    return result


def export(entry: Entry, path: Path) -> None:
    """The module as an ONNX file, all sizes those of the example, by the newer exporter."""
    is_named = isinstance(entry.example, dict)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            entry.module,
            () if is_named else tuple(entry.example),
            path,
            kwargs=entry.example if is_named else None,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def feeds(entry: Entry, proto: onnx.ModelProto) -> dict[str, Array]:
    """The example's arrays by the file's names of its inputs: by name where it has the same, else in order."""
    names = [i.name for i in proto.graph.input]
    example = entry.example if isinstance(entry.example, dict) else {}
    if all(isinstance(example.get(name), torch.Tensor) for name in names):
        return {name: example[name].numpy() for name in names}
    tensors = entry.tensors()
    if len(tensors) != len(names):
        raise SystemExit(f"the file has {len(names)} inputs, the example {len(tensors)} tensors")
    return {name: t.numpy() for name, t in zip(names, tensors, strict=True)}


def arrays(path: Path) -> dict[str, Array]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def ours(folder: Path) -> tuple[Call, Results]:
    """`model(*inputs, out=buffers)`, or the parts by `torch.compile`."""
    if (folder / PARTS).exists():
        entry = built(folder.name)
        return module_calls(entry, torch.compile(entry.module, backend=tilewright))
    model = tw.load(folder / "ours.tw")
    inputs = list(arrays(folder / "ours.npz").values())
    outputs = model.empty_outputs(*inputs)
    buffers = tuple(outputs.values())
    return lambda: model(*inputs, out=buffers), lambda: list(buffers)


def onnxruntime(folder: Path) -> tuple[Call, Results]:
    """Inputs and outputs bound once, all optimisations, one thread."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    inputs = arrays(folder / "inputs.npz")
    names = {i.name for i in session.get_inputs()}
    result = session.run(None, {k: v for k, v in inputs.items() if k in names})
    binding = session.io_binding()
    for name in names:
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(inputs[name]))
    bound = [ort.OrtValue.ortvalue_from_numpy(np.empty_like(x)) for x in result]
    for output, value in zip(session.get_outputs(), bound, strict=True):
        binding.bind_ortvalue_output(output.name, value)
    return lambda: session.run_with_iobinding(binding), lambda: [v.numpy() for v in bound]


def openvino(folder: Path) -> tuple[Call, Results]:
    """f32, for latency, one stream and one thread, its own buffers filled once."""
    import openvino as ov

    core = ov.Core()
    graph = core.read_model(folder / "model.onnx")
    inputs = arrays(folder / "inputs.npz")

    def operands(port: Any) -> Array:
        """An input's array: a tensor may have several names, of which one is the file's."""
        return next(inputs[name] for name in port.names if name in inputs)

    graph.reshape({port.any_name: list(operands(port).shape) for port in graph.inputs})
    compiled = core.compile_model(graph, "CPU", vino.settings(threads=1))
    request = compiled.create_infer_request()
    for port in compiled.inputs:
        request.get_tensor(port).data[...] = operands(port)
    return (
        lambda: request.infer(share_outputs=True),
        lambda: [np.array(request.get_tensor(port).data) for port in compiled.outputs],
    )


def eager(folder: Path) -> tuple[Call, Results]:
    """The module as it is, in inference mode."""
    entry = built(folder.name)
    return module_calls(entry, entry.module)


def inductor(folder: Path) -> tuple[Call, Results]:
    """`torch.compile` with weights folded, as it comes otherwise, guards left out: the inputs stay the same."""
    if not (folder / INDUCTOR).exists():
        raise FileNotFoundError("not prepared")
    return compile_by_inductor(built(folder.name))


def compile_by_inductor(entry: Entry) -> tuple[Call, Results]:
    """The calls of a module compiled by Inductor; what it made is kept in its cache."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(FOLDER / "inductor"))
    import torch._inductor.config as config

    torch._dynamo.reset()
    torch.compiler.set_stance("default")
    config.freezing = True
    call, results = module_calls(entry, torch.compile(entry.module, dynamic=False))
    call()
    torch.compiler.set_stance(skip_guard_eval_unsafe=True)
    return call, results


def module_calls(entry: Entry, function: Callable[..., Any]) -> tuple[Call, Results]:
    """A function of a module's arguments, called with the example's."""

    # One decorated function: a `with` in the call would be set up anew each time.
    @torch.inference_mode()
    def call() -> Any:
        return entry.call(function)

    return call, lambda: [leaf.numpy() for leaf in leaves(call())]


FILES: dict[str, Callable[[Path], tuple[Call, Results]]] = {
    "ours": ours,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "litert": litert.calls,
}
MODULES: dict[str, Callable[[Path], tuple[Call, Results]]] = {"eager": eager, "inductor": inductor}
RUNTIMES = FILES | MODULES
"""For a model's folder the call of the model and the reader of its outputs: those of files and those of the module."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.peers", description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("--inductor", action="store_true", help="compile with Inductor, of a model that is prepared")
    options = parser.parse_args()
    folder = FOLDER / options.name
    if options.inductor:
        compile_by_inductor(built(options.name))
        (folder / INDUCTOR).write_text(torch.__version__ + "\n")
    else:
        prepare(options.name, folder)
    print(json.dumps({"name": options.name}))


if __name__ == "__main__":
    main()
