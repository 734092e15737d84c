"""The constants of estimates for a machine: fitted ones, each with its unit, what it counts and its origin.

The defaults here are used where nothing else was measured. Families of machines override them in their own files with
`Costs.fitted`. `docs/targets.md` lists all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, fields, replace
from math import inf
from typing import Any, Literal

from tilewright.support.classes import dataclass
from tilewright.support.errors import TargetError

UNKNOWN = "not recorded"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a value: date, machine, the command that measured it, and the commit that added it."""

    date: str
    machine: str = UNKNOWN
    command: str = UNKNOWN
    commit: str = UNKNOWN

    def __str__(self) -> str:
        return f"{self.date}, machine {self.machine}, command {self.command}, commit {self.commit}"


def constant(value: float, unit: str, counts: str, origin: Origin) -> Any:
    """A dataclass field whose default is the constant `value`, with the unit, what it counts, and the origin of the
    number as metadata."""
    return field(default=value, metadata={"unit": unit, "counts": counts, "origin": origin})


_FIRST = Origin("2026-11-20", commit="7481e1a")
_TRANSPOSES = Origin("2026-11-20", commit="0c5c5df")
_TILES = Origin("2026-11-21", commit="82cd29d")
_STAGES = Origin("2026-11-21", commit="683087d")
_DIRECT = Origin("2026-11-21", commit="6737f7b")
_PIXELS = Origin("2026-11-21", commit="e7091c9")
_SCATTERED = Origin("2026-11-21", "Zen 3", commit="b0ce859")
_BLOCKS = Origin("2026-11-21", "Zen 3", commit="7b44531")
_PACKING = Origin("2026-11-21", "Zen 3", commit="06c7273")
_STREAMS = Origin("2026-11-22", "Zen 4", commit="adf2059")
_DEFER = Origin("2026-11-22", commit="b15ade9")
_SHORT_QUERIES = Origin("2026-11-27", "Emerald Rapids", "python -m benchmarks.bench_few_queries --grid --settings 5")
_AUDIT = Origin("2026-11-23", "Xeon with AVX-512", 'make audit ARGS="--kinds max_pool softmax"')
_POOLS = Origin("2026-11-25", "Zen 4", commit="7b0b9fe")
_SEPARATE = Origin("2026-11-26", "Zen 4 with AVX2", commit="2a963d0")
_IN_PLACE = Origin("2026-11-26", "Zen 4", "python -m benchmarks.bench_train ppo")
_BRANCHES = Origin("2026-11-25", "Zen 4, 2 cores", "python -m benchmarks.bench_threads --branches", "8289fa8")

_SAMPLES = Origin("2026-11-28", "Zen 4", "both ways by turns on grids of 16 to 4096 pixels, 2 to 64 channels")
_MATRICES = Origin("2026-11-27", "Emerald Rapids, 2 cores")

