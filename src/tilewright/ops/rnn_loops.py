"""The loops of a recurrent layer: all gates of some rows and some elements of the state in one register tile.

    for block of rows:                                    threads
        for step:
            for panel of the state's elements, for tile of rows:
                acc[r, gate, lane] = gates_x              registers
                for k: acc[r, gate, lane] += weights[panel, k, gate, lane] * h[now, r, k]
                h[1 - now, r, panel's] = the cell's functions of acc

The state stands twice, as every panel reads all of the old one. A GRU whose reset gate scales the state before the
product needs all of that gate first: its panels are walked twice. Rows past the last one are the last one again: they
write what it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import field

from tilewright.ir.expr import Buffer, Expr, as_int, ceildiv, const, minimum, select
from tilewright.ir.loops import PrimFunc
from tilewright.ops.dims import scalar
from tilewright.ops.loopnest import Nest
from tilewright.ops.steps import Product, Program, of_expressions, run
from tilewright.support.classes import dataclass

Weight = Callable[[Expr, Expr, int, Expr], Expr]
"""A function that reads the recurrent weight of (panel, k, gate, lane)."""

Source = Callable[[Expr, Expr], Expr]
"""A function (row of the block, k) that reads element k of the vector that multiplies the weights in a row."""


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of the state that is computed at once. It has `rows` rows by `width` elements; `tiles` such parts read a
    panel of the weights one after the other; the body of the loop over the elements of the old state (k) is repeated
    `steps` times."""

    rows: int
    width: int
    tiles: int
    steps: int


@dataclass(frozen=True, slots=True)
class Operands:
    """The buffers of inputs, as in `ops/rnn.py: _infer`, and outputs. `vectors`: peepholes or deferred biases, the same
    for all rows; `stored`: values for the backward pass, if requested; `scale` [gates * H]: factors of products with
    quantised weights."""

    x: Buffer
    h0: Buffer
    c0: Buffer | None
    lengths: Buffer | None
    vectors: Buffer | None
    results: Sequence[Buffer]
    stored: Buffer | None = None
    scale: Buffer | None = None


@dataclass(frozen=True, slots=True)
class _State:
    """The buffers of the states of a block of rows. `h`: the state twice, old and new; `c`: the second state of a cell
    that has one; `carried`: by their numbers, the buffers of values that a step's later products or steps read."""

    h: Buffer
    c: Buffer
    carried: Mapping[int, Buffer]


@dataclass(frozen=True, slots=True)
class _Step:
    """One time step for a block of rows. `first`: the number of the block's first row; `time`: the position in the
    sequence; `now`: which of the two buffers of h is read, 0 or 1, the other one being written; `state`: the
    buffers."""

    first: Expr
    time: Expr
    now: Expr
    state: _State


