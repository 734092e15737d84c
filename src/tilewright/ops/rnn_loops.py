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
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field

from tilewright.ir.expr import Buffer, Expr, as_int, ceildiv, const, maximum, minimum, select
from tilewright.ir.loops import PrimFunc
from tilewright.ops import registry
from tilewright.ops.dims import scalar
from tilewright.ops.loopnest import Nest
from tilewright.ops.pointwise import BODIES, Functions
from tilewright.ops.steps import Steps, expressions
from tilewright.support.classes import dataclass

GATES = {"lstm": 4, "gru": 3, "rnn": 1}

Weight = Callable[[Expr, Expr, int, Expr], Expr]
"""The recurrent weight of (panel, k, gate, lane)."""

Source = Callable[[Expr, Expr], Expr]
"""The factors of a row's weights: the element of (row of the block, k)."""


@dataclass(frozen=True, slots=True)
class Tile:
    """`rows` rows by `width` elements of the state are computed at once; `tiles` such tiles read a panel of weights one
    after the other; the loop over k has `steps` of them in its body."""

    rows: int
    width: int
    tiles: int
    steps: int


@dataclass(frozen=True, slots=True)
class Operands:
    """Inputs as `ops/rnn.py: _infer` says, and outputs; `stored` is what the way back needs, if it is asked for;
    `scale` [gates * H] what products with weights that are codes are multiplied by."""

    x: Buffer
    h0: Buffer
    c0: Buffer | None
    lengths: Buffer | None
    peephole: Buffer | None
    deferred: Buffer | None
    results: Sequence[Buffer]
    stored: Buffer | None = None
    scale: Buffer | None = None


@dataclass(frozen=True, slots=True)
class _State:
    """The state of a block of rows: h twice, a second state c, and the GRU's scaled state and update gate."""

    h: Buffer
    c: Buffer
    scaled: Buffer
    update: Buffer


@dataclass(frozen=True, slots=True)
class _Place:
    """An element of the state: in which lane of which panel, of which row of the batch, in which step."""

    panel: Expr
    lane: Expr
    element: Expr
    row: Expr
    time: Expr


