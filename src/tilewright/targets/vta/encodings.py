"""Files of field values and the instruction words that encode them, for tests of the encoder and the decoder.

For each kind of word ("mem", "gemm", "alu", "uop") an `.npz` of NumPy has `KIND_values`, int64[n, fields] in the order
of the fields, and `KIND_words`, uint8[n, 16] (of micro-operations uint8[n, 4]).
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from tilewright.support.errors import ParseError
from tilewright.targets.vta.isa import Opcode, fields, pack, uop_fields
from tilewright.targets.vta.isa import unpack as unpacked
from tilewright.targets.vta.streams import arrays

_LAYOUTS = {
    "mem": fields(Opcode.LOAD),
    "gemm": fields(Opcode.GEMM),
    "alu": fields(Opcode.ALU),
    "uop": uop_fields(),
}
_ARRAYS = {f"{kind}_{part}": (of, 2) for kind in _LAYOUTS for part, of in (("values", "i8"), ("words", "u1"))}


def has_encodings(path: str | Path) -> bool:
    """Whether a file is an archive of encodings, from the names of its members."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "mem_words.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError):
        return False  # another reader says what is wrong


def differences(path: str | Path) -> tuple[int, list[str]]:
    """The number of words, and descriptions of those that are encoded or decoded differently. Raises ParseError for a
    damaged file."""
    stored = arrays(Path(path), _ARRAYS)
    count, results = 0, list[str]()
    for kind, layout in _LAYOUTS.items():
        values, words = stored[f"{kind}_values"], stored[f"{kind}_words"]
        names = [name for name, _ in layout if name]
        size = 4 if kind == "uop" else 16
        for array, shape in ((values, (len(words), len(names))), (words, (len(words), size))):
            if array.shape != shape:
                raise ParseError("wrong shape", where=f"{path}: {kind}", expected=shape, got=array.shape)
        count += len(words)
        if not len(words):
            continue
        columns = {name: values[:, k] for k, name in enumerate(names)}
        decoded = np.stack([unpacked(words, layout)[name] for name in names], 1)
        for what, wrong in (
            ("encoded", (pack(columns, layout, size) != words).any(1)),
            ("decoded", (decoded != values).any(1)),
        ):
            if wrong.any():
                results.append(f"{kind}: {wrong.sum()} words are {what} otherwise, first number {np.argmax(wrong)}")
    return count, results