@dataclass(frozen=True, slots=True)
class RecurrentLoops:
    """Builds the loop program of a recurrence. `program`: the steps of the cell; `reverse`: whether the sequence is
    read from its end; `operands`: the buffers; `weight`: reads elements of the recurrent weights; `hidden`: the size of
    the state; `gates`: the number of gates; `tile`: the part of the state that is computed at once; `nest`: the
    statements so far."""

    program: Program
    reverse: bool
    operands: Operands
    weight: Weight
    hidden: Expr
    gates: int
    tile: Tile
    nest: Nest = field(repr=False)

    def build(self) -> PrimFunc:
        nest, t, o, (time, batch, _) = self.nest, self.operands.x.dtype, self.operands, self.operands.x.shape
        rows = self.tile.rows * self.tile.tiles
        padded = self.panels * self.tile.width
        with ExitStack() as scopes:
            block = scopes.enter_context(nest.loop("block", ceildiv(batch, rows), parallel=True))
            h = scopes.enter_context(nest.allocate("h", t, (2, rows, padded)))
            c = scopes.enter_context(nest.allocate("c", t, (rows, padded) if self.has_cell else (1, 1)))
            carried = {
                number: scopes.enter_context(nest.allocate("carried" if k else "scaled", t, (rows, padded)))
                for k, number in enumerate(self.carried)
            }
            first = block * rows
            with nest.loop("r", self.tiles(first) * self.tile.rows) as r, nest.loop("j", self.hidden) as j:
                nest.store(h, (0, r, j), o.h0[self.row(first + r), j])
                if self.has_cell:
                    nest.store(c, (r, j), scalar(0, t) if o.c0 is None else o.c0[self.row(first + r), j])
            with nest.loop("s", time) as s, nest.let("now", s % 2) as now:
                self.step(_Step(first, time - 1 - s if self.reverse else s, now, _State(h, c, carried)))
            with nest.loop("r", self.tiles(first) * self.tile.rows) as r, nest.loop("j", self.hidden) as j:
                nest.store(o.results[1], (self.row(first + r), j), h[time % 2, r, j])
                if self.has_cell:
                    nest.store(o.results[2], (self.row(first + r), j), c[r, j])
        return nest.finish()

    @property
    def has_cell(self) -> bool:
        """Whether the cell has a second state, c, besides h."""
        return len(self.program.results) == 2

    @property
    def later(self) -> list[Product]:
        """The products of a step that multiply a value which the step itself computes, so that they wait for all
        panels."""
        return [p for p in self.program.products if p.state != self.program.shares]

    @property
    def carried(self) -> tuple[int, ...]:
        """The numbers of the values that later products multiply, and of other values that steps after these products
        read."""
        later, count = self.later, self.program.arguments
        if not later:
            return ()
        steps = [operands for k, (_, operands, _) in enumerate(self.program.steps, count) if k >= later[0].number]
        read = {v for operands in steps for v in operands if count <= v < later[0].number}
        return (later[0].state, *sorted(read - {later[0].state}))

    @property
    def panels(self) -> Expr:
        return ceildiv(self.hidden, self.tile.width)

    @property
    def whole(self) -> bool:
        """Whether the last panel is full, so that no lane needs a check."""
        return (as_int(self.hidden) or 1) % self.tile.width == 0

    def row(self, row: Expr) -> Expr:
        """The number of a row of the batch to be read: `row`, or that of the last row if `row` is past the end."""
        batch, rows = self.operands.x.shape[1], self.tile.rows * self.tile.tiles
        return row if (as_int(batch) or 1) % rows == 0 else minimum(row, batch - 1)

    def tiles(self, first: Expr) -> Expr:
        """The number of tiles of the block that begins with row `first`; the last block may have fewer than the
        others."""
        needed = ceildiv(self.operands.x.shape[1] - first, self.tile.rows)
        return minimum(needed, self.tile.tiles) if self.tile.tiles > 1 else const(1)

    def element(self, panel: Expr, lane: Expr) -> Expr:
        return panel * self.tile.width + lane

    def inside(self, value: Callable[[Expr], Expr], panel: Expr, lane: Expr) -> Expr:
        """`value(k)`, where k is the element of the state at lane `lane` of panel `panel`; zero past the last
        element."""
        at = self.element(panel, lane)
        return value(at) if self.whole else select(at < self.hidden, value(at), scalar(0, self.operands.x.dtype))

    # --- a step -----------------------------------------------------------------------------------------------------

    def step(self, at: _Step) -> None:
        """Emit one time step: the products of h and the cell's arithmetic, then the later products."""
        later, state = self.later, at.state
        products = sorted((p for p in self.program.products if p not in later), key=lambda p: p.gate)
        self.products(products, lambda r, k: state.h[at.now, r, k], at)
        if later:
            carried = state.carried[later[0].state]
            self.products(later, lambda r, k: carried[r, k], at)

    def products(self, products: Sequence[Product], source: Source, at: _Step) -> None:
        """Emit the computation of some products for all panels, tile by tile; `source` reads the vector that multiplies
        the weights."""
        nest, o, (rows, width) = self.nest, self.operands, (self.tile.rows, self.tile.width)
        shape = (rows, len(products), width)
        with (
            nest.loop("p", self.panels) as p,
            nest.loop("t", self.tiles(at.first)) as tile,
            nest.allocate("sums", o.x.dtype, shape) as sums,
        ):
            with nest.allocate("acc", o.x.dtype, shape) as acc:
                with nest.loop("r", rows, kind="unrolled") as r:
                    for n, product in enumerate(products):
                        with nest.loop("lane", width, kind="vectorized") as lane:
                            row = self.row(at.first + tile * rows + r)
                            start = self.addend(product, at.time, row, p, lane)
                            nest.store(acc, (r, n, lane), start if o.scale is None else scalar(0, o.x.dtype))
                with nest.loop("k", self.hidden, copies=self.tile.steps) as k:
                    with nest.loop("r", rows, kind="unrolled") as r:
                        for n, product in enumerate(products):
                            with nest.loop("lane", width, kind="vectorized") as lane:
                                value = self.weight(p, k, product.gate, lane) * source(tile * rows + r, k)
                                nest.store(acc, (r, n, lane), acc[r, n, lane] + value)
                with nest.loop("r", rows, kind="unrolled") as r:
                    for n, product in enumerate(products):
                        with nest.loop("lane", width, kind="vectorized") as lane:
                            total = acc[r, n, lane]
                            if o.scale is not None:
                                row = self.row(at.first + tile * rows + r)
                                total = self.addend(product, at.time, row, p, lane) + total * self.scale(
                                    product.gate, p, lane
                                )
                            nest.store(sums, (r, n, lane), total)
            self.cells(sums, products, p, tile * rows, at)

    def addend(self, product: Product, time: Expr, row: Expr, panel: Expr, lane: Expr) -> Expr:
        """The value to which a product is added, at one step, row, panel and lane: an element of gates_x or of a vector
        of the cell, or zero."""
        values = [*self.shares(time, row, panel, lane), *[None] * len(self.program.results), *self.vectors(panel, lane)]
        value = None if product.addend is None else values[product.addend]
        return scalar(0, self.operands.x.dtype) if value is None else value

    def shares(self, time: Expr, row: Expr, panel: Expr, lane: Expr) -> list[Expr]:
        """The parts of gates_x for the element of the state at a panel's lane in `row` at the step `time`."""
        return self.parts(self.operands.x, self.program.shares, (time, row), panel, lane)

    def vectors(self, panel: Expr, lane: Expr) -> Sequence[Expr | None]:
        """The elements, at a panel's lane, of the vectors (peepholes, biases), which are the same for all rows."""
        buffer, count = self.operands.vectors, self.program.vectors
        return [None] * count if buffer is None else self.parts(buffer, count, (), panel, lane)

    def scale(self, gate: int, panel: Expr, lane: Expr) -> Expr:
        """The factor by which the product of gate `gate` with quantised weights is multiplied, at lane `lane` of panel
        `panel`."""
        scale = self.operands.scale
        assert scale is not None
        return self.inside(lambda j: scale[self.hidden * gate + j], panel, lane)

    # --- cells ------------------------------------------------------------------------------------------------------

    def cells(self, sums: Buffer, products: Sequence[Product], panel: Expr, start: Expr, at: _Step) -> None:
        """Emit, from the sums of `products` at the step `at`, the new states of a tile: elements of `panel`, of rows
        from `start` on. If later products of the step follow, only the values that these need are stored."""
        nest, program, state = self.nest, self.program, at.state
        before, gates = self.later and products != self.later, [p.gate for p in products]
        with nest.loop("r", self.tile.rows) as r, nest.loop("lane", self.tile.width, kind="vectorized") as lane:
            own, j = start + r, self.element(panel, lane)
            row = self.row(at.first + own)
            alive = None if self.operands.lengths is None else at.time < self.operands.lengths[row]
            old = [state.h[at.now, own, j], *([state.c[own, j]] if self.has_cell else [])]
            arguments = [*self.shares(at.time, row, panel, lane), *old, *self.vectors(panel, lane)]
            computed = dict(enumerate(arguments))
            waiting = dict(enumerate(program.retained)) if self.operands.stored is not None else {}

            def then(number: int, value: Expr) -> Expr:
                computed[number] = value
                if before and number in state.carried:
                    nest.store(state.carried[number], (own, j), value)
                if before or number not in program.results:
                    return value
                for part in [part for part, retained in waiting.items() if retained in computed]:
                    self.save((at.time, part, row, j), computed[waiting.pop(part)])
                new = value if alive is None else select(alive, value, old[program.results.index(number)])
                if number != program.results[0]:
                    nest.store(state.c, (own, j), new)
                    return state.c[own, j]
                nest.store(state.h, (1 - at.now, own, j), new)
                new = state.h[1 - at.now, own, j]
                result = new if alive is None else select(alive, new, scalar(0, new.dtype))
                with self.inner(j):
                    nest.store(self.operands.results[0], (at.time, row, j), result)
                return value

            known = {} if before else {number: carried[own, j] for number, carried in state.carried.items()}
            wanted = state.carried if before else (*program.results, *waiting.values())
            run(
                program,
                arguments,
                of_expressions(sums.dtype),
                lambda _, __, gate: sums[r, gates.index(gate), lane],
                wanted,
                known=known,
                then=then,
            )

    def save(self, place: tuple[Expr, int, Expr, Expr], value: Expr | None) -> None:
        """Emit a store of `value` at `place` = (time, part, row, element) of the buffer that the backward pass
        reads."""
        stored = self.operands.stored
        assert stored is not None and value is not None
        with self.inner(place[-1]):
            self.nest.store(stored, place, value)

    def inner(self, j: Expr) -> AbstractContextManager[None]:
        """A context for statements about element `j` of the state; they run only where `j` is one, as the last panel
        may have lanes past it."""
        return nullcontext() if self.whole else self.nest.when(j < self.hidden)

    def parts(self, buffer: Buffer, count: int, at: tuple[Expr, ...], panel: Expr, lane: Expr) -> list[Expr]:
        """The element of the state at lane `lane` of panel `panel`, in each of the first `count` parts of the row `at`
        of a buffer; a part is as wide as a state."""

        def part(k: int) -> Expr:
            return self.inside(lambda j: buffer[(*at, self.hidden * k + j)], panel, lane)

        return list(map(part, range(count)))
