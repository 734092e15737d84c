"""A tape: a record of the operations that PyTorch code performs on tensors.

Tracing a module needs PyTorch's exporter, which takes more than a second just to load. The tape tells whether a module
was traced before: it lists every call of PyTorch's functions and every operator that these call, each with its
arguments and whether gradients are recorded. The code runs once, on the batch and on copies of parameters and buffers,
in a mode in which it believes that it is being exported; so equal tapes mean equal traces. Numbers of tensors are not
recorded, and expensive operators are replaced by zeros. Code that only the exporter can run (PyTorch's control flow),
or that depends on numbers, has no tape.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tilewright.frontend.torch.alone import tracing_alone
from tilewright.frontend.torch.unskip import unskip

aten = torch.ops.aten
LIFTED = aten.lift_fresh.default
"""The operator through which constants in the code pass unchanged."""
DEPENDENT = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
"""Tags of operators whose results' shapes, or values that the code sees, depend on the tensors' numbers."""
STATISTICS = {aten.native_batch_norm.default: (3, 4), aten.batch_norm_update_stats.default: (1, 2)}
"""Operators that change running statistics without declaring it, and the positions of these among their arguments."""
SIMPLE = (torch.dtype, torch.layout, torch.memory_format, torch.device, torch.Size, slice, type(Ellipsis), range)
"""Types of arguments that their text describes completely."""


class Untaped(Exception):
    """The code does something that a tape cannot record."""


class Tape:
    """A digest of the operations recorded so far, and labels of the tensors that occurred.

    labels  of known storages: those of the batch, of parameters and buffers, and of results
    copies  the storages that may be written: of buffers and of results
    fixed   digests of the numbers of all other storages that were read
    held    references that prevent the identities of storages from being reused
    """

    def __init__(self) -> None:
        self.digest = blake2b(digest_size=16)
        self.labels: dict[int, str] = {}
        self.copies: set[int] = set()
        self.fixed: dict[int, str] = {}
        self.held: list[StorageWeakRef] = []

    def write(self, *words: str) -> None:
        text = "\x1f".join(words)
        self.digest.update(f"{len(text)}:{text}".encode())

    def name(self, tensor: torch.Tensor, label: str, copied: bool = False) -> None:
        """Give a tensor's storage a label, if it has none, and record it; `copied` says that the tensor is a copy."""
        place = _place(tensor)
        if place not in self.labels:
            self.labels[place] = label
            self.held.append(StorageWeakRef(tensor.untyped_storage()))
        if copied:
            self.copies.add(place)
        self.write("named", label, self.operand(tensor))

    def operand(self, x: Any) -> str:
        """`x`, an operator's argument, as text; tensors by their labels. Raises Untaped for arguments that text does
        not describe completely."""
        if isinstance(x, torch.Tensor):
            return self.tensor(x)
        if x is None or isinstance(x, bool | int | str | complex):
            return f"{type(x).__name__} {x!r}"
        if isinstance(x, float):
            return f"float {x.hex()}"
        if isinstance(x, tuple | list):
            return f"[{', '.join(map(self.operand, x))}]"
        if isinstance(x, SIMPLE):
            return f"{type(x).__name__} {x}"
        raise Untaped(f"an argument that is {type(x).__name__}")

    def seen(self, x: Any) -> str:
        """`x`, an argument of a Python function, as text; of what cannot be described only its type, as the operators
        inside are recorded, too."""
        if isinstance(x, dict):
            return f"{{{', '.join(f'{name}: {self.seen(value)}' for name, value in x.items())}}}"
        if isinstance(x, tuple | list):
            return f"[{', '.join(map(self.seen, x))}]"
        try:
            return self.operand(x)
        except (Untaped, RuntimeError):  # tensors that stand for several have no memory of their own
            return type(x).__qualname__

    def tensor(self, x: torch.Tensor) -> str:
        """A tensor as text: the label of its storage, and its type, sizes, strides and flags."""
        place = _place(x)
        label = self.labels.get(place) or self.fixed.get(place)
        if label is None:
            self.held.append(StorageWeakRef(x.untyped_storage()))
            label = self.fixed[place] = _numbers(x)
        flags = f"{x.requires_grad} {x.is_conj()} {x.is_neg()} {type(x) is torch.Tensor}"
        return f"{label} {x.dtype} {tuple(x.shape)} {x.stride()} {x.storage_offset()} {flags}"


