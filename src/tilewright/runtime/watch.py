"""Detect changes of tensors: a builtin checks at every call that they have the same addresses and contents, at memory
bandwidth.

A program with packed copies of weights must notice when others modify the weights in place. PyTorch's version counters
do not suffice, as fused optimisers and writes through `.data` leave them unchanged. So the tensors' memory is read and
digested at every call.

The digest has eight lanes of 64 bits, as XXH3 has (Collet, "xxHash", 2019): a word is mixed with a key that depends on
its place, its halves are multiplied and added to its lane, and it is added itself to the neighbouring lane, so that one
changed word always changes the lanes. Two different contents have the same digest with a probability of 2^-64.
"""

from __future__ import annotations

from tilewright.native.assembler import I32, I64, PTR, VOID, Module
from tilewright.runtime.dlpack import API_VIEW, DL_DATA, DL_OFFSET, DL_RANK, DL_SHAPE, DL_SIZE, DL_STRIDES
from tilewright.runtime.layout import Struct

WATCH = Struct("count", "nbytes", "digest*")
"""The head of a table of watched tensors: how many, how many bytes are digested, and by which function."""
WATCHED = Struct("address", "nbytes", "digest", "rank", "sizes*")
"""A watched tensor: `nbytes` are digested (0: only its address counts); `sizes` is the address of its dimensions and
strides."""
RELEASE_GIL_BYTES = 1 << 20
"""Digests of at least so many bytes release the GIL."""

_KEY = ", ".join(f"i64 {0x9E3779B97F4A7C15 * (2 * k + 1) & (1 << 64) - 1}" for k in range(8))
_STEP = ", ".join(f"i64 {0xD6E8FEB86659FD93 * (2 * k + 3) & (1 << 64) - 1}" for k in range(8))
_NEIGHBOURS = ", ".join(f"i32 {k ^ 1}" for k in range(8))
_MIX = 0xFF51AFD7ED558CCD


def _accumulate(x: str, name: str) -> str:
    """LLVM text that defines `%name`: the accumulators `%acc`, combined with the words of vector `x` and the key
    `%key`, which depends on the words' position."""
    return f"""
  %{name}.keyed = xor <8 x i64> {x}, %key
  %{name}.low = and <8 x i64> %{name}.keyed, splat (i64 4294967295)
  %{name}.high = lshr <8 x i64> %{name}.keyed, splat (i64 32)
  %{name}.product = mul <8 x i64> %{name}.low, %{name}.high
  %{name}.swapped = shufflevector <8 x i64> {x}, <8 x i64> poison, <8 x i32> <{_NEIGHBOURS}>
  %{name}.sum = add <8 x i64> %{name}.product, %{name}.swapped
  %{name} = add <8 x i64> %acc, %{name}.sum"""


def _folded(lanes: str) -> str:
    """LLVM text that defines `%digest`: the lanes of an accumulator and `%nbytes`, mixed one after another by
    bijections."""
    lines = ["  %h0 = add i64 %nbytes, 1"]
    for k in range(8):
        lines += [
            f"  %lane{k} = extractelement <8 x i64> {lanes}, i64 {k}",
            f"  %x{k} = xor i64 %h{k}, %lane{k}",
            f"  %m{k} = mul i64 %x{k}, {_MIX - (1 << 64)}",
            f"  %s{k} = lshr i64 %m{k}, 29",
            f"  %h{k + 1} = xor i64 %m{k}, %s{k}",
        ]
    return "\n".join([*lines, "  %digest = add i64 %h8, 0"])


def digest_code(name: str) -> str:
    """LLVM text of one of `DIGESTS`, a function of (ptr, bytes)."""
    features = ",".join(f"+{feature}" for feature in DIGESTS[name])
    attributes = f'"target-features"="{features}" "prefer-vector-width"="512"' if features else ""
    return f"""
define i64 @{name}(ptr %p, i64 %nbytes) nounwind {attributes} {{
entry:
  %rest = alloca <8 x i64>, align 64
  %whole = and i64 %nbytes, -64
  %left = sub i64 %nbytes, %whole
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %acc = phi <8 x i64> [ zeroinitializer, %entry ], [ %one, %body ]
  %key = phi <8 x i64> [ <{_KEY}>, %entry ], [ %key1, %body ]
  %more = icmp ult i64 %i, %whole
  br i1 %more, label %body, label %tail
body:
  %at = getelementptr i8, ptr %p, i64 %i
  %x = load <8 x i64>, ptr %at, align 1{_accumulate("%x", "one")}
  %key1 = add <8 x i64> %key, <{_STEP}>
  %next = add i64 %i, 64
  br label %head
tail:
  store <8 x i64> zeroinitializer, ptr %rest, align 64
  %from = getelementptr i8, ptr %p, i64 %whole
  br label %copy
copy:
  %j = phi i64 [ 0, %tail ], [ %j1, %byte ]
  %some = icmp ult i64 %j, %left
  br i1 %some, label %byte, label %last
byte:
  %source = getelementptr i8, ptr %from, i64 %j
  %to = getelementptr i8, ptr %rest, i64 %j
  %b = load i8, ptr %source, align 1
  store i8 %b, ptr %to, align 1
  %j1 = add i64 %j, 1
  br label %copy
last:
  %y = load <8 x i64>, ptr %rest, align 64{_accumulate("%y", "all")}
{_folded("%all")}
  ret i64 %digest
}}
"""


