"""External functions at run time: their stubs and addresses for native code, and their calls for the interpreter.

    kernel -> stub @f (an object of its own) -> the function's address

Code compiled for this process calls through stubs, since an address is valid in one process only; exported files call
the function by its name, and the program that links them defines it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.codegen.c_functions import functions_of
from tilewright.codegen.llvm.optimize import compile_llvm
from tilewright.codegen.raised import is_pending, keep, raise_pending
from tilewright.ir.loops import Intrinsic, Stmt
from tilewright.ir.rewrite import walk
from tilewright.native.link import Library, compile_text, host_triple
from tilewright.runtime.interop import array_at
from tilewright.schedule.external import External, externals_in, find_external, sizes_of
from tilewright.support.errors import CompileError
from tilewright.targets.target import Target

Array = np.ndarray[Any, Any]
Arrays = Sequence[Array]


def stubs(body: Stmt) -> dict[str, bytes]:
    """Objects that define, for this process, the external functions of a body that are not LLVM text."""
    objects: dict[str, bytes] = {}
    for s in walk(body):
        external = find_external(s.name) if isinstance(s, Intrinsic) else None
        if external is None or external.llvm is not None:
            continue
        assert isinstance(s, Intrinsic)
        arguments = ["ptr"] * (len(s.inputs) + len(s.outputs)) + ["i64"] * len(sizes_of(external, s))
        name = f"external {external.name}"
        if name not in objects:
            objects[name] = _stub(external.linked, arguments, _address(external, s))
    images = {f"C function {f.name}": f.image for f in functions_of(body)}
    return objects | {name: image for name, image in images.items() if image is not None}


def _stub(symbol: str, arguments: Sequence[str], address: int) -> bytes:
    """An object file that defines the function `symbol` of these argument types as a jump to `address`."""
    params = [f"{kind} %a{k}" for k, kind in enumerate(arguments)]
    text = f"""target triple = "{host_triple()}"
define void @{symbol}({", ".join(params)}) {{
  %f = inttoptr i64 {address} to ptr
  tail call void %f({", ".join(params)})
  ret void
}}
"""
    return compile_text(text, cache=False)


def _address(external: External, call: Intrinsic) -> int:
    """The address of a function in this process. Raises CompileError if there is no such function."""
    if external.address is not None:
        return external.address
    if external.python is not None:
        return _trampoline(external, call)
    try:
        result = ctypes.cast(getattr(ctypes.CDLL(None), external.symbol), ctypes.c_void_p).value
    except AttributeError:
        result = None
    if not result:
        hint = "te.extern takes a function of ctypes, an address= or its text as llvm="
        raise CompileError(
            "this process has no such function", where=f"external function {external.symbol!r}", hint=hint
        )
    return result


# Python functions

_trampolines: dict[tuple[Any, ...], tuple[int, object]] = {}


def _trampoline(external: External, call: Intrinsic) -> int:
    """The address of a C function that calls a Python function; it lives as long as the process."""
    kinds = tuple(r.buffer.dtype for r in (*call.inputs, *call.outputs))
    ranks = tuple(len(r.ranges) for r in (*call.inputs, *call.outputs))
    key = (external.name, kinds, ranks, len(call.inputs))
    if key not in _trampolines:

        def entry(*values: int) -> None:
            arrays: list[Array] = []
            at = len(kinds)
            for k, rank in enumerate(ranks):
                arrays.append(array_at(values[k] or 0, kinds[k].numpy, values[at : at + rank]))
                at += rank
            _run(external, arrays[: len(call.inputs)], arrays[len(call.inputs) :])

        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(kinds), *[ctypes.c_int64] * sum(ranks))
        function = kind(entry)
        _trampolines[key] = ctypes.cast(function, ctypes.c_void_p).value or 0, function
    return _trampolines[key][0]


def _run(external: External, inputs: Arrays, outputs: Arrays) -> None:
    """Call a Python function on copies, so that it may keep its arguments. If it raises, or a function has raised
    before during this call of native code, the outputs become zero, so that later uses as indices stay in bounds."""
    assert external.python is not None
    results = [np.zeros_like(a) for a in outputs]
    if not is_pending():
        try:
            arguments = [a.copy() for a in inputs]
            for a in arguments:
                a.flags.writeable = False
            external.python(*arguments, *results)
        except BaseException as error:  # the caller raises it again, once native code is left
            keep(error)
            results = [np.zeros_like(a) for a in outputs]
    for target, result in zip(outputs, results, strict=True):
        target[...] = result


# The interpreter


def reference(call: Intrinsic) -> Callable[..., None] | None:
    """The external function that an intrinsic statement calls, as a Python function of its outputs, then its inputs;
    None if it calls none."""
    external = find_external(call.name)
    if external is None:
        return None
    count = len(call.outputs)

    def run(*arrays: Array) -> None:
        outputs, inputs = arrays[:count], arrays[count:]
        if external.python is not None:
            _run(external, inputs, outputs)
            raise_pending()
            return
        function = _callable(external, call)
        sizes = _sizes(external, [*inputs, *outputs])
        function(*[a.ctypes.data for a in (*inputs, *outputs)], *sizes)

    return run


def _sizes(external: External, arrays: Arrays) -> list[int]:
    return [s if isinstance(s, int) else arrays[s[0]].shape[s[1]] for s in external.sizes]


_compiled: dict[str, Library] = {}


def _callable(external: External, call: Intrinsic) -> Callable[..., None]:
    """The C function `external`, compiled if it is LLVM text, as a function of ctypes."""
    if external.llvm is not None:
        if external.name not in _compiled:
            others = () if external.shared is None else (external.shared,)
            image = compile_llvm(external.llvm, Target.host(), others=others)
            _compiled[external.name] = Library({external.name: image}, [external.symbol])
        address = _compiled[external.name][external.symbol]
    else:
        address = _address(external, call)
    pointers = [ctypes.c_void_p] * (len(call.inputs) + len(call.outputs))
    kind = ctypes.CFUNCTYPE(None, *pointers, *[ctypes.c_int64] * len(external.sizes))
    return kind(address)


def texts(body: Stmt) -> tuple[str, ...]:
    """The LLVM texts of the external functions that `body` calls, and of functions that several of these use."""
    return (*own_texts(body), *shared_texts(body))


def own_texts(body: Stmt) -> tuple[str, ...]:
    """The LLVM texts of the external functions that `body` calls, without those of functions that several of these
    use."""
    all_texts = [*(x.llvm for x in externals_in(body)), *(f.llvm for f in functions_of(body))]
    return tuple(dict.fromkeys(text for text in all_texts if text is not None))


def shared_texts(body: Stmt) -> tuple[str, ...]:
    """The LLVM texts of functions that several of the external functions which `body` calls use."""
    return tuple(dict.fromkeys(x.shared for x in externals_in(body) if x.shared is not None))


def calls_python(body: Stmt) -> bool:
    """Whether a function's body calls Python functions."""
    return any(x.python is not None for x in externals_in(body)) or any(f.is_python for f in functions_of(body))
