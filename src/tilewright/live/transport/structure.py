"""A program without weights as it is sent: a `.tw` file with code and constants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.live.transport.wire import HostileError, digest
from tilewright.runtime import artifact, image
from tilewright.runtime.interop import Array
from tilewright.runtime.program import Program
from tilewright.runtime.specs import ParamSpec
from tilewright.runtime.target import check_target
from tilewright.support.classes import dataclass


@dataclass(frozen=True, slots=True)
class Structure:
    """A program whose weights come separately.

    Args:
        program: its `weights` only contain the model's constants.
        id: the digest of the file, 32 bytes: equal programs for equal machines have equal ones.
        params: the weights that it requires.
        layout: their positions in an image.
    """

    program: Program
    id: bytes
    params: tuple[ParamSpec, ...]
    layout: image.Layout

    def weights(self, memory: memoryview, where: str) -> dict[str, Array]:
        """Views of the weights in `memory`, an image of exactly this structure's layout. Raises HostileError, about
        `where`, for another layout."""
        head = self.layout.head
        if len(memory) != self.layout.nbytes or memory[: len(head)] != head:
            raise HostileError("the weights are not those that the program wants", where=where)
        return image.unpack(self.params, memory)

    def with_weights(self, weights: Mapping[str, Any]) -> Program:
        """The program of this structure with `weights`, by name, beside its own constants."""
        return Program(self.program.manifest, self.program.objects, {**self.program.weights, **weights})


def encode(program: Program) -> tuple[Structure, bytes]:
    """`program` without its weights as nodes get it: (its structure, the bytes of its file)."""
    constants = {p.name: program.weights[p.name] for p in program.manifest.params if p.fixed}
    bare = Program(program.manifest, program.objects, constants)
    data = b"".join(bytes(part) for part in artifact.encode(bare, 0, code_only=True))
    return _structure(bare, data), data


def decode(data: memoryview, where: str) -> Structure:
    """The structure in a file's bytes, which must not change later.

    Raises ArtifactError if they are invalid, or if this machine cannot run the code.
    """
    program, _ = artifact.decode(data, where, code_only=True)
    check_target(program.manifest.target, f"program {program.manifest.name!r} from {where}")
    return _structure(program, data)


def _structure(program: Program, data: bytes | memoryview) -> Structure:
    params = tuple(p for p in program.manifest.params if not p.fixed)
    return Structure(program, digest(data), params, image.layout(params))
