"""Digests of the code that a tree's compiler makes of one case after another: a process of `bytes.py`.

Orders come as lines of JSON, answers go the same way. The compiler is whichever `tilewright` is imported, of this
revision or an older one, so little of it is named here: `tilewright.compile`, what that calls `Model` and `Target`,
`compile_llvm`, in whose place stands a function that keeps the text, and `compile_graph`, `run_passes` and `key`, by
which graphs are digested on the way. Whatever is not there is an error, not silence.

A kernel's symbol is a digest of the compiler's own source too, and its parameters are called as the values of the
first of several equal layers are. Both are therefore numbered in order of appearance before text is digested.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tilewright
from benchmarks import built_cases

VERSION = 3
"""Raise it when the same code gets other digests, so that those made earlier are not compared with."""
SYMBOL = re.compile(r"\btw_[0-9a-f]{32}\b")
LOCAL = re.compile(r'%(?:[A-Za-z_$][\w$.]*|"[^"]*")')
PARAMETER = re.compile(f"{LOCAL.pattern}(?=[,)])")
ENTRY = "define void @tw_run("
LATER_TARGETS = {"neoverse-v1": ("neoverse-n1", ("bf16", "i8mm"))}
"""Names that older trees do not know: an older one whose machine is alike, and the features beyond its."""

CompileLlvm = Callable[..., bytes]


class TextKeeper:
    """Stands in the place of `compile_llvm`: keeps texts, gives empty objects."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.original: CompileLlvm = _replace_everywhere("compile_llvm", self)

    def __call__(self, text: str, *_: Any, **__: Any) -> bytes:
        self.texts.append(text)
        return b""


class Stopped(BaseException):
    """Ends a compilation of which nothing more is asked; the next thing would be to load the program."""

    def __init__(self, program: Any) -> None:
        super().__init__()
        self.program = program


class GraphKeeper:
    """Stands around `compile_graph` and the passes over graphs: keeps digests of graphs as (label, digest).

    A graph after import counts by its key, the interface of its program, and the bytes of its weights; one after the
    passes by its key. `only`: a compilation ends after the passes over graphs. `first`: it ends with its first
    program."""

    def __init__(self) -> None:
        self.graphs: list[list[str]] = []
        self.only = self.first = False
        self.compile: Callable[..., Any] = _replace_everywhere("compile_graph", self.compile_graph)
        scope = vars(sys.modules[self.compile.__module__])
        self.passes: Callable[..., Any] = scope["run_passes"]
        self.key: Callable[[Any], str] = scope["key"]
        scope["run_passes"] = self.run_passes

    def begin(self, only: bool, first: bool) -> None:
        self.graphs.clear()
        self.only, self.first = only, first

    def compile_graph(self, graph: Any, weights: Any, *rest: Any, **settings: Any) -> Any:
        self.graphs.append(["graph after import", self.key(graph)])
        self.graphs.append(["weights after import", digest(b"".join(map(_array_digest, sorted(weights.items()))))])
        interfaces = [x for x in (*rest, *settings.values()) if type(x).__name__ == "Interface"]
        self.graphs.extend(["interface", digest(_fields(x))] for x in interfaces)
        program = self.compile(graph, weights, *rest, **settings)
        if self.first:
            raise Stopped(program)
        return program

    def run_passes(self, graph: Any, passes: Any, stage: Any, log: Any = None, what: str = "graph") -> Any:
        result = self.passes(graph, passes, stage, log, what)
        label = "graph" if what == "graph" or what.startswith("passes") else what
        self.graphs.append([f"{label} after passes", self.key(result)])
        if self.only and what == "run":
            raise Stopped(None)
        return result


def _array_digest(named: tuple[str, Any]) -> bytes:
    """Bytes that tell a weight from another: name, type, shape and contents."""
    import numpy as np

    name, value = named
    value = np.ascontiguousarray(value)
    return f"{name} {value.dtype} {value.shape} {digest(value.reshape(-1).view(np.uint8).data)}\n".encode()


def _fields(value: Any) -> str:
    """The fields of a dataclass that say something, so that a new one changes nothing where it is empty; sets in
    order."""
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return str({name: sorted(v) if isinstance(v, frozenset) else v for name, v in fields.items() if v})


def _replace_everywhere(name: str, by: Callable[..., Any]) -> Callable[..., Any]:
    """Put `by` in the place of a function of the compiler in each module that has imported it; gives that function."""
    holders = [m for n, m in sorted(sys.modules.items()) if n.split(".")[0] == "tilewright" and hasattr(m, name)]
    members = {getattr(m, name) for m in holders}
    if len(members) != 1:
        raise SystemExit(f"{len(members)} functions of tilewright are called {name}; code_probe.py expects one")
    for module in holders:
        setattr(module, name, by)
    return members.pop()


