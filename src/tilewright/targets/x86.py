"""x86-64: SSE, AVX2, AVX-512; AMD's Zen, Intel's servers and client processors.

Four machines were measured, of 2 cores each: a Zen 3 (AVX2), on which all constants were fitted first, a Zen 4
(AVX-512), an Emerald Rapids (AVX-512, and without it for clients) and a Zen 5 (AVX-512). Constants fitted on them are
used for related processors.
"""

from __future__ import annotations

from collections.abc import Collection

from tilewright.ir.dtype import DType, bf16, f16, i8, i16, u8
from tilewright.targets.costs import Costs, Origin
from tilewright.targets.isa import Dot, Isa, offered
from tilewright.targets.memory import Caches, Ceilings
from tilewright.targets.registry import Family
from tilewright.targets.target import Target

TRIPLE = "x86_64-unknown-linux-gnu"

BASE = ("cmov", "cx8", "fxsr", "mmx", "sse", "sse2")
V2 = (*BASE, "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
V3 = (*V2, "avx", "avx2", "bmi", "bmi2", "crc32", "f16c", "fma", "lzcnt", "movbe", "xsave")
V3_DOTS = (*V3, "avxvnni")
V4 = (*V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
V4_DOTS = (*V4, "avx512bf16", "avx512vbmi", "avx512vnni")


# -- dot instructions --------------------------------------------------------------------------------------------------


def _splat(words: int, group: str = "two") -> str:
    """LLVM text that broadcasts a 32-bit group of A to all `words` lanes, as operand of a dot instruction."""
    return f"""\
  %{group} = load i32, ptr %a, align 1
  %one = insertelement <{words} x i32> poison, i32 %{group}, i64 0
  %all = shufflevector <{words} x i32> %one, <{words} x i32> poison, <{words} x i32> zeroinitializer
"""


def _bf16_text() -> str:
    return f"""\
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define internal void @tw.intrin.dot_16x2_bf16(ptr %a, ptr %b, i64 %bs, ptr %c) alwaysinline {{
{_splat(16)}  %left = bitcast <16 x i32> %all to <32 x bfloat>
  %right = load <32 x bfloat>, ptr %b, align 2
  %old = load <16 x float>, ptr %c, align 4
  %new = call <16 x float>
    @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %old, <32 x bfloat> %left, <32 x bfloat> %right)
  store <16 x float> %new, ptr %c, align 4
  ret void
}}"""


def _vnni(lanes: int, *features: str) -> Dot:
    name, sums, bytes_ = f"vnni_{lanes}x4_u8i8i32", f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    function = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    text = f"""\
declare {sums} @{function}({sums}, {bytes_}, {bytes_})
define internal void @tw.intrin.{name}(ptr %a, ptr %b, i64 %bs, ptr %c) alwaysinline {{
{_splat(lanes, "four")}  %left = bitcast {sums} %all to {bytes_}
  %right = load {bytes_}, ptr %b, align 1
  %old = load {sums}, ptr %c, align 4
  %new = call {sums} @{function}({sums} %old, {bytes_} %left, {bytes_} %right)
  store {sums} %new, ptr %c, align 4
  ret void
}}"""
    return Dot(name, u8, i8, lanes, 4, features, 1.0, text)


def _madd_text(name: str, lanes: int, b: DType) -> str:
    """LLVM text of a function, named after `name`, that adds products of pairs to `lanes` sums of C; with VNNI, LLVM
    combines multiplication and addition to one instruction."""
    function = "avx2.pmadd.wd" if lanes == 8 else "avx512.pmaddw.d.512"
    pair = f"<{2 * lanes} x i16>"
    read = f"  %right = load {pair}, ptr %b, align 2\n"
    if b is i8:
        read = (
            f"  %narrow = load <{2 * lanes} x i8>, ptr %b, align 1\n"
            f"  %right = sext <{2 * lanes} x i8> %narrow to {pair}\n"
        )
    return f"""\
declare <{lanes} x i32> @llvm.x86.{function}({pair}, {pair})
define internal void @tw.intrin.{name}(ptr %a, ptr %b, i64 %bs, ptr %c) alwaysinline {{
{_splat(lanes)}  %left = bitcast <{lanes} x i32> %all to {pair}
{read}  %sum = call <{lanes} x i32> @llvm.x86.{function}({pair} %left, {pair} %right)
  %old = load <{lanes} x i32>, ptr %c, align 4
  %new = add <{lanes} x i32> %old, %sum
  store <{lanes} x i32> %new, ptr %c, align 4
  ret void
}}"""


def _madd(lanes: int, b: DType) -> Dot:
    name = f"dot_{lanes}x2_i16{b.name}"
    features = ("avx2",) if lanes == 8 else ("avx512f", "avx512bw")
    return Dot(name, i16, b, lanes, 2, features, 1.25, _madd_text(name, lanes, b))


def _vnni_pairs(lanes: int, *features: str) -> Dot:
    name = f"vnni_{lanes}x2_i16i16i32"
    return Dot(name, i16, i16, lanes, 2, features, 1.0, _madd_text(name, lanes, i16))


def _tiles(a: DType, b: DType, feature: str, instruction: str) -> Dot:
    """The AMX instruction `instruction`: it multiplies 16 rows of 64 bytes by 16 groups of 16 columns in 16 cycles,
    during which 32 multiply-adds of full vectors could start."""
    group = 4 // a.itemsize
    name = f"amx_16x16x{16 * group}_{a.name}{b.name}"
    return Dot(name, a, b, 16, group, ("amx-tile", feature), 32.0, f"llvm.x86.{instruction}", rows=16, steps=16)


DOTS = (
    Dot("dot_16x2_bf16", bf16, bf16, 16, 2, ("avx512f", "avx512bf16"), 1.0, _bf16_text()),
    _vnni(16, "avx512f", "avx512vnni"),
    _vnni(8, "avx2", "avxvnni"),
    _vnni_pairs(16, "avx512f", "avx512vnni"),
    _vnni_pairs(8, "avx2", "avxvnni"),
    _madd(16, i8),
    _madd(16, i16),
    _madd(8, i8),
    _madd(8, i16),
    _tiles(u8, i8, "amx-int8", "tdpbusd"),
    _tiles(bf16, bf16, "amx-bf16", "tdpbf16ps"),
    _tiles(f16, f16, "amx-fp16", "tdpfp16ps"),
)
"""The bf16 instruction flushes denormals to zero and adds each pair before it adds to C (Intel SDM, VDPBF16PS); VNNI
computes sums of four products of u8 and i8, sixteen with AVX-512, eight with AVX-VNNI (Intel SDM, VPDPBUSD). AMX
multiplies 16 rows at once (Intel SDM, TDPBUSD, TDPBF16PS and TDPFP16PS, which keeps denormals); a process must request
it (`support/permission.py`), and machines that are named here do not use it, since many virtual ones hide it."""


# -- what the instructions offer ---------------------------------------------------------------------------------------


def isa(features: tuple[str, ...]) -> Isa:
    """The instruction set of a processor with these features. With AVX-512, vectors have 512 bits, and there are table
    lookups in registers and multiplications by powers of two."""
    wide = {"avx512f", "avx512vl"} <= set(features)
    bits = 512 if wide else 256 if "avx2" in features else 128
    return Isa(
        vector_bits=bits,
        registers=32 if wide else 16,
        fma="fma" in features,
        masked_reads=bits >= 256,
        tables=16 if wide else 0,
        half_tables=0 if wide or bits < 256 else 16,
        byte_tables=256 if wide and "avx512vbmi" in features else 0,
        scales=wide,
        streams_stores=True,
        # LLVM's vectoriser likes scatters, which are several times slower than scalar stores on most CPUs.
        tuning="+prefer-no-scatter",
        dots=offered(DOTS, features),
        scalar_lookups=bits == 256,
    )


GOLDEN_COVE = "Emerald Rapids with AVX2"
"""The core of Intel's servers is also that of its client processors of the same time, which have no AVX-512."""

ZEN3_COSTS = Costs().fitted(
    Origin("2026-11-24", "Zen 4 with AVX2", "TILEWRIGHT_TARGET=x86-64-v3 python -m benchmarks.bench_few_rows"),
    panel_bytes_l3=4096,
    panel_bytes_memory=4096,
    panel_rows_l3=3,
    panel_rows_memory=4,
    shared_panel_rows_l3=5,
    shared_panel_rows_memory=5,
)
AVX2_COSTS = ZEN3_COSTS.fitted(
    # One filter to eight over maps of 1 to 13 MB: 0 to 3 cycles in most. Zen 3's 60 led to blocks of channels, which
    # take up to ten times as long for few filters.
    Origin("2026-11-26", "Zen 4 with AVX2", commit="2a963d0"),
    scattered_line=1.5,
    scattered_line_unfollowed=1.5,
)

INTEL_AVX2_COSTS = (
    AVX2_COSTS
    # Sixteen registers, and two of three vector units multiply.
    .fitted(
        Origin("2026-11-27", GOLDEN_COVE, "python -m benchmarks.bench_functions --target alderlake"),
        function=1.9,
        divide=8.0,
        square_root=10.0,
        reciprocal_root=18.0,
    )
    # Two rows take 0.80 of the time with panels prefetched; four rows share panels from memory in 0.76 of it, and those
    # from the last level in 1.12, up to six rows.
    .fitted(
        Origin("2026-11-27", GOLDEN_COVE, "TILEWRIGHT_TARGET=alderlake python -m benchmarks.bench_few_rows"),
        panel_rows_l3=2,
        panel_rows_memory=2,
        shared_panel_rows_l3=7,
        shared_panel_rows_memory=4,
    )
)

AVX512_COSTS = (
    Costs()
    .fitted(Origin("2026-11-22", "Zen 4", commit="a44ce29"), scattered_line=8.0, scattered_line_unfollowed=8.0)
    .fitted(Origin("2026-11-21", commit="92de22e"), constant_registers=6)
)


ZEN4_COSTS = (
    AVX512_COSTS
    # Its own prefetchers follow panels of few rows better than tiles that prefetch ahead: up to 1.6 times.
    .fitted(
        Origin("2026-11-24", "Zen 4", "python -m benchmarks.bench_few_rows"),
        panel_rows_l3=7,
        panel_rows_memory=7,
        shared_panel_rows_l3=7,
        shared_panel_rows_memory=7,
    )
    # Its direct convolutions lose little at the ends of tiles, nothing by elements as operands (narrow-panels.md).
    .fitted(
        Origin("2026-11-26", "Zen 4", "python -m benchmarks.bench_panels"),
        operand_beside_convolution=0.0,
        convolution_tile=0.0,
        convolution_vector=3.0,
        followed_pixels=0.25,
        passing_pixels=1.5,
    )
    .fitted(Origin("2026-11-26", "Zen 4", commit="2a963d0"), scattered_line=1.5, scattered_line_unfollowed=1.5)
    # 1x1 convolutions over NCHW maps of 32 x 32 and 64 x 64, as below: of 234 to 512 channels and 2 to 64 filters all
    # take 1.0 to 8 times as long in blocks.
    .fitted(Origin("2026-11-28", "Zen 4", 'make audit ARGS="--kinds conv1x1"'), collision=1.0)
)

ZEN5_COSTS = (
    AVX512_COSTS
    # Tiles of one panel that prefetch it 8 to 16 KB ahead take 0.65 to 0.98 of any other way up to some twelve rows,
    # from where on shares are as good; two and three rows draw 0.93 of the memory's bandwidth by themselves.
    .fitted(
        Origin("2026-11-27", "Zen 5", "python -m benchmarks.bench_few_rows"),
        panel_bytes_l3=16384,
        panel_bytes_memory=8192,
        panel_rows_l3=4,
        panel_rows_memory=4,
        shared_panel_rows_l3=13,
        shared_panel_rows_memory=13,
        limited_streams=0.93,
        unfollowed_l3=0.75,
        shared_stream=1.0,
    )
    # Chains of 512 to 3,072 features: 0.77 to 1.01 of the time of hints for the second level with 14 to 30 rows, 0.84
    # to 1.02 with 4 to 64 of any number of rows.
    .fitted(Origin("2026-11-27", "Zen 5", "python -m benchmarks.bench_few_rows --rows 14,20,30"), panel_level=1)
    # Rows of 1,024 to 3,072 features, all in sets of twelve ways, in thirty chains of 11 to 28 rows: 0.73 to 1.03 of
    # the time of tiles of ten rows.
    .fitted(
        Origin("2026-11-27", "Zen 5", "python -m benchmarks.bench_symbolic_products --rows 11,12,14,18"),
        crowded_rows=1.4,
        crowded_passes=1.05,
    )
    # 1x1 convolutions over NCHW maps of 32 x 32 and 64 x 64, whose lines fall into a quarter or less of the second
    # level's sets: 0 to 4 cycles a line.
    .fitted(Origin("2026-11-28", "Zen 5", 'make audit ARGS="--kinds conv1x1"'), collision=3.0)
    # Softmaxes of 64 and 67 rows: 0.67 to 0.98 of the time without up to 3,072 numbers, 1.03 to 1.18 from 3,500 on.
    .fitted(Origin("2026-11-28", "Zen 5", 'make bench-random-peers ARGS="--kinds softmax"'), pipelined_row=0.26)
    # 0.64 to 1.10 of the time without, 0.88 in the mean of ten chains.
    .fitted(Origin("2026-11-27", "Zen 5", "python -m benchmarks.bench_few_rows --maps"), alone_panel_bytes=24576)
    # Chains of 128 channels at 19, 256 at 14 and 512 at 7 pixels from memory, F(2) to F(5): 0.66 to 0.98 of the time of
    # shares, 4 to 8 KB ahead 0.77 to 1.08; where they come from the last level 0.99 to 1.02.
    .fitted(Origin("2026-11-27", "Zen 5", "python -m benchmarks.bench_few_rows --maps"), filter_bytes=16384)
    .fitted(Origin("2026-11-27", "Zen 5", "python -m benchmarks.bench_functions"), function=1.3)
    # Rows that begin a multiple of 4,096 bytes apart, of transpositions to 256 x 1024, 64 x 512 x 16 and their like: 3
    # to 6 cycles a line where they are written, 0 to 1.5 where they are read.
    .fitted(Origin("2026-11-27", "Zen 5", 'make audit ARGS="--kinds transpose"'), crowded_line=3.0)
    # Of fifty attentions the chosen way takes 1.01 of the best in the mean and 1.07 at most (1.03 and 1.33 with 0.37).
    .fitted(Origin("2026-11-27", "Zen 5", "python -m benchmarks.bench_few_queries --grid"), load_beside_scores=0.15)
)

INTEL_COSTS = (
    AVX512_COSTS
    # Both of its 512-bit units multiply: none is left for a function's other operations.
    .fitted(
        Origin("2026-11-26", "Emerald Rapids", "python -m benchmarks.bench_functions"),
        function=1.7,
        divide=16.0,
        square_root=20.0,
        reciprocal_root=36.0,
    )
    # VDPBF16PS takes 1.48 ns (twelve of them in a loop of C, 100 million in all); AMX is this machine's way.
    .fitted(Origin("2026-11-27", "Emerald Rapids", commit="4f1ff6bd"), bf16_pairs=9.0)
    # Rows 4,096 bytes apart, 16 of them in sets of 12 ways: 1.7 to 3.7 cycles a line in three layers of seed 161.
    # Rows of 361 elements, and of 400 that begin after a line: 220 to 245 cycles for 16 vectors, 110 at lines.
    .fitted(
        Origin("2026-11-26", "Emerald Rapids", 'make audit ARGS="--kinds transpose depthwise"'),
        crowded_line=3.0,
        split_store=7.5,
    )
    # From four rows on shares are 0.90 of any other way if panels come from memory. From the last level they take 1.1
    # to 1.2 times as long as a panel of one's own, up to eight rows.
    .fitted(
        Origin("2026-11-27", "Emerald Rapids", "python -m benchmarks.bench_few_rows"),
        panel_bytes_l3=4096,
        panel_bytes_memory=4096,
        panel_rows_l3=3,
        panel_rows_memory=3,
        shared_panel_rows_l3=9,
        shared_panel_rows_memory=4,
    )
    # Two multiply-adds of 512 bits a cycle where a Zen 4 has one: lines that are not near are waited for sooner.
    .fitted(
        Origin("2026-11-26", "Emerald Rapids", "python -m benchmarks.bench_in_place"),
        strided_row=1024,
        strided_l2=0.4,
    )
    # Maps of 3x3 and 2x2, weights from memory and from the last level alike: few hints or none take 1.26 to 1.37 times
    # as long as all lines 8 KB ahead (up to 2.3 times beside others that use memory), 12 and 18 KB 0.92 to 1.01.
    .fitted(
        Origin("2026-11-27", "Emerald Rapids", "python -m benchmarks.bench_few_rows --maps"),
        alone_panel_bytes=16384,
    )
    # What instructions prefetch waits in 16 line buffers (docs/decisions/weights-of-the-program.md, with the loop).
    .fitted(Origin("2026-11-26", "Emerald Rapids", commit="33fe40ec"), hinted_line=10.0)
)

GOLDEN_COVE_COSTS = (
    INTEL_COSTS
    # Sigmoid of 50,176 numbers around -92: 146 us, around -1: 11 us.
    .fitted(Origin("2026-11-29", "Granite Rapids, 2 cores", commit="f4d877bb"), subnormal=150.0)
    # Rows of 1,024 to 3,072 features, all in sets of twelve ways: tiles of 11 to 14 take 0.7 to 0.9 of those of ten.
    # Panels that no tile prefetches take 1.04 to 1.15 of the time of others, 18 rows in three tiles of four vectors
    # 1.1 to 1.2 of two tiles of two vectors.
    .fitted(
        Origin("2026-11-27", "Emerald Rapids", "python -m benchmarks.bench_symbolic_products --rows 11,12,14,18"),
        crowded_rows=1.4,
        crowded_passes=1.05,
        unfollowed_l3=0.85,
        shared_stream=1.0,
    )
    # The second level reads 150 GB/s, the last one 28. What prefetching between them saves was not measured.
    .fitted(Origin("2026-11-29", "Granite Rapids, 2 cores", commit="f4d877bb"), early_l2=0.5)
)


# -- processors --------------------------------------------------------------------------------------------------------

SPLIT_VECTORS = ("znver4",)
"""Processors that pass a 512-bit multiply-add through their pipes in two halves, one a cycle, and load one such vector
a cycle."""

STREAMS = {"znver4": 2}
"""The number of concurrent streams with which a core reads fastest, where it is not four: Zen 4's prefetchers get the
most from one or two (22 November 2026, commit adf2059), Zen 3's left a single one at 0.7 of four."""

AMD = ("znver", "bdver", "btver", "amdfam", "barcelona", "opteron", "athlon", "k8")
"""The prefixes of LLVM's names of AMD's processors."""

_ASSISTS = Origin("2026-11-29", "Granite Rapids, for all of Intel's cores", commit="f4d877bb")
"""Earlier cores were not measured: A. Fog's The microarchitecture of Intel, AMD and VIA CPUs has about 150 cycles for
them from Sandy Bridge on."""

INTEL_SERVERS = (
    "skylake-avx512",
    "cascadelake",
    "cooperlake",
    "icelake-server",
    "sapphirerapids",
    "emeraldrapids",
    "graniterapids",
)

GOLDEN_COVES = ("sapphirerapids", "emeraldrapids", "graniterapids")
"""The processors whose cores equal the measured one."""


INTEL_CLIENTS = ("alderlake", "raptorlake", "meteorlake")
"""Processors with large cores like those of `INTEL_SERVERS`, without AVX-512."""


ZEN5_CEILINGS = Ceilings(
    fma_per_cycle=2.0, l1_bandwidth=128.0, l2_bandwidth=62.0, l3_bandwidth=28.0, memory_bandwidth=10.7
)
"""The ceilings of a Zen 5 of 4.1 to 4.3 GHz with its full vector units (27 November 2026, 2 cores, `tilewright
doctor`). It reads one stream as fast as four."""


def ceilings(cpu: str, bits: int) -> Ceilings:
    """The ceilings of a kind of CPU with vectors of `bits` bits that was not measured (21 November 2026, commit
    08c0715, no machine recorded)."""
    vector = bits / 8
    if cpu == "znver5" and bits == 512:
        return ZEN5_CEILINGS
    has_float16 = cpu in SPLIT_VECTORS and bits == 512
    l1 = vector if has_float16 else 2 * vector
    server = cpu in INTEL_SERVERS
    return Ceilings(
        fma_per_cycle=1.0 if has_float16 else 2.0,
        l1_bandwidth=l1,
        l2_bandwidth=min(l1, 38.0 if server else 27.0),
        l3_bandwidth=min(l1, 9.5 if server else 19.0),
        memory_bandwidth=4.8 if server else 6.7,
        streams=STREAMS.get(cpu, 4),
    )


def costs(cpu: str, bits: int) -> Costs:
    """The fitted constants of a kind of CPU, with vectors of so many bits. Processors that are not AMD's, or of unknown
    name, may have Intel cores, which have taken some hundred cycles for subnormal results since Sandy Bridge."""
    known = _fitted_costs(cpu, bits)
    if cpu.startswith(AMD) or known.arithmetic.subnormal:
        return known
    return known.fitted(_ASSISTS, subnormal=150.0)


def _fitted_costs(cpu: str, bits: int) -> Costs:
    if bits < 512:
        return ZEN3_COSTS if cpu == "znver3" else INTEL_AVX2_COSTS if cpu in INTEL_CLIENTS else AVX2_COSTS
    if cpu in GOLDEN_COVES:
        return GOLDEN_COVE_COSTS
    if cpu in INTEL_SERVERS:
        return INTEL_COSTS
    return {"znver4": ZEN4_COSTS, "znver5": ZEN5_COSTS}.get(cpu, AVX512_COSTS)


CACHES = {
    "znver3": Caches(l1=32 << 10, l2=512 << 10, l3=32 << 20),
    "znver5": Caches(l1=48 << 10, l2=1 << 20, l3=32 << 20, l1_ways=12, l2_ways=16),
    # A Core i9-12900K and a Core i9-13900K, of their large cores.
    "alderlake": Caches(l1=48 << 10, l2=1280 << 10, l3=30 << 20, l1_ways=12, l2_ways=10),
    "raptorlake": Caches(l1=48 << 10, l2=2 << 20, l3=36 << 20, l1_ways=12, l2_ways=16),
    # A Xeon Gold 6430, a Xeon Platinum 8580 and a Xeon 6737P: others of their kind differ in the last level.
    "sapphirerapids": Caches(l1=48 << 10, l2=2 << 20, l3=60 << 20, l1_ways=12, l2_ways=16),
    "emeraldrapids": Caches(l1=48 << 10, l2=2 << 20, l3=300 << 20, l1_ways=12, l2_ways=16),
    "graniterapids": Caches(l1=48 << 10, l2=2 << 20, l3=144 << 20, l1_ways=12, l2_ways=16),
}
"""Cache sizes of CPU families, as stated by their makers. Other processors get the default sizes."""


_BEYOND_SKYLAKE = ("avx512vnni", "avx512bf16", "avx512fp16", "amx-tile", "amx-fp16")
_BEYOND_HASWELL = ("avx512f", "avxvnni", *_BEYOND_SKYLAKE)
_BEYOND_ICE_LAKE = ("avx512bf16", "avxvnni", "avx512fp16", "amx-tile", "amx-fp16")
LACKS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("haswell", "broadwell", "skylake"), _BEYOND_HASWELL),
    "skylake-avx512": ("avxvnni", *_BEYOND_SKYLAKE),
    **dict.fromkeys(("cascadelake", "icelake-client", "icelake-server", "rocketlake", "tigerlake"), _BEYOND_ICE_LAKE),
    "cooperlake": ("avxvnni", "avx512fp16", "amx-tile", "amx-fp16"),
    **dict.fromkeys(INTEL_CLIENTS, ("amx-tile", "amx-fp16")),
    **dict.fromkeys(("sapphirerapids", "emeraldrapids"), ("amx-fp16",)),
    **dict.fromkeys(("znver1", "znver2", "znver3"), ("avx512f", "avxvnni")),
    "znver4": ("avxvnni",),
    # Processors that LLVM has no name for; only those that are like no older ones are distinguished.
    **dict.fromkeys(("", "generic", "x86-64", "x86-64-v4"), ("avx512fp16", "amx-tile", "amx-fp16")),
}
"""Instructions that a processor of this name does not have (LLVM's X86TargetParser.cpp); a processor that has them is
misnamed."""
_BY_FEATURES = (
    ("amx-fp16", "graniterapids"),
    ("amx-tile", "sapphirerapids"),
    ("avx512fp16", "sapphirerapids"),
    ("avx512bf16", "cooperlake"),
    ("avx512vbmi", "icelake-server"),
    ("avx512vnni", "cascadelake"),
    ("avx512f", "skylake-avx512"),
    ("avxvnni", "alderlake"),
)
"""Features that older processors of Intel's lack, with the processor that introduced them, the newest first."""