def _define_same_place(m: Module) -> None:
    """Define `tw_same_place(watched, obj)`: whether the tensor `obj` has the address, sizes and strides recorded in
    `watched`."""
    with m.function("tw_same_place", I64, [("watched", PTR), ("obj", PTR)], local=True) as (f, (watched, obj)):
        api = f.call(PTR, "tw_api", obj)
        with f.when(api.eq(0)):
            f.ret(0)
        view = f.space(DL_SIZE)
        with f.when(f.call(I32, f.load(PTR, api, API_VIEW), obj, view).ne(0)):
            f.call(VOID, "PyErr_Clear")
            f.ret(0)
        address = view[DL_DATA] + view[DL_OFFSET]
        rank = f.load(I32, view, DL_RANK).signed(I64)
        strides = f.load(PTR, view, DL_STRIDES)
        for bad in (
            address.ne(watched[WATCHED.address]),
            rank.ne(watched[WATCHED.rank]),
            strides.eq(0),
        ):
            with f.when(bad):
                f.ret(0)
        sizes, shape = watched[WATCHED.sizes], f.load(PTR, view, DL_SHAPE)
        with f.each(rank) as i:
            with f.when(shape[i * 8].ne(sizes[i * 8])):
                f.ret(0)
            with f.when(strides[i * 8].ne(f.load(I64, sizes + rank * 8, i * 8))):
                f.ret(0)
        f.ret(1)


def _define_same_numbers(m: Module) -> None:
    """Define `tw_same_numbers(table)`: whether the digests of the watched tensors are the same as before."""
    with m.function("tw_same_numbers", I64, [("table", PTR)], local=True) as (f, (table,)):
        digest = table[WATCH.digest]
        with f.each(table[WATCH.count]) as i:
            watched = table + (i * WATCHED.size + WATCH.size)
            nbytes = watched[WATCHED.nbytes]
            with f.when(nbytes.ne(0)):
                result = f.call(I64, digest, f.load(PTR, watched, WATCHED.address), nbytes)
                with f.when(result.ne(watched[WATCHED.digest])):
                    f.ret(0)
        f.ret(1)


def _define_unchanged(m: Module) -> None:
    """Define `tw_unchanged(table, tensors)`: whether all tensors have the addresses and contents that `table` records.
    For much memory it releases the GIL."""
    with m.function("tw_unchanged", I64, [("table", PTR), ("tensors", PTR)]) as (f, (table, tensors)):
        with f.each(table[WATCH.count]) as i:
            watched = table + (i * WATCHED.size + WATCH.size)
            with f.when(f.call(I64, "tw_same_place", watched, f.load(PTR, tensors, i * 8)).eq(0)):
                f.ret(0)
        with f.when(table[WATCH.nbytes] < RELEASE_GIL_BYTES):
            f.ret(f.call(I64, "tw_same_numbers", table))
        state = f.call(PTR, "PyEval_SaveThread")
        same = f.call(I64, "tw_same_numbers", table)
        f.call(VOID, "PyEval_RestoreThread", state)
        f.ret(same)


def define_watch(m: Module) -> None:
    """Add `tw_unchanged(table, tensors)`, which compares tensors with their recorded addresses and digests."""
    _define_same_place(m)
    _define_same_numbers(m)
    _define_unchanged(m)


DIGESTS: dict[str, tuple[str, ...]] = {
    "tw_digest_avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
    "tw_digest_avx2": ("avx2",),
    "tw_digest": (),
}
"""The variants of the digest function and the processor features that they need, the fastest first."""


def digests(triple: str) -> list[str]:
    """The variants of the digest for an architecture."""
    return [name for name, features in DIGESTS.items() if not features or triple.startswith("x86_64")]
