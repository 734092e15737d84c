"""Digests of the code that a tree's compiler makes of one case after another: a process of `bytes.py`.

Orders come as lines of JSON, answers go the same way. The compiler is whichever `tilewright` is imported, of this
revision or an older one, so little of it is named here: `tilewright.compile`, what that calls `Model` and `Target`, and
`compile_llvm`, in whose place stands a function that keeps the text. Whatever is not there is an error, not silence.

A kernel's symbol is a digest of the compiler's own source too, and its parameters are called as the values of the
first of several equal layers are. Both are therefore numbered in order of appearance before text is digested.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tilewright

VERSION = 2
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


def _replace_everywhere(name: str, by: Callable[..., Any]) -> Callable[..., Any]:
    """Put `by` in the place of a function of the compiler in each module that has imported it; gives that function."""
    holders = [m for n, m in sorted(sys.modules.items()) if n.split(".")[0] == "tilewright" and hasattr(m, name)]
    found = {getattr(m, name) for m in holders}
    if len(found) != 1:
        raise SystemExit(f"{len(found)} functions of tilewright are called {name}; code_probe.py expects one")
    for module in holders:
        setattr(module, name, by)
    return found.pop()


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
    """What LLVM is told of a target beside the text."""
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


def digest(content: str | bytes) -> str:
    data = content.encode() if isinstance(content, str) else content
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def probe(keeper: TextKeeper, order: dict[str, Any]) -> dict[str, Any]:
    """The digests of one case for one target: the entry's, and each kernel's beside its label, in order of calls."""
    keeper.texts.clear()
    target = target_of(order["target"])
    settings = {name: order[name] for name in ("threads", "dims", "precision")}
    # What older revisions call it.
    settings["fast" if "fast" in inspect.signature(tilewright.compile).parameters else "winograd"] = order["fast"]
    program = tilewright.compile(order["path"], target=target, **settings)
    texts = {_symbol(text): canonical(text) for text in keeper.texts}
    steps = [*program.manifest.prepare_steps, *program.manifest.run_steps]
    labels = {step.kernel: step.label for step in steps}
    if not texts.keys() >= {*labels, "entry"}:  # more, where a program turned out too small for its threads
        raise SystemExit("LLVM was not told to compile all of the program's kernels and its entry")

    def code(text: str) -> str:
        return digest(keeper.original(text, target) if order["objects"] else text)

    kernels = [[label, code(texts[kernel])] for kernel, label in labels.items()]
    return {"machine": machine_text(target), "entry": code(texts["entry"]), "kernels": kernels}


def _symbol(text: str) -> str:
    """The kernel that a text defines, or "entry"."""
    if ENTRY in text:
        return "entry"
    found = re.search(r"^define [^@]*@(tw_[0-9a-f]{32})\(", text, re.MULTILINE)
    if found is None:
        raise SystemExit("LLVM was to compile a text that is neither a kernel nor an entry")
    return found.group(1)


def main(source: str) -> None:
    """Answers orders. `source` is the folder that the compiler must come from."""
    came = Path(tilewright.__file__).resolve().parent.parent
    if came != Path(source).resolve():
        raise SystemExit(f"tilewright comes from {came}, not from {source}")
    scope = tilewright.compile.__globals__
    for name in ("Model", "Target"):
        if name not in scope:
            raise SystemExit(f"tilewright.compile knows no {name}; code_probe.py expects one")
    keeper = TextKeeper()
    scope["Model"] = lambda program, **_: program
    if "compile_support" in scope:
        scope["compile_support"] = lambda: None  # takes a second, and nobody calls the programs
    for line in sys.stdin:
        try:
            answer = probe(keeper, json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