@dataclass(frozen=True, slots=True)
class RecurrentLoops:
    """The loop program of a recurrence with its weights after `weight`."""

    cell: str
    activations: Functions
    steps: Steps
    clip: float | None
    reverse: bool
    linear_first: bool
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
        deferred_product = self.cell == "gru" and not self.linear_first
        with (
            nest.loop("block", ceildiv(batch, rows), parallel=True) as block,
            nest.allocate("h", t, (2, rows, padded)) as h,
            nest.allocate("c", t, (rows, padded) if self.has_cell else (1, 1)) as c,
            nest.allocate("scaled", t, (rows, padded) if deferred_product else (1, 1)) as scaled,
            nest.allocate("update", t, (rows, padded) if deferred_product else (1, 1)) as update,
        ):
            first = block * rows
            with nest.loop("r", self.tiles(first) * self.tile.rows) as r, nest.loop("j", self.hidden) as j:
                nest.store(h, (0, r, j), o.h0[self.row(first + r), j])
                if self.has_cell:
                    nest.store(c, (r, j), scalar(0, t) if o.c0 is None else o.c0[self.row(first + r), j])
            with nest.loop("s", time) as s, nest.let("now", s % 2) as now:
                self.step(first, time - 1 - s if self.reverse else s, now, _State(h, c, scaled, update))
            with nest.loop("r", self.tiles(first) * self.tile.rows) as r, nest.loop("j", self.hidden) as j:
                nest.store(o.results[1], (self.row(first + r), j), h[time % 2, r, j])
                if self.has_cell:
                    nest.store(o.results[2], (self.row(first + r), j), c[r, j])
        return nest.finish()

    @property
    def has_cell(self) -> bool:
        """Whether there is a second state, c."""
        return self.cell == "lstm" or (self.cell == "steps" and self.operands.c0 is not None)

    @property
    def panels(self) -> Expr:
        return ceildiv(self.hidden, self.tile.width)

    @property
    def whole(self) -> bool:
        """Whether the last panel is full."""
        return (as_int(self.hidden) or 1) % self.tile.width == 0

    def row(self, row: Expr) -> Expr:
        """A row of the batch; the last one for those past it."""
        batch, rows = self.operands.x.shape[1], self.tile.rows * self.tile.tiles
        return row if (as_int(batch) or 1) % rows == 0 else minimum(row, batch - 1)

    def tiles(self, first: Expr) -> Expr:
        """Tiles of the block that begins with a row; the last block may need fewer than the others."""
        needed = ceildiv(self.operands.x.shape[1] - first, self.tile.rows)
        return minimum(needed, self.tile.tiles) if self.tile.tiles > 1 else const(1)

    def element(self, panel: Expr, lane: Expr) -> Expr:
        return panel * self.tile.width + lane

    def inside(self, value: Callable[[Expr], Expr], panel: Expr, lane: Expr) -> Expr:
        """The result of `value` for the element of the state, zero past the last one."""
        at = self.element(panel, lane)
        return value(at) if self.whole else select(at < self.hidden, value(at), scalar(0, self.operands.x.dtype))

    # --- a step -----------------------------------------------------------------------------------------------------

    def step(self, first: Expr, time: Expr, now: Expr, state: _State) -> None:
        deferred_product = self.cell == "gru" and not self.linear_first
        gates = tuple(range(self.gates - 1 if deferred_product else self.gates))

        def old(r: Expr, k: Expr) -> Expr:
            return state.h[now, r, k]

        self.products(
            first, time, gates, old, lambda sums, panel, start: self.cells(sums, panel, start, first, time, now, state)
        )
        if deferred_product:
            self.products(
                first,
                time,
                (2,),
                lambda r, k: state.scaled[r, k],
                lambda sums, panel, start: self.candidates(sums, panel, start, first, time, now, state),
            )

    def products(
        self,
        first: Expr,
        time: Expr,
        gates: tuple[int, ...],
        source: Source,
        finish: Callable[[Buffer, Expr, Expr], None],
    ) -> None:
        """All panels of some gates, tile by tile: `finish` takes the tile's sums, its panel and its first row."""
        nest, o, (rows, width) = self.nest, self.operands, (self.tile.rows, self.tile.width)
        shape = (rows, len(gates), width)
        with (
            nest.loop("p", self.panels) as p,
            nest.loop("t", self.tiles(first)) as tile,
            nest.allocate("sums", o.x.dtype, shape) as sums,
        ):
            with nest.allocate("acc", o.x.dtype, shape) as acc:
                with nest.loop("r", rows, kind="unrolled") as r:
                    for n, gate in enumerate(gates):
                        with nest.loop("lane", width, kind="vectorized") as lane:
                            row = self.row(first + tile * rows + r)
                            start = self.start(time, row, gate, p, lane)
                            nest.store(acc, (r, n, lane), start if o.scale is None else scalar(0, o.x.dtype))
                with nest.loop("k", self.hidden, copies=self.tile.steps) as k:
                    with nest.loop("r", rows, kind="unrolled") as r:
                        for n, gate in enumerate(gates):
                            with nest.loop("lane", width, kind="vectorized") as lane:
                                product = self.weight(p, k, gate, lane) * source(tile * rows + r, k)
                                nest.store(acc, (r, n, lane), acc[r, n, lane] + product)
                with nest.loop("r", rows, kind="unrolled") as r:
                    for n, gate in enumerate(gates):
                        with nest.loop("lane", width, kind="vectorized") as lane:
                            total = acc[r, n, lane]
                            if o.scale is not None:
                                row = self.row(first + tile * rows + r)
                                total = self.start(time, row, gate, p, lane) + total * self.scale(gate, p, lane)
                            nest.store(sums, (r, n, lane), total)
            finish(sums, p, tile * rows)

    def start(self, time: Expr, row: Expr, gate: int, panel: Expr, lane: Expr) -> Expr:
        """The addend of a gate's product: the inputs' share, or the late bias where the reset gate scales it all."""
        o = self.operands
        if self.cell == "steps":
            return scalar(0, o.x.dtype)
        if self.cell == "gru" and self.linear_first and gate == 2:
            deferred = o.deferred
            return scalar(0, o.x.dtype) if deferred is None else self.inside(lambda j: deferred[j], panel, lane)
        return self.inside(lambda j: o.x[time, row, self.hidden * gate + j], panel, lane)

    def scale(self, gate: int, panel: Expr, lane: Expr) -> Expr:
        """The factor of a gate's product with codes."""
        scale = self.operands.scale
        assert scale is not None
        return self.inside(lambda j: scale[self.hidden * gate + j], panel, lane)

    # --- cells ------------------------------------------------------------------------------------------------------

    def cells(self, sums: Buffer, panel: Expr, start: Expr, first: Expr, time: Expr, now: Expr, state: _State) -> None:
        """The new state of a tile from its sums; of the GRU that needs another product, what goes into it."""
        nest, width = self.nest, self.tile.width
        with nest.loop("r", self.tile.rows) as r, nest.loop("lane", width, kind="vectorized") as lane:
            own, j = start + r, self.element(panel, lane)
            row = self.row(first + own)
            gates = [sums[r, n, lane] for n in range(as_int(sums.shape[1]) or 0)]
            old = state.h[now, own, j]
            place = _Place(panel, lane, j, row, time)
            if self.cell == "lstm":
                new = self.lstm(gates, state.c, (own, j), place)
            elif self.cell == "steps":
                arguments = [*gates, *self.parts(self.operands.x, (time, row), panel, lane)]
                new, *cell = self.stepped(arguments, old, state.c, own, panel, lane)
                self.keep(new, old, own, row, time, now, j, state)
                for value in cell:  # stored last, as the new h may read the old one
                    nest.store(state.c, (own, j), value)
                return
            elif self.cell == "rnn":
                new = self.function(0, gates[0])
            elif self.linear_first:
                inputs = self.inside(lambda at: self.operands.x[time, row, self.hidden * 2 + at], panel, lane)
                update, reset = self.function(0, gates[0]), self.function(0, gates[1])
                candidate = self.function(1, inputs + reset * gates[2])
                self.save(place, dict(enumerate((update, reset, candidate, gates[2]))))
                new = (scalar(1, old.dtype) - update) * candidate + update * old
            else:
                nest.store(state.update, (own, j), self.function(0, gates[0]))
                nest.store(state.scaled, (own, j), self.function(0, gates[1]) * old)
                return
            self.keep(new, old, own, row, time, now, j, state)

    def candidates(
        self, sums: Buffer, panel: Expr, start: Expr, first: Expr, time: Expr, now: Expr, state: _State
    ) -> None:
        """The new state of a GRU from its candidate's sums."""
        nest = self.nest
        with nest.loop("r", self.tile.rows) as r, nest.loop("lane", self.tile.width, kind="vectorized") as lane:
            own, j = start + r, self.element(panel, lane)
            update, old = state.update[own, j], state.h[now, own, j]
            new = (scalar(1, old.dtype) - update) * self.function(1, sums[r, 0, lane]) + update * old
            self.keep(new, old, own, self.row(first + own), time, now, j, state)

    def lstm(self, gates: Sequence[Expr], c: Buffer, at: tuple[Expr, Expr], place: _Place) -> Expr:
        """h from the gates input, output, forget, cell; c is stored. A peephole lets the first three see c."""
        peephole, alive = self.operands.peephole, self.alive(place.row, place.time)

        def peep(gate: Expr, k: int) -> Expr:
            if peephole is None:
                return gate
            return gate + self.inside(lambda j: peephole[self.hidden * k + j], place.panel, place.lane) * c[at]

        i, f, g = self.function(0, peep(gates[0], 0)), self.function(0, peep(gates[2], 2)), self.function(1, gates[3])
        new = f * c[at] + i * g
        self.save(place, {0: i, 2: f, 3: g, 4: c[at]})
        self.nest.store(c, at, new if alive is None else select(alive, new, c[at]))
        o, seen = self.function(0, peep(gates[1], 1)), self.body(2, c[at])
        self.save(place, {1: o, 5: seen})
        return o * seen

    def save(self, place: _Place, parts: Mapping[int, Expr]) -> None:
        """Stores parts of what is kept of an element, by their number, if that is asked for."""
        retained = self.operands.stored
        if retained is None:
            return
        with self.inner(place.element):
            for part, value in parts.items():
                self.nest.store(retained, (place.time, part, place.row, place.element), value)

    def inner(self, j: Expr) -> AbstractContextManager[None]:
        """Statements for elements of the state, not those past the last one."""
        return nullcontext() if self.whole else self.nest.when(j < self.hidden)

    def stepped(
        self, shape: Sequence[Expr], old: Expr, c: Buffer, own: Expr, panel: Expr, lane: Expr
    ) -> Sequence[Expr]:
        """The new states by the steps."""
        deferred, states = self.operands.deferred, [old, c[own, self.element(panel, lane)]][: 1 + self.has_cell]
        vectors = [] if deferred is None else self.parts(deferred, (), panel, lane)
        created = expressions(self.steps, [*shape, *states, *vectors], old.dtype)
        return created[-len(states) :]

    def parts(self, buffer: Buffer, at: tuple[Expr, ...], panel: Expr, lane: Expr) -> list[Expr]:
        """The parts of a line as wide as some states, an element of each."""
        count = (as_int(buffer.shape[-1]) or 0) // (as_int(self.hidden) or 1)

        def part(k: int) -> Expr:
            return self.inside(lambda j: buffer[(*at, self.hidden * k + j)], panel, lane)

        return list(map(part, range(count)))

    def keep(self, new: Expr, old: Expr, own: Expr, row: Expr, time: Expr, now: Expr, j: Expr, state: _State) -> None:
        """Stores an element of the new state, and of what the layer gives; past its length a row keeps the old one."""
        nest, alive = self.nest, self.alive(row, time)
        nest.store(state.h, (1 - now, own, j), new if alive is None else select(alive, new, old))
        value = state.h[1 - now, own, j]
        with self.inner(j):
            selected_value = value if alive is None else select(alive, value, scalar(0, value.dtype))
            nest.store(self.operands.results[0], (time, row, j), selected_value)

    def alive(self, row: Expr, time: Expr) -> Expr | None:
        """Whether a row's sequence has this step; None if all have all."""
        return None if self.operands.lengths is None else time < self.operands.lengths[row]

    def function(self, k: int, x: Expr) -> Expr:
        """The k-th activation of an element, after clipping."""
        if self.clip is not None:
            x = minimum(maximum(x, scalar(-self.clip, x.dtype)), scalar(self.clip, x.dtype))
        return self.body(k, x)

    def body(self, k: int, x: Expr) -> Expr:
        name, values = self.activations[k]
        return BODIES[name]((x,), registry.attributes(name, dict(values)))
