"""The changes to a model's weights, as data: a `Recipe`, also from a TOML file.

[prune]
share = 0.9          # of a weight's elements that become zero
by = "movement"      # magnitude if absent: what is pruned, the smallest, or what training moves towards 0
block = [1, 4]       # elements that are pruned together; [1, 1] if absent
stages = 4           # the share grows in so many steps, with training after each
sparse = true        # products leave the zeros out, where that is faster

[low_rank]
energy = 0.99        # of the squared singular values that are kept
convolutions = "cp"  # tucker if absent; none: those of matrices alone

[share]
values = 16          # distinct values of a weight, beside 0

[train]
epochs = 10          # over the samples, after each stage: the outputs follow those of the original
rate = 1e-3
temperature = 2.0    # outputs are logits: their softened probabilities are followed
labels = 0.5         # the share of the loss that is the cross entropy with given labels
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from tilewright.compression.factors import Method
from tilewright.support.classes import dataclass
from tilewright.support.errors import CallError, Problems

MAX_VALUES = 65_536


@dataclass(frozen=True, slots=True)
class Recipe:
    """The steps of a compression, in the order in which they are taken.

    energy   low rank: the share of the squared singular values that is kept, of products and convolutions whose factors
             are smaller than the weight; None: no factors
    convolutions  the decomposition of convolutions' weights
    prune    the share of each weight's elements that become zero
    by       what is pruned: elements of the least magnitude, or those that training moves towards zero
    block    (rows, columns) of a weight that are pruned together, by the sum of their magnitudes
    stages   in how many steps that share is reached
    sparse   products leave out the pruned elements, if that is faster on this machine; the pattern is in the file then
    values   how many distinct values each weight has at the end, beside 0; None: any
    epochs   of training after each step, over the samples; 0: none
    rate     of that training's optimiser (Adam)
    temperature  outputs are logits, and the original's probabilities are followed, both softened by it; None: the
             outputs themselves are followed
    labels   the share of the loss that is the cross entropy of the first output with labels
    """

    energy: float | None = None
    convolutions: Method = "tucker"
    prune: float = 0.0
    by: Literal["magnitude", "movement"] = "magnitude"
    block: tuple[int, int] = (1, 1)
    stages: int = 1
    sparse: bool = False
    values: int | None = None
    epochs: int = 0
    rate: float = 1e-3
    temperature: float | None = None
    labels: float = 0.0

    def __post_init__(self) -> None:
        problems = Problems()

        def check(holds: bool, name: str, expected: str) -> None:
            if not holds:
                problems.add(CallError("is no such number", where=name, expected=expected, got=getattr(self, name)))

        check(self.energy is None or _between(self.energy, 0, 1), "energy", "from 0 to 1, or none")
        check(_between(self.prune, 0, 1) and self.prune < 1, "prune", "from 0, less than 1")
        check(len(self.block) == 2 and all(_whole(b, 1, 4096) for b in self.block), "block", "two whole numbers")
        check(_whole(self.stages, 1, 1000), "stages", "a whole number from 1 to 1000")
        check(isinstance(self.sparse, bool), "sparse", "true or false")
        check(self.values is None or _whole(self.values, 2, MAX_VALUES), "values", f"from 2 to {MAX_VALUES}, or none")
        check(_whole(self.epochs, 0, 1_000_000), "epochs", "a whole number, 0 or more")
        check(_between(self.rate, 0, 100), "rate", "from 0 to 100")
        check(self.convolutions in get_args(Method), "convolutions", " ".join(get_args(Method)))
        check(self.by in ("magnitude", "movement"), "by", "magnitude or movement")
        warm = self.stages >= 2 and self.epochs >= 1
        check(self.by != "movement" or warm, "by", "two stages or more with training, for what moves is seen there")
        hot = self.temperature is None or (_between(self.temperature, 0, 1000) and self.temperature > 0)
        check(hot, "temperature", "a number above 0, or none")
        check(_between(self.labels, 0, 1), "labels", "from 0 to 1")
        problems.raise_if_any("the recipe does not hold together")

    @property
    def moves(self) -> bool:
        """Whether pruning follows how weights move in training."""
        return self.by == "movement" and self.prune > 0

    def __str__(self) -> str:
        parts = [] if self.energy is None else [f"low rank with {self.energy:g} of the energy"]
        by = " by movement" if self.moves else ""
        parts += [f"{self.prune:.0%} pruned{by} in blocks of {self.block[0]}x{self.block[1]}"] if self.prune else []
        parts += [] if self.values is None else [f"{self.values} values a weight"]
        parts += [f"{self.epochs} epochs of training"] if self.epochs else []
        return ", ".join(parts) or "nothing"


_TABLES: dict[str, dict[str, str]] = {
    "low_rank": {"energy": "energy", "convolutions": "convolutions"},
    "prune": {"share": "prune", "by": "by", "block": "block", "stages": "stages", "sparse": "sparse"},
    "share": {"values": "values"},
    "train": {"epochs": "epochs", "rate": "rate", "temperature": "temperature", "labels": "labels"},
}
"""The fields of a recipe, for each table and key of a file."""


def read(source: Recipe | Mapping[str, Any] | str | Path) -> Recipe:
    """A recipe as it is, or read from tables or from the path of a TOML file.

    Raises CallError naming each unknown table or key, and each invalid value.
    """
    if isinstance(source, Recipe):
        return source
    where = "recipe" if isinstance(source, Mapping) else str(source)
    if not isinstance(source, Mapping):
        try:
            source = tomllib.loads(Path(source).read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise CallError(f"is no TOML file: {error}", where=where) from None
    problems = Problems()
    fields: dict[str, Any] = {}
    for table, keys in source.items():
        if table not in _TABLES:
            places = [f"{key} is a key of [{t}]" for t, known in _TABLES.items() for key in known if key == table]
            expected = " ".join(f"[{t}]" for t in _TABLES)
            problem = CallError(
                "no such table", where=where, expected=expected, got=table, hint="; ".join(places) or None
            )
            problems.add(problem)
            continue
        if not isinstance(keys, Mapping):
            expected = f"[{table}] with {' '.join(_TABLES[table])}"
            problems.add(CallError(f"{table} is a table", where=where, expected=expected, got=f"{table} = {keys!r}"))
            continue
        for key, value in keys.items():
            if key not in _TABLES[table]:
                expected = " ".join(_TABLES[table])
                problems.add(CallError(f"no such key in [{table}]", where=where, expected=expected, got=key))
            else:
                fields[_TABLES[table][key]] = tuple(value) if isinstance(value, list) else value
    problems.raise_if_any("the recipe does not hold together")
    return Recipe(**fields)


def _between(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