_TRANSFORMED = Origin("2026-11-26", "Zen 4", 'make audit ARGS="--kinds conv3x3 conv5x5"', "2a963d0")


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Constants of estimates about multiply-adds, loads and functions in register tiles."""

    fma_latency: float = constant(4.0, "cycles", "from a multiply-add to one that needs its result", _FIRST)
    fma_latency_scheduled: float = constant(
        4.4, "cycles", "the same with what scheduling leaves idle where accumulators are just enough", _DIRECT
    )
    dot_latency: float = constant(
        5.0, "cycles", "from a dot instruction to one that needs its result", Origin("2026-11-21", commit="e1c2c02")
    )
    loads_per_cycle: float = constant(2.0, "vectors a cycle", "loads that hit the first level of cache", _FIRST)
    store_per_load: float = constant(2.0, "ratio", "time of a store over that of a load of as many bytes", _STAGES)
    narrow_fma_per_cycle: float = constant(
        2.0, "a cycle", "multiply-adds that start, however narrow they are", Origin("2026-11-22", commit="8bcf413")
    )
    accumulators: int = constant(
        8, "registers", "accumulators that keep multiply-adds busy", Origin("2026-11-22", commit="954e0de")
    )
    constant_registers: int = constant(
        1,
        "registers",
        "what Winograd's register tiles leave free: constants of the transforms stay in a large register file",
        Origin("2026-11-21", commit="92de22e"),
    )
    registers_a_spare: int = constant(
        8,
        "registers",
        "one in so many is left for a row's elements and the next step's loads",
        Origin("2026-11-22", commit="f472f69"),
    )
    subnormal: float = constant(
        0.0,
        "cycles",
        "of a vector in which a result is below the normal numbers; where this is not 0, functions give zero there",
        Origin("2026-11-29", "Zen 3 to Zen 5"),
    )
    tile_overhead: float = constant(24.0, "cycles", "a register tile beside its steps and stores", _FIRST)
    transformed_store: float = constant(
        0.5, "share", "of a store of Winograd's transforms and products that what follows does not hide", _TRANSFORMED
    )
    transformed_value: float = constant(
        0.7, "cycles", "a vector of values that Winograd's output transform makes, beside its store", _TRANSFORMED
    )
    transformed_inward: float = constant(
        1.65, "ratio", "time of such a vector on the way in, where matrices have more columns", _TRANSFORMED
    )
    fourier_inward: float = constant(
        1.6, "ratio", "time of a vector of Fourier's transform over one of Winograd's, on the way in", _TRANSFORMED
    )
    fourier_outward: float = constant(1.75, "ratio", "the same on the way out", _TRANSFORMED)
    load_beside_products: float = constant(
        0.1, "cycles", "a load of a matrix product where multiply-adds bound: ports and front end are not ideal", _TILES
    )
    load_beside_convolution: float = constant(0.05, "cycles", "the same of a convolution", _DIRECT)
    operand_beside_convolution: float = constant(
        0.05, "cycles", "the same of a pixel that a direct convolution's tile of one vector multiplies with", _DIRECT
    )
    convolution_tile: float = constant(
        24.0, "cycles", "a register tile of a direct convolution beside its steps and stores", _FIRST
    )
    convolution_vector: float = constant(2.0, "cycles", "a vector of such a tile that is finished and stored", _DIRECT)
    full_registers: float = constant(
        1.03,
        "ratio",
        "time of a tile that takes all registers: loads cannot run ahead",
        Origin("2026-11-21", commit="9fa1252"),
    )
    idle_units: float = constant(
        0.5, "share", "a function's operations that units do which products leave idle", _DEFER
    )
    deferred_vector: float = constant(2.0, "cycles", "a vector of a tile stored for a later epilogue", _DEFER)
    function: float = constant(
        1.0,
        "ratio",
        "time of a function that is written out by that of half as many multiply-adds as it has operations",
        Origin("2026-11-26", "Zen 4", commit="a2b15cc0"),
    )
    bf16_pairs: float = constant(
        1.0,
        "multiply-adds",
        "a vector's instruction for pairs of bf16",
        Origin("2026-11-26", "Zen 4", commit="a2b15cc0"),
    )
    divide: float = constant(4.0, "multiply-adds", "a division", _STAGES)
    square_root: float = constant(6.0, "multiply-adds", "a square root", _STAGES)
    reciprocal_root: float = constant(8.0, "multiply-adds", "a square root and a division", _STAGES)
    extremum: float = constant(
        3.0, "multiply-adds", "a maximum or minimum that keeps NaN: the larger one, a test, a choice", _AUDIT
    )
    window_element: float = constant(
        1.0, "cycles", "an element of a window whose line no vector follows: windows beside it go on meanwhile", _POOLS
    )
    window_element_long: float = constant(
        0.15, "cycles", "the same of unpadded windows, more of them in a line than lanes: LLVM makes vectors", _POOLS
    )
    folded_window: float = constant(
        5.0, "cycles", "the lanes of such a window's vector folded to one element", _SEPARATE
    )
    gathered: float = constant(
        1.5,
        "cycles",
        "an element loaded by itself into a vector: an older figure that a few transposes bear out, not a fit",
        Origin("2026-11-23", "Zen 4", 'make audit ARGS="--kinds transpose --seed 20"'),
    )
    entry_vector: float = constant(
        6.0,
        "cycles",
        "a vector picked from a table of 256 bytes in registers, after a product",
        Origin("2026-11-27", "Emerald Rapids", "python -m benchmarks.bench_functions --only entry"),
    )
    forwarded: float = constant(
        5.0,
        "cycles",
        "from the store of an element, at a place that data say, to one that is computed from it",
        Origin("2026-11-26", "Emerald Rapids", "python -m benchmarks.bench_cliffs --only sort topk"),
    )
    folded_row: float = constant(24.0, "cycles", "the lanes of a short row's vector folded to one element", _AUDIT)
    load_beside_scores: float = constant(
        0.37, "cycles", "a load of attention where keys and values are read where they are", _SHORT_QUERIES
    )
    fold: float = constant(
        1.65,
        "cycles",
        "a step that folds the lanes of two of attention's sums to one vector: two shuffles, an addition",
        _SHORT_QUERIES,
    )
    transposed_vector: float = constant(
        6.0, "cycles", "a vector of attention's keys turned on its way into a panel", _SHORT_QUERIES
    )


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic between the levels of the memory, and how much of a level may be filled."""

    resident_l1: float = constant(0.75, "share", "of the first level that data may take and stay there", _STAGES)
    resident_l2: float = constant(0.75, "share", "the same of the second level", _STAGES)
    resident_l3: float = constant(0.5, "share", "the same of the last level, which others share", _STAGES)
    crowded_rows: float = constant(
        1.0,
        "ratio",
        "rows of a product's tile that may share sets of the first level, by the ways beside a panel's two",
        Origin("2026-11-21", commit="82cd29d4"),
    )
    crowded_passes: float = constant(
        1.0,
        "ratio",
        "the time of a product in several tiles of so many rows, by what they are estimated to take otherwise",
        Origin("2026-11-27"),
    )
    retained_sets: float = constant(0.75, "share", "sets of a cache in which other data leave room", _PIXELS)
    panel_l1: float = constant(
        0.6, "share", "of the first level that a convolution's weights may take beside its pixels", _DIRECT
    )
    reader_l2: float = constant(
        0.6, "share", "of the second level that something may fill and its next reader still find there", _BLOCKS
    )
    next_call_l3: float = constant(
        0.75,
        "share",
        "of the last level that weights may fill and the next call still find there",
        Origin("2026-11-21", commit="476378f"),
    )
    prefetch_l3: float = constant(
        0.5,
        "share",
        "of the last level that one kernel may prefetch, for a later one, and that weights between them may take",
        Origin("2026-11-22", commit="f106c44"),
    )
    written_back: float = constant(
        2.0, "ratio", "bytes moved for a byte written: lines are read before they are written", _STAGES
    )
    followed_stream: float = constant(
        1.5,
        "ratio",
        "what a single stream that hardware follows gets of the bandwidth beyond the first level",
        Origin("2026-11-22", commit="f472f69"),
    )
    shared_stream: float = constant(
        1.5,
        "ratio",
        "the same of a panel that tiles of rows have prefetched for each other",
        Origin("2026-11-22", commit="f472f69"),
    )
    followed_weights: float = constant(
        0.4, "share", "of the transfer of a convolution's weights from the second level that counts", _DIRECT
    )
    followed_pixels: float = constant(
        1.0, "share", "of the transfer of a direct convolution's pixels that counts, tile by tile", _DIRECT
    )
    passing_pixels: float = constant(
        1.0,
        "share",
        "the same of so many channels that a tile's pixels and a panel do not stay in the first level",
        _DIRECT,
    )
    limited_streams: float = constant(
        0.7, "share", "of the memory's bandwidth that fewer streams draw than are followed best", _STREAMS
    )
    unfollowed_l3: float = constant(
        1.0, "share", "of the last level's bandwidth that panels draw which no tile prefetches", Origin("2026-11-27")
    )
    excess_streams: float = constant(
        0.92, "share", "of a level's bandwidth that more streams draw than are followed best", _STREAMS
    )
    scattered_products: float = constant(
        0.4, "share", "of the bandwidth that Winograd's products get: a line in each of many places", _BLOCKS
    )
    strided_row: int = constant(
        2048,
        "bytes",
        "of a row of a product's operands up to which they are read where they lie, a line of each row",
        _IN_PLACE,
    )
    strided_l2: float = constant(
        inf, "share", "of the second level that such an operand may take; inf where that is not felt", _IN_PLACE
    )
    short_runs: float = constant(
        0.6,
        "share",
        "of the bandwidth that Strassen's sums get: some pixels of each block of channels",
        Origin("2026-11-22", "Zen 4", commit="226fead"),
    )
    other_core: float = constant(
        4.0, "bytes a cycle", "that a core gets of what another one has just written", _BRANCHES
    )
    other_core_l2: float = constant(
        1 / 8,
        "share",
        "of the second level up to which such fetching is felt: longer runs come ahead of their use",
        _BRANCHES,
    )
    followed_rows: int = constant(
        96,
        "rows",
        "of a map, read a piece at a time, up to which a line costs what `scattered_line` says",
        Origin("2026-11-21", commit="b0ce859"),
    )
    scattered_line: float = constant(
        23.0, "cycles", "a line from beyond the second level of few rows that are read a piece at a time", _SCATTERED
    )
    scattered_line_unfollowed: float = constant(
        60.0, "cycles", "the same of many rows", Origin("2026-11-21", commit="b0ce859")
    )
    collision: float = constant(
        12.0, "cycles", "a line that has left the second level before its rest is used", _PIXELS
    )
    crowded_line: float = constant(
        12.0, "cycles", "a line of a transposition that shares its set of the first level with too many", _PIXELS
    )
    distant_page: float = constant(
        5.0, "cycles", "a step whose page's translation, or line, comes from the second level", _PIXELS
    )
    unaligned: float = constant(0.05, "cycles", "a load that may cross the end of a line, on average", _PIXELS)
    split_store: float = constant(
        0.0,
        "cycles",
        "a vector that is stored across two lines, of rows apart; not measured where it is 0",
        Origin("2026-11-26"),
    )
    copied_vector: float = constant(1.5, "cycles", "a vector copied within the first level", _PIXELS)
    masked_shuffles: float = constant(
        1.2,
        "ratio",
        "time of shuffles of strips that begin at no line and end under a mask",
        Origin("2026-11-22", commit="5873e13"),
    )


