"""Software conversions of f16, which LLVM's code calls on machines without instructions for them.

The compiler's own library has them on some machines only: WebAssembly has no such library, RISC-V's before GCC 13 lacks
them.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.targets.abi import passes_float16_in_float_registers

NAMES = ("__extendhfsf2", "__truncsfhf2", "__truncdfhf2")
"""The names of the functions that convert f16 to f32, f32 to f16 and f64 to f16."""


def calls_float16_conversions(objects: Mapping[str, bytes]) -> bool:
    """Whether some object may call a function that converts between f16 and wider floats (`NAMES`)."""
    return any(name.encode() in image for image in objects.values() for name in NAMES)


def float16_conversions(triple: str) -> str:
    """LLVM text of the functions that convert between f16 and wider floats (`NAMES`). Numbers are scaled by a power of
    two to f32, and rounded to nearest even on their bits, or, below the least normal one, by adding 1/2, whose last bit
    is that of the least f16. Of f64 a number is first rounded to odd, so that it is rounded once."""
    text = _TEXT
    if passes_float16_in_float_registers(triple):
        text = text.replace("i16 zeroext %half)", "half %given)").replace("zeroext i16 @", "half @")
        text = text.replace("  %word =", "  %half = bitcast half %given to i16\n  %word =")
        text = text.replace(
            "  %result = trunc i32 %all to i16",
            "  %made = trunc i32 %all to i16\n  %result = bitcast i16 %made to half",
        )
        text = text.replace("ret i16", "ret half")
    return f'target triple = "{triple}"\n\n{text}'


_TEXT = """\
define weak float @__extendhfsf2(i16 zeroext %half) nounwind {
  %word = zext i16 %half to i32
  %size = and i32 %word, 32767
  %shifted = shl i32 %size, 13
  %small = bitcast i32 %shifted to float
  %scaled = fmul float %small, 0x46F0000000000000
  %number = bitcast float %scaled to i32
  %special = icmp uge i32 %size, 31744
  %infinite = or i32 %shifted, 2139095040
  %magnitude = select i1 %special, i32 %infinite, i32 %number
  %sign = and i32 %word, 32768
  %high = shl i32 %sign, 16
  %bits = or i32 %magnitude, %high
  %result = bitcast i32 %bits to float
  ret float %result
}

define weak zeroext i16 @__truncsfhf2(float %x) nounwind {
  %bits = bitcast float %x to i32
  %size = and i32 %bits, 2147483647
  %high = lshr i32 %bits, 16
  %sign = and i32 %high, 32768
  %last = lshr i32 %size, 13
  %odd = and i32 %last, 1
  %rebased = sub i32 %size, 939524096
  %half = add i32 %rebased, 4095
  %rounded = add i32 %half, %odd
  %normal = lshr i32 %rounded, 13
  %positive = bitcast i32 %size to float
  %sum = fadd float %positive, 5.0e-1
  %sumbits = bitcast float %sum to i32
  %denormal = sub i32 %sumbits, 1056964608
  %is_small = icmp ult i32 %size, 947912704
  %finite = select i1 %is_small, i32 %denormal, i32 %normal
  %is_large = icmp uge i32 %size, 1199566848
  %bounded = select i1 %is_large, i32 31744, i32 %finite
  %payload = and i32 %last, 1023
  %nan = or i32 %payload, 32256
  %is_nan = icmp ugt i32 %size, 2139095040
  %magnitude = select i1 %is_nan, i32 %nan, i32 %bounded
  %all = or i32 %magnitude, %sign
  %result = trunc i32 %all to i16
  ret i16 %result
}

define weak zeroext i16 @__truncdfhf2(double %x) nounwind {
  %near = fptrunc double %x to float
  %back = fpext float %near to double
  %bits = bitcast float %near to i32
  %off = fcmp one double %back, %x
  %low = and i32 %bits, 1
  %even = icmp eq i32 %low, 0
  %size = bitcast double %x to i64
  %found = bitcast double %back to i64
  %size_of = and i64 %size, 9223372036854775807
  %found_of = and i64 %found, 9223372036854775807
  %below = icmp ult i64 %found_of, %size_of
  %step = select i1 %below, i32 1, i32 -1
  %moved = add i32 %bits, %step
  %change = and i1 %off, %even
  %chosen = select i1 %change, i32 %moved, i32 %bits
  %odd = bitcast i32 %chosen to float
  %result = call zeroext i16 @__truncsfhf2(float %odd)
  ret i16 %result
}
"""

__all__ = ["calls_float16_conversions", "float16_conversions"]
