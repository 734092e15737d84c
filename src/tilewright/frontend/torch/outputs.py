"""Names of a program's outputs, derived from the containers that `forward` returns."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from tilewright.frontend.torch.example import key_text
from tilewright.frontend.torch.trees import leaves_with_paths


def output_names(program: ExportedProgram, count: int) -> list[str]:
    """One name for each of the `count` flattened outputs.

    Keys of dicts and fields of named tuples and dataclasses name them, nested ones joined by "_"; positions in tuples
    count only inside something named. Any other output is called "output" with its position.
    """
    ordinary = [f"output{k}" for k in range(count)]
    paths = _paths(program, count)
    if paths is None:
        return ordinary
    names = []
    for k, path in enumerate(paths):
        named = next((i for i, step in enumerate(path) if not isinstance(step, pytree.SequenceKey)), None)
        names.append(ordinary[k] if named is None else "_".join(map(key_text, path[named:])))
    times = Counter(names)
    return [name if times[name] == 1 and name else f"{ordinary[k]}_{name}" for k, name in enumerate(names)]


def _paths(program: ExportedProgram, count: int) -> list[Any] | None:
    signature = program.module_call_graph[0].signature if program.module_call_graph else None
    if signature is None or signature.out_spec is None:
        return None
    nested = pytree.tree_unflatten(list(range(count)), signature.out_spec)
    return [path for path, _ in leaves_with_paths(nested)]