def target_of(name: str) -> Any:
    """The target by name. A tree that does not know it yet gets it."""
    kind = tilewright.compile.__globals__["Target"]
    known = getattr(sys.modules[kind.__module__], "_KNOWN", None)  # of trees before targets had families
    if known is not None and name not in known:
        older, more = LATER_TARGETS[name]
        triple, features = known[older]
        known[name] = (triple, (*features, *more))
    return kind.parse(name)


def machine_text(target: Any) -> str:
    """The description of a target that LLVM has beside the text."""
    return f"{target.triple} {target.cpu} {target.llvm_features}"


def canonical(text: str) -> str:
    """Text whose kernels and parameters are numbered as they appear; the entry's declarations, sorted by symbol, by
    number."""
    numbers: dict[str, str] = {}
    text = SYMBOL.sub(lambda m: numbers.setdefault(m.group(), f"tw_kernel{len(numbers)}"), text)
    heads = [line for line in text.split("\n") if line.startswith("define ")]
    names = dict.fromkeys(name for head in heads for name in PARAMETER.findall(head))
    places = {name: f"%parameter{k}" for k, name in enumerate(names)}
    lines = LOCAL.sub(lambda m: places.get(m.group(), m.group()), text).split("\n")
    declarations = sorted(line for line in lines if line.startswith("declare "))
    return "\n".join(declarations.pop(0) if line.startswith("declare ") else line for line in lines)


def digest(content: str | bytes | memoryview) -> str:
    data = content.encode() if isinstance(content, str) else content
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def probe(keeper: TextKeeper, graphs: GraphKeeper, order: dict[str, Any]) -> dict[str, Any]:
    """The digests of one case for one target: the entry's, each graph's, and each kernel's or text's beside its label,
    in order of calls. `order["graphs"]`: those of graphs and texts alone, no kernel is planned."""
    keeper.texts.clear()
    only, built = order["graphs"], order["model"].startswith(built_cases.PREFIX)
    graphs.begin(only, built)
    target = target_of(order["target"])
    row: dict[str, Any] = {"machine": machine_text(target), "entry": ""}
    program, texts = None, None
    try:
        if built:
            texts = built_cases.build(order["model"], order["target"])
        else:
            program = _compiled(order, target)
    except Stopped as stopped:
        program = stopped.program
    if texts is not None:
        return row | {"kernels": [[f"text {name}", digest(text)] for name, text in texts.items()]}
    if only:
        return row | {"kernels": [list(pair) for pair in graphs.graphs]}
    if program is None:
        raise SystemExit(f"{order['model']} has compiled no program and given no texts")
    codes = {_symbol(text): canonical(text) for text in keeper.texts}
    steps = [*program.manifest.prepare_steps, *program.manifest.run_steps]
    labels = {step.kernel: step.label for step in steps if step.kernel}
    if not codes.keys() >= {*labels, "entry"}:  # more, where a program turned out too small for its threads
        raise SystemExit("LLVM was not told to compile all of the program's kernels and its entry")

    def code(text: str) -> str:
        return digest(keeper.original(text, target) if order["objects"] else text)

    kernels = [[label, code(codes[kernel])] for kernel, label in labels.items()]
    return row | {"entry": code(codes["entry"]), "kernels": [*map(list, graphs.graphs), *kernels]}


def _compiled(order: dict[str, Any], target: Any) -> Any:
    """The program of a model of the suites."""
    settings = {name: order[name] for name in ("threads", "dims", "precision")}
    # What older revisions call it.
    settings["fast" if "fast" in inspect.signature(tilewright.compile).parameters else "winograd"] = order["fast"]
    return tilewright.compile(order["path"], target=target, **settings)


def _symbol(text: str) -> str:
    """The kernel that a text defines, or "entry"."""
    if ENTRY in text:
        return "entry"
    match = re.search(r"^define [^@]*@(tw_[0-9a-f]{32})\(", text, re.MULTILINE)
    if match is None:
        raise SystemExit("LLVM was to compile a text that is neither a kernel nor an entry")
    return match.group(1)


def main(source: str) -> None:
    """Answers orders. `source` is the folder that the compiler must come from."""
    came = Path(tilewright.__file__).resolve().parent.parent
    if came != Path(source).resolve():
        raise SystemExit(f"tilewright comes from {came}, not from {source}")
    scope = tilewright.compile.__globals__
    for name in ("Model", "Target"):
        if name not in scope:
            raise SystemExit(f"tilewright.compile knows no {name}; code_probe.py expects one")
    keeper, graphs = TextKeeper(), GraphKeeper()
    scope["Model"] = lambda program, **_: program
    if "compile_support" in scope:
        scope["compile_support"] = lambda: None  # takes a second, and the programs are not called
    for line in sys.stdin:
        try:
            answer = probe(keeper, graphs, json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
