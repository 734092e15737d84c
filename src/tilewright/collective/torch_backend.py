"""The backend "tilewright" of `torch.distributed`: shared memory inside a machine, a group of PyTorch's between them.

    import torch.distributed as dist
    import tilewright.collective                     # registers it

    dist.init_process_group("tilewright", rank=rank, world_size=ranks, init_method=...)

In PyTorch 2.13 and 2.14, Python code can implement a process group but no backend, so that a group is registered. A
collective that is called with `async_op=False` runs in the calling thread; others run one after another in a separate
thread, as DDP's do during the backward pass.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future as PythonFuture
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.futures import Future

from tilewright.collective.group import Group, join
from tilewright.collective.reductions import OPERATIONS, Array
from tilewright.collective.spanning import Spanning, this_machine
from tilewright.support.errors import CollectiveError

NAME = "tilewright"
_C10D: Any = import_module("torch._C._distributed_c10d")  # names that its type stubs lack
# PyTorch's compiler imports this. Its functions hold the default group of that time: where there is one,
# `destroy_process_group` ends no thread of Gloo's, and such a thread can abort the process at its exit.
import_module("torch.distributed.nn.functional")
_DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "bool",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_OPERATIONS = {name.upper(): name for name in OPERATIONS if name != "prod"} | {"PRODUCT": "prod"}
_BY_OPERATION = {getattr(dist.ReduceOp, name): operation for name, operation in _OPERATIONS.items()}


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A group of `tilewright.collective` with the methods that `torch.distributed` calls. Tensors are on the CPU and of
    any strides; those that are not contiguous are copied in and out."""

    def __init__(self, group: Group | Spanning) -> None:
        super().__init__(group.rank, group.ranks)
        self.group = group
        self._collectives = ThreadPoolExecutor(1, thread_name_prefix="tilewright-collectives")
        self._messages: dict[tuple[str, int], ThreadPoolExecutor] = {}
        self._waiting: PythonFuture[None] | None = None
        self._name = ""
        self._small = group.all_reduce_at

    def getBackendName(self) -> str:
        return NAME

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    # -- collectives ---------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce `tensors` in place as PyTorch's `opts` say; returns the work. A small tensor that the caller waits for
        is reduced in its own memory, without NumPy."""
        if (
            type(tensors) is list
            and len(tensors) == 1
            and not getattr(opts, "asyncOp", True)
            and (self._waiting is None or self._waiting.done())
            and self._is_reduced(tensors[0], opts)
        ):
            return _Done(tensors)
        several = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        return self._run(opts, several, lambda: _each(partial(self._all_reduce, opts=opts), several))

    def _is_reduced(self, tensor: Any, opts: Any) -> bool:
        """Reduce `tensor` in place, as PyTorch's `opts` say, by a single native call, if that is possible. Returns
        whether it was."""
        if type(tensor) not in _TENSORS or not tensor.is_cpu or tensor.layout is not torch.strided:
            return False
        dtype, operation = _DTYPES.get(tensor.dtype), _BY_OPERATION.get(opts.reduceOp.op)
        if dtype is None or operation is None or not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
            return False
        return self._small(tensor.data_ptr(), tensor.numel(), dtype, operation)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        several = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        root = getattr(opts, "rootRank", 0)
        return self._run(
            opts, several, lambda: _each(partial(self._whole, call=partial(self.group.broadcast, root=root)), several)
        )

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        several = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)

        def body() -> None:
            for t in several:
                operation, scaled = _scaled(t, opts)
                array = _array(scaled).copy()
                self.group.reduce(array, opts.rootRank, operation, dtype=_name(t))
                if self.group.rank == opts.rootRank:
                    _write(t, array)

        return self._run(opts, several, body)

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        def body() -> None:
            for outs, one in zip(output_tensors, input_tensors, strict=True):
                self._gathered(one, outs)

        return self._run(opts, output_tensors, body)

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Any:
        """Gather each input of `input_list` from all ranks; `output_lists[rank][k]` gets that rank's input k."""

        def body() -> None:
            for k, one in enumerate(input_list):
                self._gathered(one, [outs[k] for outs in output_lists])

        return self._run(opts, output_lists, body)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        return self._run(opts, [output], lambda: self._gathered(input, _rows(output, self.group.ranks, input)))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        def body() -> None:
            for output, one in zip(outputs, inputs, strict=True):
                self._gathered(one, _rows(output, self.group.ranks, one))

        return self._run(opts, outputs, body)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        def body() -> None:
            for k, one in enumerate(input_tensors):
                result = self.group.gather(_array(one), opts.rootRank, dtype=_name(one))
                if result is not None:
                    for out, row in zip(output_tensors[k], result, strict=True):
                        _write(out, row)

        return self._run(opts, output_tensors or input_tensors, body)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        def body() -> None:
            for k, out in enumerate(output_tensors):
                rows = np.stack([_array(t) for t in input_tensors[k]]) if input_tensors else None
                self._whole(out, partial(self.group.scatter, parts=rows, root=opts.rootRank))

        return self._run(opts, output_tensors, body)

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        def body() -> None:
            for out, parts in zip(output_tensors, input_tensors, strict=True):
                self._reduce_scattered(out, torch.stack(list(parts)), opts)

        return self._run(opts, output_tensors, body)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        return self._run(opts, [output], lambda: self._reduce_scattered(output, input, opts))

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        def body() -> None:
            for output, one in zip(outputs, inputs, strict=True):
                self._reduce_scattered(output, one, opts)

        return self._run(opts, outputs, body)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, output_tensors: Sequence[Any], input_tensors: Any, opts: Any = None) -> Any:
        def body() -> None:
            outs = [np.empty(t.shape, _array(t).dtype) for t in output_tensors]
            self.group.all_to_all([_array(t) for t in input_tensors], outs, dtype=_name(output_tensors[0]))
            for tensor, out in zip(output_tensors, outs, strict=True):
                _write(tensor, out)

        return self._run(opts, output_tensors, body)

    def all_to_all_single(
        self, output: Any, input: Any, output_split: Sequence[int], input_split: Sequence[int], opts: Any = None
    ) -> Any:
        def parts(tensor: Any, split: Sequence[int]) -> list[Any]:
            sizes = list(split) or [tensor.shape[0] // self.group.ranks] * self.group.ranks
            if sum(sizes) != tensor.shape[0]:
                raise CollectiveError(
                    "the parts are not the tensor", where="all_to_all_single", expected=tensor.shape[0], got=sum(sizes)
                )
            return list(tensor.split(sizes))

        return self.alltoall(parts(output, output_split), parts(input, input_split), opts)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> Any:
        return self._run(opts, [], self.group.barrier)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that waits at most `timeout` (None: the group's timeout), and whose error names the ranks that did
        not come; `wait_all_ranks` has no effect."""
        before = self.group.timeout
        self.group.timeout = before if timeout is None else timeout.total_seconds()
        try:
            self.barrier().wait()
        finally:
            self.group.timeout = before

    # -- messages ------------------------------------------------------------------------------------------------------

    def send(self, tensors: Sequence[Any], to: int, tag: int = 0) -> Any:
        arrays = [_array(t) for t in tensors]
        return self._message("send", to, tensors, lambda: _each(partial(self.group.send, to=to, tag=tag), arrays))

    def recv(self, tensors: Sequence[Any], source: int, tag: int = 0) -> Any:
        def body() -> None:
            for t in tensors:
                self._whole(t, lambda array, dtype: self.group.receive(array, source, tag))

        return self._message("receive", source, tensors, body)

    def recv_anysource(self, tensors: Sequence[Any], tag: int = 0) -> Any:
        """Receive from the rank whose message arrives first. Messages of that rank with other tags stay queued."""
        others = [r for r in range(self.group.ranks) if r != self.group.rank]

        def body() -> None:
            source = self.group.first_message(others, tag)
            for t in tensors:
                self._whole(t, lambda array, dtype: self.group.receive(array, source, tag))
            sources.append(source)

        sources: list[int] = []
        return self._message("receive", -1, tensors, body, sources)

    def _message(self, kind: str, other: int, result: Any, body: Callable[[], Any], sources: Sequence[int] = ()) -> Any:
        pool = self._messages.get((kind, other))
        if pool is None:
            pool = self._messages[kind, other] = ThreadPoolExecutor(1, thread_name_prefix=f"tilewright-{kind}")
        return _Work(_later(pool, list(result), body), sources)

    # -- plumbing ------------------------------------------------------------------------------------------------------

    def _run(self, opts: Any, result: Any, body: Callable[[], Any]) -> Any:
        """Run the collective `body` now, or queue it if `opts` asks for that or others are pending; returns PyTorch's
        work object, whose result is `result`."""
        if not getattr(opts, "asyncOp", False) and (self._waiting is None or self._waiting.done()):
            body()
            return _Done(result)
        future = _later(self._collectives, result, body)
        self._waiting = future.python
        return _C10D._create_work_from_future(future)

    def _whole(self, tensor: Any, call: Callable[..., Any]) -> None:
        """Run `call(array, dtype=...)` on the memory of `tensor` or, if that is not contiguous, on a copy that is
        written back."""
        if tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj():
            call(_array(tensor), dtype=_name(tensor))
        else:
            array = _array(tensor).copy()
            call(array, dtype=_name(tensor))
            _write(tensor, array)

    def _all_reduce(self, tensor: Any, opts: Any) -> None:
        operation, scaled = _scaled(tensor, opts)
        if scaled is not tensor:
            tensor.copy_(scaled)
        self._whole(tensor, partial(self.group.all_reduce, operation=operation))

    def _gathered(self, one: Any, outs: Sequence[Any]) -> None:
        for out, row in zip(outs, self.group.all_gather(_array(one), dtype=_name(one)), strict=True):
            _write(out, row)

    def _reduce_scattered(self, out: Any, rows: Any, opts: Any) -> None:
        """Reduce `rows`, which has a part for each rank, over the ranks, and write this rank's part to `out`. `opts`
        are PyTorch's options, which name the reduction."""
        rows = rows.contiguous()
        _rows(rows, self.group.ranks, out)
        operation, scaled = _scaled(rows, opts)
        array = _array(scaled).reshape(self.group.ranks, -1)
        _write(out, self.group.reduce_scatter(array, operation=operation, dtype=_name(out)))

    # -- end -----------------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Leave the group, so that later operations of other ranks fail. Does not wait for operations that are
        pending."""
        for pool in (self._collectives, *self._messages.values()):
            pool.shutdown(wait=False)
        self.group.close()

    def abort(self) -> None:
        self.shutdown()


class _Future(Future):  # type: ignore[misc]
    """A future of PyTorch that completes when the Python future `python` does."""

    python: PythonFuture[None]


class _Work(dist._Work):  # type: ignore[misc]
    """PyTorch's work object for a message or an operation that is queued or in progress, whose end `future` reports."""

    def __init__(self, future: Any, sources: Sequence[int]) -> None:
        super().__init__()
        self._future = future
        self._sources = sources

    def wait(self, timeout: Any = None) -> bool:
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        return bool(self._future.done())

    def get_future(self) -> Any:
        return self._future

    def _source_rank(self) -> int:
        """The rank that sent the message of a `recv` from any rank; -1 for other operations, and before it arrives."""
        return self._sources[0] if self._sources else -1


class _Done(dist._Work):  # type: ignore[misc]
    """The work object of an operation that has completed."""

    def __init__(self, tensors: Any) -> None:
        super().__init__()
        self._tensors = tensors

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def result(self) -> Any:
        return self._tensors

    def get_future(self) -> Any:
        future: Any = Future()
        future.set_result(self._tensors)
        return future


def _later(pool: ThreadPoolExecutor, result: Any, body: Callable[[], Any]) -> Any:
    future = _Future()

    def work() -> None:
        try:
            body()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    future.python = pool.submit(work)
    return future


def _each(call: Callable[[Any], None], several: Sequence[Any]) -> None:
    for one in several:
        call(one)


def _scaled(tensor: Any, opts: Any) -> tuple[str, Any]:
    """(name of the reduction that PyTorch's options `opts` state, tensor to reduce); a sum if `opts` is None. For sums
    of tensors that are multiplied first, the tensor is multiplied here. Raises CollectiveError for other reductions."""
    reduce_op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    kind = getattr(reduce_op, "op", reduce_op)
    operation = _BY_OPERATION.get(kind)
    if operation is not None:
        return operation, tensor
    if kind == dist.ReduceOp.PREMUL_SUM:
        return "sum", tensor * reduce_op.__getstate__()[1]
    raise CollectiveError("this reduction is not supported", where=f"backend {NAME}", got=str(reduce_op))


def _name(tensor: Any) -> str:
    name = _DTYPES.get(tensor.dtype)
    if name is None:
        raise CollectiveError(
            "no such type", where=f"backend {NAME}", expected=sorted(_DTYPES.values()), got=str(tensor.dtype)
        )
    return name


def _array(tensor: Any) -> Array:
    """A tensor's elements as a C-contiguous array, a view if possible. bf16 becomes u16."""
    _name(tensor)
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        got = f"{tensor.layout} on {tensor.device}"
        raise CollectiveError("tensors must be dense and on the CPU", where=f"backend {NAME}", got=got)
    dense = tensor.detach().resolve_neg().resolve_conj().contiguous()
    array: Array = (dense.view(torch.int16) if dense.dtype == torch.bfloat16 else dense).numpy()
    return array.view(np.uint16) if dense.dtype == torch.bfloat16 else array


def _write(tensor: Any, array: Array) -> None:
    """Copy the elements of `array` into PyTorch's `tensor`. Raises CollectiveError if their numbers differ."""
    if tensor.numel() != array.size:
        raise CollectiveError(
            "tensors of ranks have other sizes", where=f"backend {NAME}", expected=tuple(tensor.shape), got=array.shape
        )
    source = np.ascontiguousarray(array)
    dense = (
        torch.from_numpy(source.view(np.int16)).view(torch.bfloat16)
        if tensor.dtype == torch.bfloat16
        else torch.from_numpy(source)
    )
    with torch.no_grad():
        tensor.detach().copy_(dense.reshape(tensor.shape))


def _rows(output: Any, ranks: int, one: Any) -> list[Any]:
    """The parts of `output`, one for each rank, with the shape of `one`. Raises CollectiveError if it has another size
    or is not contiguous."""
    if output.numel() != ranks * one.numel() or not output.is_contiguous():
        raise CollectiveError(
            "the tensor for all ranks must be contiguous and as large as theirs together",
            where=f"backend {NAME}",
            expected=ranks * one.numel(),
            got=output.numel(),
        )
    return [part.view(one.shape) for part in output.view(ranks, -1)]


def create(store: Any, rank: int, ranks: int, timeout: timedelta) -> ProcessGroup:
    """Create the process group of rank `rank` of `ranks`; PyTorch calls this function for each new group. Ranks tell
    each other through PyTorch's `store` on which machine they are, and the first rank of a machine chooses the name of
    its shared memory. A rank waits at most `timeout` for others."""
    store.set(f"tilewright/machine/{rank}", this_machine())
    machines = [store.get(f"tilewright/machine/{r}").decode() for r in range(ranks)]
    members = [[r for r in range(ranks) if machines[r] == one] for one in dict.fromkeys(machines)]
    own = next(some for some in members if rank in some)
    key, seconds = f"tilewright/name/{own[0]}", timeout.total_seconds()
    if rank == own[0]:
        store.set(key, secrets.token_hex(16))
    node = join(f"torch-{store.get(key).decode()}", own.index(rank), len(own), timeout=seconds)
    if len(members) == 1:
        return ProcessGroup(node)
    return ProcessGroup(Spanning(node, members, rank, ranks, store, seconds))


_registering = threading.Lock()


def register() -> None:
    """Register the backend with `torch.distributed`; repeated calls have no effect."""
    with _registering:
        if NAME not in dist.Backend.backend_list:
            dist.Backend.register_backend(NAME, create, devices=["cpu"])