def name_by_features(cpu: str, features: Collection[str]) -> str:
    """LLVM's name of a processor, `cpu` or, if its features contradict this name, the name of the kind which its
    features indicate. LLVM derives names from numbers that hypervisors choose: a Granite Rapids called Rocket Lake has
    AMX (measured on one, 2026-11-29). A name without a contradiction stays, since hypervisors also hide features."""
    if not set(LACKS.get(cpu, ())).intersection(features):
        return cpu
    if "sse4a" in features:  # AMD's alone
        return "znver5" if "avxvnni" in features else "znver4"
    return next((name for feature, name in _BY_FEATURES if feature in features), cpu)


def processor(cpu: str, features: tuple[str, ...]) -> Target:
    """The description of a processor of this name with these features."""
    own = isa(features)
    cpu = name_by_features(cpu, features)
    return Target(
        TRIPLE,
        cpu,
        tuple(sorted(features)),
        isa=own,
        caches=CACHES.get(cpu, Caches()),
        ceilings=ceilings(cpu, own.vector_bits),
        costs=costs(cpu, own.vector_bits),
    )


_FEATURES = {
    "x86-64": BASE,
    "x86-64-v2": V2,
    "x86-64-v3": V3,
    "x86-64-v4": V4,
    "haswell": V3,
    "alderlake": V3_DOTS,
    "raptorlake": V3_DOTS,
    "skylake-avx512": V4,
    "sapphirerapids": V4_DOTS,
    "emeraldrapids": V4_DOTS,
    "graniterapids": V4_DOTS,
    "znver3": V3,
    "znver4": V4_DOTS,
    "znver5": V4_DOTS,
}

FAMILY = Family(
    "x86",
    "x86_64",
    {name: processor(name, features) for name, features in _FEATURES.items()},
    DOTS,
    describe=processor,
)

__all__ = ["DOTS", "FAMILY", "ceilings", "isa", "name_by_features", "processor"]
