"""`Program`: the result of the compiler, which the runtime loads and an artifact stores."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.native.link import Library
from tilewright.runtime import compilers
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.threads import pool
from tilewright.support.classes import dataclass
from tilewright.support.errors import ArtifactError
from tilewright.support.options import check_path

Text = str | Callable[[], str]


@dataclass(frozen=True, slots=True, repr=False)
class Program:
    """A compiled program.

    The objects together define `tw_run`, `tw_prepare`, `tw_shapes` and every kernel that the manifest names, each
    symbol once. They may call `tw_barrier` (of the runtime) and the C library's `libm`; nothing else is resolved.

        void tw_run(ptr slots, ptr dims, i64 tid, i64 nthreads, ptr barrier)       slots [inputs|outputs|packed|temps]
        void tw_prepare(ptr slots, ptr dims, i64 tid, i64 nthreads, ptr barrier)   slots [params|packed|temps]
        void tw_shapes(ptr dims, ptr out)   i64 out[]: bytes of each run temporary, then each output's dims, flattened

    With nthreads > 1 every thread calls `tw_run`, whose kernels each end with `tw_barrier(barrier, nthreads)`. The
    `dims` of `tw_prepare` are two numbers: the first of its steps to execute, and the step before which it stops.
    Packed slots that are aliases hold the raw parameter's address in both tables; `tw_prepare` leaves them alone.

    Args:
        objects: relocatable ELF images by a name for messages.
        weights: the raw parameters' values, by the names in `manifest.params`.
        texts: what `Model.show` prints ("graph", "loops", "schedule", "llvm", "asm"), each a string or a function
            that makes it when asked.
        private: no other code refers to the weights' arrays, so that a model may use them without a copy.
    """

    manifest: Manifest
    objects: Mapping[str, bytes]
    weights: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    texts: Mapping[str, Text] = field(default_factory=dict)
    private: bool = False

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        texts: Sequence[str] = ("graph",),
        version: int = 0,
        compressed: bool = False,
    ) -> None:
        """Write code and weights to a `.tw` file, atomically. The code may be for another machine than this one.

        Args:
            texts: those that the loaded model's `show` can print; generating some ("asm") takes a while.
            version: of the weights.
            compressed: losslessly, for models of `tw.compress`; this takes some seconds for each ten megabytes, and a
                process that loads the file cannot map its weights, but has a copy in memory.
        """
        from tilewright.runtime import artifact  # which reads and writes programs

        check_path(path, ArtifactError)
        retained = {name: text for name, text in self.texts.items() if name in texts}
        artifact.write(path, replace(self, texts=retained), version, compressed=compressed)

    def bundle(self, folder: str | os.PathLike[str], **options: Any) -> tuple[Path, ...]:
        """Write an object, a header, weights and an example, for use without Tilewright and Python; returns their
        paths. The options are those of `tilewright.bundle.bundle`."""
        write = importlib.import_module("tilewright.bundle").bundle  # of the compiler's house, which nothing here needs
        paths: tuple[Path, ...] = write(self, folder, **options)
        return paths

    def __repr__(self) -> str:
        target = self.manifest.target
        return f"<Program {self.manifest.name!r} for {target.triple.split('-')[0]} {target.cpu}>"


def link(program: Program) -> Library:
    """Link a program's code into memory: its entries and kernels. Raises CompileError if that fails."""
    manifest = program.manifest
    kernels = {s.kernel for s in (*manifest.run_steps, *manifest.prepare_steps) if s.region is None}
    exports = {"tw_run", "tw_prepare", "tw_shapes"} | kernels
    imports = compilers.imports(manifest.compilers, f"program {manifest.name!r}")
    return Library(program.objects, exports, {"tw_barrier": pool().barrier, **imports})
