"""The execution provider: the functions that ONNX Runtime calls once for each library, session or graph.

Every function here is called from C: every exception becomes a status with its message. Structs that are passed to ONNX
Runtime are kept until it releases them.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from tilewright import __version__
from tilewright.compile_options import CompileOptions
from tilewright.compiler import compile_program
from tilewright.ir.interface import Imported
from tilewright.native.assembler import PTR
from tilewright.ort import abi
from tilewright.ort.api import Api, set_word, status, word_at
from tilewright.ort.compute import Computed
from tilewright.ort.graph import read_graph
from tilewright.ort.groups import Group, group
from tilewright.ort.library import HOOKS, NODE_INFO, SUPPORT, TABLE
from tilewright.ort.options import Options, parse_options
from tilewright.runtime.layout import Memory
from tilewright.runtime.model import Model
from tilewright.runtime.native import native
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError, CompileError, Error

NAME, VENDOR = "TilewrightExecutionProvider", "Tilewright"


class Provider:
    """The execution provider of ONNX Runtime in this process, with its sessions and compiled nodes.

    Args:
        entries: the addresses of the library's functions, by name.
    """

    def __init__(self, entries: Mapping[str, int]) -> None:
        self.entries = entries
        self.api: Api | None = None
        self.base = 0
        self.lock = threading.Lock()
        self.sessions: dict[int, _Session] = {}
        self.nodes: dict[int, _Node] = {}
        self._texts = [ctypes.create_string_buffer(t.encode()) for t in (NAME, VENDOR, __version__)]
        self._hooks = [self._hook(name) for name in HOOKS]
        self._factory = self._struct(abi.FACTORY, _FACTORY)
        self._table = ctypes.CFUNCTYPE(ctypes.c_void_p)(entries["tw_ort_table"])()

        self._open()

    def _open(self) -> None:
        """Enable the library's calls to Python by filling in its table."""
        support = native().linked.addresses
        words = [
            *map(ctypes.addressof, self._texts),
            *(ctypes.cast(h, ctypes.c_void_p).value or 0 for h in self._hooks),
        ]
        words += [support[name] for name in SUPPORT]
        for k, word in enumerate(words):
            set_word(self._table + TABLE.name + 8 * k, word)

    def close(self) -> None:
        """Disable the library's calls to Python, as the interpreter ends."""
        for name in HOOKS:
            set_word(self._table + getattr(TABLE, name), 0)

    # -- called by ONNX Runtime ----------------------------------------------------------------------------------------

    def create_factories(self, _name: int, base: int, _logger: int, factories: int, most: int, count: int) -> None:
        self.base = base
        if most < 1:
            raise CallError("there is no room for a factory")
        self.api = Api(base)
        set_word(self._table + TABLE.api, self.api.address)
        set_word(factories, self._factory.address)
        set_word(count, 1)

    def supported_devices(self, factory: int, devices: int, number: int, out: int, most: int, count: int) -> None:
        api, filled = self._api(), 0
        for k in range(number):
            device = word_at(devices, k)
            if api.free("HardwareDevice_Type", device) == abi.CPU and filled < most:
                set_word(out + 8 * filled, api.handle("CreateEpDevice", factory, device, None, None))
                filled += 1
        set_word(count, filled)

    def create_ep(
        self, _factory: int, _devices: int, _pairs: int, _number: int, session: int, _log: int, out: int
    ) -> None:
        options = parse_options(_entries(self._api(), session))
        created = _Session(self._struct(abi.PROVIDER, _PROVIDER), options)
        with self.lock:
            self.sessions[created.struct.address] = created
        set_word(out, created.struct.address)

    def release_ep(self, _factory: int, ep: int) -> None:
        with self.lock:
            self.sessions.pop(ep, None)

    def capability(self, ep: int, graph: int, support: int) -> None:
        """Tell ONNX Runtime, through `support`, which nodes of `graph` Tilewright computes in the session of the
        provider `ep`: none of an invalid model, about which ONNX Runtime reports the error."""
        api, session = self._api(), self.sessions[ep]
        if api.handle("Graph_GetParentNode", graph):
            return  # the body of a loop or branch: taken with its node, or not at all
        read = read_graph(api, graph)
        try:
            result = group(read, session.build)
        except Error:
            return
        session.left = [f"{read.model.graph.node[k].op_type}: {e.headline()}" for k, e in sorted(result.left.items())]
        fusion = (ctypes.c_uint32 * (2 * abi.OPTIONS_WORDS))(abi.API_VERSION, 1)  # constants are the program's own
        for chosen in result.groups:
            handles = (ctypes.c_void_p * len(chosen.nodes))(*(read.nodes[k] for k in chosen.nodes))
            api.call("EpGraphSupportInfo_AddNodesToFuse", support, handles, len(chosen.nodes), fusion)
            session.groups[frozenset(api.number("Node_GetId", read.nodes[k]) for k in chosen.nodes)] = chosen

    def compile(self, ep: int, graphs: int, fused: int, count: int, infos: int, _contexts: int) -> None:
        session, created = self.sessions[ep], list[_Node]()
        for k in range(count):
            created.append(self._node(session, word_at(graphs, k), word_at(fused, k)))
        with self.lock:
            self.nodes.update((node.info.address, node) for node in created)
        for k, node in enumerate(created):
            set_word(infos + 8 * k, node.info.address)

    def release_nodes(self, _ep: int, infos: int, count: int) -> None:
        with self.lock:
            for k in range(count):
                self.nodes.pop(word_at(infos, k), None)

    def compute_slowly(self, info: int, context: int) -> None:
        self.nodes[info].computed.run(self._api(), context)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _api(self) -> Api:
        assert self.api is not None  # CreateEpFactories comes first
        return self.api

    def _node(self, session: _Session, graph: int, fused: int) -> _Node:
        """The struct of functions that computes the node `fused`, into which ONNX Runtime has fused the nodes of
        `graph`."""
        api = self._api()
        ids = frozenset(api.number("Node_GetId", node) for node in api.handles("Graph_GetNodes", graph))
        chosen = session.groups.pop(ids, None)
        if chosen is None:  # ONNX Runtime has changed the nodes since it was told
            (chosen,) = group(read_graph(api, graph), session.build).groups
        places = [
            {api.text("GetValueInfoName", v): k for k, v in enumerate(api.handles(name, fused)) if v}
            for name in ("Node_GetInputs", "Node_GetOutputs")
        ]
        for names, there in zip((chosen.inputs, chosen.outputs), places, strict=True):
            missing = [n for n in names if n not in there]
            if missing:
                raise CompileError("the fused node has no such value", expected=missing[0], got=", ".join(there))
        inputs, outputs = (
            [there[n] for n in names] for names, there in zip((chosen.inputs, chosen.outputs), places, strict=True)
        )
        if len(outputs) != len(places[1]):
            raise CompileError(
                "the fused node has other outputs", expected=str(chosen.outputs), got=str(list(places[1]))
            )
        return self._info(Computed(chosen, session.build, inputs, outputs))

    def _info(self, computed: Computed) -> _Node:
        info, model = self._struct(abi.NODE, _NODE), computed.group.model
        tables = [Memory(8 * len(numbers)) for numbers in (computed.inputs, computed.outputs)]
        for table, numbers in zip(tables, (computed.inputs, computed.outputs), strict=True):
            table.write(0, numbers)
        # Where data decides sizes, a call may have to be made again with more memory.
        info[NODE_INFO.model] = 0 if model.manifest.extents else model.descriptor
        info[NODE_INFO.inputs], info[NODE_INFO.outputs] = (t.address for t in tables)
        return _Node(info, tables, computed)

    def _struct(self, fields: tuple[str, ...], entries: Mapping[str, str]) -> Memory:
        """A struct of ONNX Runtime's interface with the fields `fields` in memory: its version, and the addresses of
        the functions `entries`."""
        memory = Memory(8 * abi.STRUCT_WORDS)
        memory[0] = abi.API_VERSION
        for k, name in enumerate(fields, 1):
            memory[8 * k] = self.entries[entries[name]]
        return memory

    def _hook(self, name: str) -> Any:
        """Method `name` as a C function that returns a status: null, or the error that it raised."""
        result, parameters = HOOKS[name]
        method: Callable[..., None] = getattr(self, name)

        def called(*arguments: int | None) -> int | None:
            try:
                method(*(a or 0 for a in arguments))
            except BaseException as error:  # nothing may pass through C
                return self._status(error)
            return None

        kinds = (ctypes.c_void_p,) * len(parameters)
        return ctypes.CFUNCTYPE(ctypes.c_void_p if result == PTR else None, *kinds)(called)

    def _status(self, error: BaseException) -> int | None:
        code = abi.INVALID_ARGUMENT if isinstance(error, CallError) else abi.EP_FAIL
        text = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
        return status(self.base, code, f"tilewright: {text}")


