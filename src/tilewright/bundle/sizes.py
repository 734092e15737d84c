"""Upper bounds of the results of a program's `tw_shapes`: bytes of its temporaries and dimensions of its outputs."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arith import simplify
from tilewright.arith.analyzer import Analyzer
from tilewright.ir.expr import Expr, Var, as_int, const
from tilewright.ir.parser import parse_expr
from tilewright.ir.rewrite import substitute
from tilewright.runtime.manifest import Manifest
from tilewright.support.errors import UnsupportedError


class Sizes:
    """The size expressions of a program, parsed from text with one a line, in the order of `tw_shapes`."""

    def __init__(self, manifest: Manifest, text: str | None) -> None:
        self.manifest = manifest
        self.text = text

    def bounds(self, most: Sequence[int]) -> list[int]:
        """The greatest value of each expression for symbols up to these bounds.

        Raises UnsupportedError if a bound cannot be found.
        """
        m = self.manifest
        stated = [t.nbytes for t in m.run_temps] + [
            d if isinstance(d, int) else None for o in m.outputs for d in o.shape
        ]
        if None not in stated:
            return [n for n in stated if n is not None]
        if self.text is None:
            hint = "bundle what tw.compile_program gives, or a file saved with texts=('sizes',)"
            raise UnsupportedError(
                "a file does not say how its sizes follow from its dimensions", where=m.name, hint=hint
            )
        symbols = [
            Var(f"s{k}", lo=s.lo, hi=hi, multiple=s.multiple)
            for k, (s, hi) in enumerate(zip(m.symbols, most, strict=True))
        ]
        expressions = [parse_expr(line, symbols) for line in self.text.splitlines()]
        if len(expressions) != len(stated):
            raise UnsupportedError("a text of sizes is another program's", where=m.name)
        return [self._most(e, symbols) for e in expressions]

    def _most(self, e: Expr, symbols: Sequence[Var]) -> int:
        # What sizes mostly are grows with each dimension; what is chosen by them is bounded by all of its cases.
        at_end = as_int(simplify(substitute(e, {s: const(s.hi) for s in symbols if s.hi is not None})))
        upper = Analyzer().bounds(e).hi
        if upper is None:
            raise UnsupportedError("a size has no bound that is known", where=self.manifest.name, got=str(e))
        return max(int(upper), at_end or 0)
