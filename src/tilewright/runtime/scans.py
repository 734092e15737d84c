"""Scans of memory at its full bandwidth: a checksum, and a search for NaN and infinity."""

from __future__ import annotations

from tilewright.native.assembler import I32, I64, PTR, Module

# Fletcher's idea on eight lanes of 64 bits: sums, and sums of sums, so that neither a changed nor a misplaced word goes
# unseen; a fold with odd multipliers ends it, both turned, as flipped signs are highest bits, which would cancel.
# Two vectors a turn hide the additions after the loads.
_CHECKSUM = """
define i64 @tw_checksum(ptr %p, i64 %nbytes) nounwind {
entry:
  %end = getelementptr i8, ptr %p, i64 %nbytes
  br label %head
head:
  %at = phi ptr [ %p, %entry ], [ %next, %body ]
  %a = phi <8 x i64> [ zeroinitializer, %entry ], [ %a1, %body ]
  %b = phi <8 x i64> [ zeroinitializer, %entry ], [ %b1, %body ]
  %more = icmp ult ptr %at, %end
  br i1 %more, label %body, label %fold
body:
  %x = load <8 x i64>, ptr %at, align 64
  %a1 = add <8 x i64> %a, %x
  %b1 = add <8 x i64> %b, %a1
  %next = getelementptr i8, ptr %at, i64 64
  br label %head
fold:
  %odd = mul <8 x i64> %b, <i64 3, i64 5, i64 7, i64 11, i64 13, i64 17, i64 19, i64 23>
  %mixed = mul <8 x i64> %a, <i64 29, i64 31, i64 37, i64 41, i64 43, i64 47, i64 53, i64 59>
  %turned = call <8 x i64> @llvm.fshl.v8i64(<8 x i64> %odd, <8 x i64> %odd, <8 x i64> splat (i64 29))
  %moved = call <8 x i64> @llvm.fshl.v8i64(<8 x i64> %mixed, <8 x i64> %mixed, <8 x i64> splat (i64 17))
  %joined = xor <8 x i64> %turned, %moved
  %both = mul <8 x i64> %joined, <i64 61, i64 67, i64 71, i64 73, i64 79, i64 83, i64 89, i64 97>
  %sum = call i64 @llvm.vector.reduce.add.v8i64(<8 x i64> %both)
  %result = add i64 %sum, %nbytes
  ret i64 %result
}
"""

# Without their signs, floats are ordered as integers are, and those that are not finite are the largest.
_FINITE = """
define i64 @tw_finite(ptr %p, i64 %count) nounwind {
entry:
  %wide = and i64 %count, -16
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i1, %body ]
  %most = phi <16 x i32> [ zeroinitializer, %entry ], [ %most1, %body ]
  %more = icmp ult i64 %i, %wide
  br i1 %more, label %body, label %tail
body:
  %at = getelementptr i32, ptr %p, i64 %i
  %x = load <16 x i32>, ptr %at, align 4
  %size = and <16 x i32> %x, splat (i32 2147483647)
  %most1 = call <16 x i32> @llvm.umax.v16i32(<16 x i32> %most, <16 x i32> %size)
  %i1 = add i64 %i, 16
  br label %head
tail:
  %found = call i32 @llvm.vector.reduce.umax.v16i32(<16 x i32> %most)
  br label %single
single:
  %k = phi i64 [ %wide, %tail ], [ %k1, %one ]
  %f = phi i32 [ %found, %tail ], [ %f1, %one ]
  %left = icmp ult i64 %k, %count
  br i1 %left, label %one, label %done
one:
  %at1 = getelementptr i32, ptr %p, i64 %k
  %y = load i32, ptr %at1, align 4
  %size1 = and i32 %y, 2147483647
  %f1 = call i32 @llvm.umax.i32(i32 %f, i32 %size1)
  %k1 = add i64 %k, 1
  br label %single
done:
  %ok = icmp ult i32 %f, 2139095040
  %r = zext i1 %ok to i64
  ret i64 %r
}
"""

SCAN_EXPORTS = ("tw_checksum", "tw_first_unfit")


def define_scans(m: Module) -> None:
    """Add `tw_checksum(ptr, bytes)`, for 64-byte aligned memory of a multiple of 64 bytes; `tw_finite(ptr, count)`,
    which returns 1 if none of `count` f32 numbers is NaN or infinite; and `tw_first_unfit`, the first of several arrays
    that has one, or -1."""
    m.declare("llvm.fshl.v8i64", "<8 x i64>", ["<8 x i64>"] * 3)
    m.declare("llvm.vector.reduce.add.v8i64", I64, ["<8 x i64>"])
    m.declare("llvm.vector.reduce.umax.v16i32", I32, ["<16 x i32>"])
    m.declare("llvm.umax.v16i32", "<16 x i32>", ["<16 x i32>", "<16 x i32>"])
    m.declare("llvm.umax.i32", I32, [I32, I32])
    m.raw("tw_checksum", _CHECKSUM)
    m.raw("tw_finite", _FINITE)
    params = [("addresses", PTR), ("counts", PTR), ("n", I64)]
    with m.function("tw_first_unfit", I64, params) as (f, (addresses, counts, n)):
        with f.each(n) as i:
            p, count = f.load(PTR, addresses, i * 8), counts[i * 8]
            with f.when(f.call(I64, "tw_finite", p, count).eq(0)):
                f.ret(i)
        f.ret(-1)
