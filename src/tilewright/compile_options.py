"""The options of a compilation, one record for `tw.compile`, `compile_program` and what calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import Any, Literal

from tilewright.frontend.read import Dynamic
from tilewright.ir.dim import DimSizes
from tilewright.ir.selection import Precision
from tilewright.records.places import Records
from tilewright.runtime.compilers import TILEWRIGHT, find
from tilewright.runtime.threads import check_threads
from tilewright.support.classes import dataclass
from tilewright.support.errors import ModelError
from tilewright.support.options import check_choice, check_option, check_several
from tilewright.targets.target import Target
from tilewright.transform.graph.options import Options, Products


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The keyword arguments of `tw.compile`, whose docstring (parts/entry.py) explains them, and two more:

    products: "all" multiplies products of any values in `precision`, "weights" those with weights alone.
    memory: bounds the temporaries of a call by recomputing values: bytes, or a share of the unbounded size ("0.5x"), or
        "auto", the least that costs hardly any time. None: no bound.

    Raises ModelError for invalid values, CallError for an invalid number of threads.
    """

    threads: int = 1
    dims: DimSizes | None = None
    dynamic: Dynamic = "auto"
    target: Target | str | None = None
    precision: Precision = "fp32"
    fast: str = "auto"
    products: Products = "weights"
    name: str | None = None
    params: Any = None
    records: Records = "auto"
    require_records: bool = False
    state: Mapping[str, str] | Literal["auto"] | None = None
    cache: Literal["as is", "int8"] = "as is"
    ragged: tuple[str, str] | None = None
    memory: str | int | None = None
    compilers: Sequence[str] = ()
    flush_denormals: bool = False

    def __post_init__(self) -> None:
        check_option("target", self.target, (Target, str, NoneType), "a target or its name")
        check_option("name", self.name, (str, NoneType), "a string")
        check_option("require_records", self.require_records, bool, "True or False")
        check_choice("cache", self.cache, ("as is", "int8"))
        if self.cache != "as is" and self.state is None:
            raise ModelError("there are no caches to keep as codes", where="cache", hint='say which: state="auto"')
        check_several("compilers", self.compilers, "a list of names of compilers")
        for name in self.compilers:
            if name != TILEWRIGHT:
                find(name)
        check_option("flush_denormals", self.flush_denormals, bool, "True or False")

    @property
    def machine(self) -> Target:
        """The target to compile for, with the number of threads that was asked for."""
        machine = Target.parse(self.target) if isinstance(self.target, str) else self.target or Target.host()
        return replace(machine, threads=check_threads(self.threads))

    @property
    def passes(self) -> Options:
        """The options in the form in which compiler passes read them."""
        compilers = tuple(self.compilers)
        return Options(self.precision, self.fast, self.products, self.memory, compilers, self.flush_denormals)