@dataclass(frozen=True, slots=True)
class Prefetching:
    """Constants of prefetching: its distance, and when it pays."""

    stream_bytes: int = constant(
        2048,
        "bytes",
        "ahead in a stream: hardware follows it to the end of its page only",
        Origin("2026-11-21", commit="3b7e772"),
    )
    panel_bytes_l3: int = constant(
        2048,
        "bytes",
        "ahead in a panel of weights from the last level of cache",
        Origin("2026-11-22", commit="db744e4"),
    )
    panel_bytes_memory: int = constant(
        1024, "bytes", "ahead in a panel of weights from memory", Origin("2026-11-22", commit="db744e4")
    )
    panel_rows_l3: int = constant(
        2,
        "rows",
        "of a product from which on it prefetches its panel from the last level of cache",
        Origin("2026-11-22", commit="db744e4"),
    )
    panel_rows_memory: int = constant(
        3,
        "rows",
        "of a product from which on it prefetches its panel from memory",
        Origin("2026-11-22", commit="db744e4"),
    )
    shared_panel_rows_l3: int = constant(
        6,
        "rows",
        "from which on a panel's products take about as long as it takes to arrive from the last level of cache",
        Origin("2026-11-21", commit="e9b115b"),
    )
    shared_panel_rows_memory: int = constant(
        6, "rows", "the same of panels from memory", Origin("2026-11-21", commit="e9b115b")
    )
    alone_panel_bytes: int = constant(
        0,
        "bytes",
        "ahead in a panel of a convolution's weights that one register tile reads alone, all lines of each step; 0: a"
        " core's own prefetchers follow it as fast as memory gives",
        Origin("2026-11-26"),
    )
    panel_level: Literal[1, 2] = constant(
        2,
        "level",
        "of cache into which tiles that share a panel of weights prefetch the next one",
        Origin("2026-11-27"),
    )
    filter_bytes: int = constant(
        0,
        "bytes",
        "ahead in Winograd's filters that each register tile prefetches, into the first level; 0: those of the same"
        " panel share the lines of the next one, into the second level, and a tile alone prefetches nothing",
        Origin("2026-11-27"),
    )
    hinted_line: float = constant(
        0.0,
        "cycles",
        "a line that instructions prefetch from beyond the second level, at least: each holds a line buffer meanwhile;"
        " 0 where other limits are reached first",
        Origin("2026-11-26"),
    )
    lookahead_operations: int = constant(
        10,
        "instructions",
        "for one element from which on a core does not look far enough ahead by itself",
        Origin("2026-11-21", commit="681b026"),
    )
    rows: int = constant(
        2,
        "rows",
        "ahead in passes over rows: a pass is shorter than memory takes",
        Origin("2026-11-22", commit="c8badc5"),
    )
    pipelined_bytes: int = constant(
        8192,
        "bytes",
        "ahead, at least, where stages of rows follow one another",
        Origin("2026-11-22", commit="9e5c7b5"),
    )
    pipelined_row: float = constant(
        0.5,
        "share",
        "of the first level that such a row takes at most: three rows are read and written at once",
        Origin("2026-11-22", "Zen 4", commit="9e5c7b5"),
    )
    least_row: int = constant(
        512,
        "bytes",
        "of a row below which prefetching the next is not worth an instruction",
        Origin("2026-11-21", commit="33b2f09"),
    )
    least_weights: int = constant(
        1 << 19,
        "bytes",
        "of weights that a later kernel reads from which on prefetching them is worth it",
        Origin("2026-11-22", commit="f106c44"),
    )
    early_l2: float = constant(
        0.0,
        "share",
        "of the second level that a kernel may fill with weights of a later one, from the last level; 0: it fills none",
        Origin("2026-11-29"),
    )
    packed_row_bytes: int = constant(256, "bytes", "ahead in a row that is cut into panels", _PACKING)