_FACTORY = {
    "GetName": "tw_ort_name",
    "GetVendor": "tw_ort_vendor",
    "GetSupportedDevices": "tw_ort_supported_devices",
    "CreateEp": "tw_ort_create_ep",
    "ReleaseEp": "tw_ort_release_ep",
    "GetVendorId": "tw_ort_no",
    "GetVersion": "tw_ort_version",
    "ValidateCompiledModelCompatibilityInfo": "tw_ort_compatible",
    "CreateAllocator": "tw_ort_allocator",
    "ReleaseAllocator": "tw_ort_nothing",
    "CreateDataTransfer": "tw_ort_transfer",
    "IsStreamAware": "tw_ort_no",
    "CreateSyncStreamForDevice": "tw_ort_stream",
}
_PROVIDER = {
    "GetName": "tw_ort_name",
    "GetCapability": "tw_ort_capability",
    "Compile": "tw_ort_compile",
    "ReleaseNodeComputeInfos": "tw_ort_release_nodes",
}
_NODE = {"CreateState": "tw_ort_state", "Compute": "tw_ort_compute", "ReleaseState": "tw_ort_nothing"}
_numbers = itertools.count()


@dataclass(slots=True)
class _Session:
    """One session's provider. `groups` are compiled and wait for `Compile`, by the numbers of their nodes; `left` says
    why nodes were not taken."""

    struct: Memory
    options: Options
    groups: dict[frozenset[int], Group] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    def build(self, imported: Imported, name: str) -> Model:
        """Compile the program of a group."""
        options = CompileOptions(threads=self.options.threads, precision=self.options.precision)
        program = compile_program(imported, None, options, name=name)
        return Model(program, threads=self.options.threads, keep_weights=False)


@dataclass(slots=True)
class _Node:
    """A struct of functions that computes a fused node, and the memory that it points to."""

    info: Memory
    tables: list[Memory]
    computed: Computed


def _entries(api: Api, session: int) -> dict[str, str]:
    """The settings of an ONNX Runtime session: texts by name."""
    pairs = api.handle("GetSessionOptionsConfigEntries", session)
    try:
        keys, values, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        api.free("GetKeyValuePairs", pairs, *(ctypes.byref(x) for x in (keys, values, count)))
        result = {}
        for k in range(count.value):
            key, value = (ctypes.string_at(word_at(a.value or 0, k)).decode() for a in (keys, values))
            result[key] = value
        return result
    finally:
        api.free("ReleaseKeyValuePairs", pairs)


__all__ = ["NAME", "Provider"]