class _Operators(TorchDispatchMode):  # type: ignore[misc]
    """While the mode is active, records the ATen operators that run."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it is to load it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tape, kwargs = self.tape, kwargs or {}
        if not isinstance(func, torch._ops.OpOverload) or any(tag in func.tags for tag in DEPENDENT):
            raise Untaped(str(func))
        words = [*map(tape.operand, args), *(f"{name}={tape.operand(kwargs[name])}" for name in sorted(kwargs))]
        tape.write(str(func), f"{torch.is_grad_enabled()} {torch.is_inference_mode_enabled()}", *words)
        _check(func, args, kwargs, tape)
        short = SHORT.get(func)
        result = func(*args, **kwargs) if short is None else short(func, *args, **kwargs)
        if func is LIFTED and _place(args[0]) in tape.fixed:
            tape.copies.add(_place(args[0]))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and _place(x) not in tape.labels and _place(x) not in tape.fixed:
                tape.name(x, f"%{len(tape.labels)}", True)
        return result


class _Functions(TorchFunctionMode):  # type: ignore[misc]
    """While the mode is active, records the calls of PyTorch's Python functions, to distinguish functions that run the
    same operators."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        holder = getattr(getattr(func, "__self__", None), "__name__", "")
        called = str(func) if isinstance(func, torch._ops.OpOverload) else getattr(func, "__qualname__", "")
        self.tape.write("call", f"{holder}.{called}", *map(self.tape.seen, args), self.tape.seen(kwargs or {}))
        return func(*args, **(kwargs or {}))


def tape_of(
    function: Callable[..., Any], module: torch.nn.Module, batch: Sequence[torch.Tensor]
) -> tuple[str, Any] | None:
    """The digest of the operations of `function` on a batch, and its result; None if a tape cannot record it.

    The numbers of the batch, of the module's parameters, and of the buffers in its `state_dict()` do not count; all
    others that the function reads do. The module is left as it was, and so is PyTorch's generator.
    """
    tape = Tape()
    try:
        with _unchanged(module), torch.random.fork_rng(devices=[]), _exporting(), torch.set_grad_enabled(True):
            _name_state(tape, module)
            for k, x in enumerate(batch):
                tape.name(x, f"input {k}")
            tape.write("modes", str(torch.get_default_dtype()), str(torch.is_autocast_enabled("cpu")))
            with _Operators(tape), _Functions(tape):
                result = function(*batch)
            tape.write("found", tape.seen(result))
        return tape.digest.hexdigest(), result
    except Exception as error:  # the module's own code, which the exporter will run again and say what is wrong
        unskip(error)
        return None


def _name_state(tape: Tape, module: torch.nn.Module) -> None:
    """Replace parameters and buffers by copies, which share storages as the originals do, and label them by their names
    in `state_dict()`; other tensors that view their memory count as constants."""
    copies: dict[int, torch.Tensor] = {}
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(x: torch.Tensor) -> torch.Tensor:
        if id(x) not in copies:
            storage = storages.setdefault(_place(x), x.untyped_storage().clone())
            fresh = torch.empty(0, dtype=x.dtype).set_(storage, x.storage_offset(), x.shape, x.stride())
            is_trained = isinstance(x, torch.nn.Parameter)
            copies[id(x)] = torch.nn.Parameter(fresh, x.requires_grad) if is_trained else fresh
        return copies[id(x)]

    for part in module.modules():
        for name, x in [*part._parameters.items(), *part._buffers.items()]:
            if x is not None:
                setattr(part, name, copy(x))
    known = {id(x) for x in copies.values()}
    for name, x in module.state_dict(keep_vars=True).items():
        if id(x) in known:
            tape.name(x, f"state {name}", not isinstance(x, torch.nn.Parameter))
        else:
            tape.write("other", name)