@dataclass(frozen=True, slots=True)
class Copies:
    """Constants of estimates: the sizes of the pieces in which copies, transpositions and sums go through memory."""

    box: int = constant(
        4096,
        "elements",
        "of a transposition's destination up to which it is walked through as it comes: in the first level of cache",
        Origin("2026-11-28", "Zen 5", 'make bench-random-peers ARGS="--kinds transpose"'),
    )
    box_run: int = constant(16, "elements", "read along a long row before the next row of the box", _TRANSPOSES)
    box_side: int = constant(64, "elements", "a side of a box that is transposed in the first level", _PACKING)
    row_group: int = constant(32, "rows", "that are cut into pieces together: so many pages are at hand", _PACKING)
    lines_together: int = constant(
        4,
        "lines",
        "of a long row that are written before the next rows, each in pages of its own",
        Origin("2026-11-21", commit="cd083f2"),
    )
    strip: int = constant(
        1024,
        "elements",
        "columns that are summed together: results stay in the first level, rows are read in long runs",
        Origin("2026-11-21", commit="60ce046"),
    )
    sampled_channels: int = constant(
        4, "channels", "from which on they are moved to the last dimension, to be sampled as vectors", _SAMPLES
    )
    sampled_sparse: int = constant(
        16, "ratio", "pixels of an input for one sampled, from which on moving them costs more than to gather", _SAMPLES
    )


