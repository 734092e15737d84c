"""Parameters and buffers: by their names in `state_dict()`, each tensor once."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from tilewright.support.classes import dataclass


@dataclass(slots=True)
class Weights:
    """The parameters, buffers and constants of an exported program, by its placeholders.

    names      placeholder to the name of its parameter; tied ones share the first name in `state_dict()`
    tensors    the tensors by those names
    constants  placeholder to its tensor, for those that are not in `state_dict()`
    all        every name in `state_dict()`
    tokens     placeholders whose only purpose is to order runtime checks
    tied       later names of a tensor, each with the first
    """

    names: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    all: tuple[str, ...] = ()
    tokens: set[str] = field(default_factory=set)
    tied: tuple[tuple[str, str], ...] = ()


def read_weights(program: ExportedProgram, module: torch.nn.Module | None) -> Weights:
    """Classify a program's placeholders. `module`: the exported module, whose `state_dict()` names the weights."""
    state = dict(module.state_dict(keep_vars=True) if module is not None else program.state_dict)
    state = {name: t for name, t in state.items() if isinstance(t, torch.Tensor)}
    first: dict[Any, str] = {}
    leaders = {name: first.setdefault(_identity(tensor), name) for name, tensor in state.items()}
    tied = tuple((name, leader) for name, leader in leaders.items() if name != leader)
    result = Weights(all=tuple(state), tied=tied)
    for spec in program.graph_signature.input_specs:
        placeholder, target = spec.arg.name, spec.target
        if spec.kind is InputKind.TOKEN:
            result.tokens.add(placeholder)
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and target in state:
            name = first[_identity(state[target])]
            result.names[placeholder] = name
            result.tensors[name] = state[name]
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            held = program.constants.get(target, program.state_dict.get(target))
            if isinstance(held, torch.Tensor):
                result.constants[placeholder] = held
    return result


def _identity(tensor: torch.Tensor) -> Any:
    """A key that is equal for tensors which view the same memory in the same way."""
    if tensor.numel() == 0 or tensor.device.type == "meta":
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())
