"""Samples of a model's inputs from a file, for commands that calibrate or follow a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.inputs import read_arrays
from tilewright.cli.models import Named

if TYPE_CHECKING:
    from tilewright.ir.dim import Dim
    from tilewright.ir.interface import Imported

DataOption = Annotated[
    Path,
    typer.Option(
        "--data",
        metavar="FILE",
        help="Calibration samples: an .npz with one array for each input, or an .npy for a model with one input. The "
        "first dimension counts samples.",
    ),
]


def with_samples(model: Named, data: Path, dims: Mapping[str, int | Dim]) -> tuple[Imported, Iterator[dict[str, Any]]]:
    """Import a model, and divide the samples of a file into calls. Raises CallError if they do not fit."""
    from tilewright.frontend.read import import_model
    from tilewright.ops.rooms import is_room
    from tilewright.quantization.samples import rows_of

    arrays = read_arrays(data)
    imported = import_model(model.model, dict(dims), model.example)
    names = imported.interface.inputs or tuple(v.name for v in imported.graph.inputs if not is_room(v))
    arguments = arrays if isinstance(arrays, dict) else {names[0]: arrays}
    return imported, rows_of(arguments, imported.graph, names)