@dataclass(frozen=True, slots=True)
class Matrices:
    """Constants of estimates: the costs of instructions on matrix registers besides the products themselves."""

    stored_sums: float = constant(
        4.0,
        "cycles",
        "more for each vector of a convolution's sums that what follows reads from memory, where dot instructions leave"
        " it in a register (MobileNetV2 and ResNet-18 in 8 bits by either instruction)",
        _MATRICES,
    )
    stored_product_sums: float = constant(
        8.0, "cycles", "the same of products, whose few steps hide less of it", _MATRICES
    )
    configured: float = constant(
        400.0, "cycles", "of a kernel before its registers of matrices are configured and filled", _MATRICES
    )
    copied_vector: float = constant(
        3.0, "cycles", "for each vector that is copied so that registers can load it", _MATRICES
    )
    gathered_vector: float = constant(
        6.5,
        "cycles",
        "for each vector of pixels that are gathered (3x1 over 32 channels of 56x56, two lines of a window in the"
        " depth)",
        _MATRICES,
    )
    split_slower: float = constant(
        1.9,
        "ratio",
        "time of a product of pieces over that of its instructions alone: a loop of C whose operands come from the"
        " second level makes 600 GFLOP/s of f32 by three terms and 350 by six, where these allow 1,150 and 577",
        Origin("2026-11-29", "Granite Rapids, 2 cores", commit="f4d877bb"),
    )
    split_gain: float = constant(
        1.15,
        "ratio",
        "what a product by pieces must gain by its estimate: its weights take two or two and a half times their memory",
        Origin("2026-11-29", "Granite Rapids, 2 cores", commit="f4d877bb"),
    )
    worth: float = constant(
        2.0,
        "ratio",
        "what convolutions of f32 must gain by them: they take up to four times their estimate where other threads of a"
        " core use them too",
        _MATRICES,
    )