def _check(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tape: Tape) -> None:
    """Raise Untaped if a call of the operator `func` uses a tensor on another device, or would modify a parameter or
    constant."""
    written = [args[k] for k in STATISTICS.get(func, ())]
    for k, argument in enumerate(func._schema.arguments):
        operand = args[k] if k < len(args) else kwargs.get(argument.name)
        if isinstance(operand, torch.device) and operand.type != "cpu":
            raise Untaped(f"a tensor on {operand}")
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(operand)
    for x in tree_leaves(written):
        if isinstance(x, torch.Tensor) and _place(x) not in tape.copies:
            raise Untaped("a parameter, a constant or the batch changes")


def _place(tensor: torch.Tensor) -> int:
    """A number that identifies a tensor's storage. Raises Untaped for tensors without one in CPU memory."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
        raise Untaped("a tensor that is not in memory as it is")
    result: int = tensor.untyped_storage()._cdata
    return result


def _numbers(tensor: torch.Tensor) -> str:
    """A digest of all numbers of a tensor's storage."""
    storage = tensor.untyped_storage()
    whole = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr()) if storage.nbytes() else b""
    return f"numbers {blake2b(whole, digest_size=16).hexdigest()}"


def _product(func: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Zeros with the shape of a matrix product, which is not computed while taping."""
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2] or a.dtype != b.dtype:
        result: torch.Tensor = func(a, b)  # which says what is wrong
        return result
    return a.new_zeros((*a.shape[:-1], b.shape[-1]))


def _sum(func: Any, c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **scales: Any) -> torch.Tensor:
    """The addend `c` in place of `c + a b`, whose product is not computed while taping."""
    return c + _product(aten.mm.default, a, b)


def _convolution(func: Any, x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> Any:
    """Zeros with the shape of a convolution, which is not computed while taping if it is an ordinary one."""
    _, stride, padding, dilation, transposed, _, groups = rest
    is_ordinary = x.is_contiguous() and weight.is_contiguous() and x.dtype == weight.dtype and not transposed
    if not is_ordinary or x.dim() != weight.dim() or x.shape[1] != weight.shape[1] * groups:
        return func(x, weight, *rest)
    windows = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    sizes = [(size + 2 * pad - by * (kernel - 1) - 1) // step + 1 for size, kernel, step, pad, by in windows]
    return x.new_zeros((x.shape[0], weight.shape[0], *sizes)) if min(sizes) > 0 else func(x, weight, *rest)


def _batch_norm(func: Any, x: torch.Tensor, *rest: Any) -> Any:
    """Zeros in place of a batch norm by the batch's statistics, which is not computed while taping."""
    if not rest[4] or not x.is_contiguous() or x.dtype is not torch.float32 or x.dim() < 2 or x.numel() < 2:
        return func(x, *rest)
    return torch.zeros_like(x), x.new_zeros(x.shape[1]), x.new_zeros(x.shape[1])


SHORT: dict[Any, Callable[..., Any]] = {
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.addmm.default: _sum,
    aten.convolution.default: _convolution,
    aten.native_batch_norm.default: _batch_norm,
}
"""Expensive operators, with cheap replacements whose results have the same shapes, types and memory order."""


@contextlib.contextmanager
def _exporting() -> Iterator[None]:
    """Within the context, code that asks whether it is being exported gets the answer yes."""
    with tracing_alone():  # the flags are the whole process's
        flags = torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag
        torch.compiler._is_compiling_flag = torch.compiler._is_exporting_flag = True
        try:
            yield
        finally:
            torch.compiler._is_compiling_flag, torch.compiler._is_exporting_flag = flags


@contextlib.contextmanager
def _unchanged(module: torch.nn.Module) -> Iterator[None]:
    """A context after which all attributes of a module's submodules are restored, as code may store tensors of a
    trace."""
    parts = [(vars(part), dict(vars(part))) for part in module.modules()]
    held = [(x, x.copy()) for _, before in parts for x in before.values() if isinstance(x, dict | list | set)]
    try:
        yield
    finally:
        for now, before in parts:
            now.clear()
            now.update(before)
        for x, copied in held:
            if isinstance(x, list):
                x[:] = copied
            else:
                x.clear()
                x.update(copied)