@dataclass(frozen=True, slots=True)
class Costs:
    """The fitted constants of a machine.

    `origins`: by name, the origins of constants that differ from the defaults; generated code does not depend on it.
    """

    arithmetic: Arithmetic = Arithmetic()
    traffic: Traffic = Traffic()
    prefetching: Prefetching = Prefetching()
    copies: Copies = Copies()
    matrices: Matrices = Matrices()
    origins: tuple[tuple[str, Origin], ...] = field(default=(), compare=False, repr=False)

    def fitted(self, origin: Origin, **values: float) -> Costs:
        """A copy in which constants are replaced by measured ones, by name: `fitted(origin, scattered_line=8.0)`."""
        groups: dict[str, Any] = {}
        for name, value in values.items():
            group = next((g for g, _ in GROUPS if name in {f.name for f in fields(getattr(self, g))}), None)
            if group is None:
                known = ", ".join(one.name for one in described(self))
                raise TargetError(f"no fitted constant is called {name!r}", expected=f"one of {known}")
            groups[group] = replace(groups.get(group, getattr(self, group)), **{name: value})
        return replace(self, **groups, origins=(*self.origins, *((name, origin) for name in values)))


GROUPS: tuple[tuple[str, type], ...] = (
    ("arithmetic", Arithmetic),
    ("traffic", Traffic),
    ("prefetching", Prefetching),
    ("copies", Copies),
    ("matrices", Matrices),
)
"""The parts of `Costs`."""


@dataclass(frozen=True, slots=True)
class Described:
    """A fitted constant with its description, for display."""

    group: str
    name: str
    value: float
    unit: str
    counts: str
    origin: Origin


def described(costs: Costs) -> Iterator[Described]:
    """All fitted constants of a machine, with their descriptions and origins."""
    own = dict(costs.origins)
    for group, _ in GROUPS:
        part = getattr(costs, group)
        for f in fields(part):
            origin = own.get(f.name, f.metadata["origin"])
            yield Described(group, f.name, getattr(part, f.name), f.metadata["unit"], f.metadata["counts"], origin)


__all__ = [
    "UNKNOWN",
    "Arithmetic",
    "Copies",
    "Costs",
    "Described",
    "Matrices",
    "Origin",
    "Prefetching",
    "Traffic",
    "described",
]
