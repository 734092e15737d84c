"""The small C functions that emitted code may call: one template a family, emitted only when called."""

from __future__ import annotations

from tilewright.ir.dtype import BY_NAME, MINIFLOATS, DType
from tilewright.support.classes import dataclass

VALUE_TYPES: dict[str, str] = {
    "f16": "float",
    "bf16": "float",
    "f32": "float",
    "f64": "double",
    "i2": "int8_t",
    "i4": "int8_t",
    "u2": "uint8_t",
    "u4": "uint8_t",
    **{t.name: "uint8_t" for t in MINIFLOATS},
    "bool": "bool",
} | {f"{sign}{bits}": f"{word}{bits}_t" for sign, word in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)}
"""The C type in which a value is computed, by its element type."""

MEMORY_TYPES = VALUE_TYPES | {"f16": "uint16_t", "bf16": "uint16_t"}
"""The C type of an element in memory. f16 and bf16 are bits there."""


@dataclass(frozen=True, slots=True)
class Helper:
    """A C function's text, and the helpers and headers that it needs."""

    text: str
    needs: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()


def helper(name: str) -> Helper:
    """The helper function named `name`, such as `floordiv_i64`, `min_f32`, `f32_to_i8`, `f16_to_f32`,
    `bits_f32_to_i32`."""
    if name in _SINGLE:
        return _SINGLE[name]
    if name.startswith("bits_"):
        source, target = name.removeprefix("bits_").split("_to_")
        return _bits(name, BY_NAME[source], BY_NAME[target])
    if "_to_" in name:
        source, target = name.split("_to_")
        return _saturating(name, BY_NAME[source], BY_NAME[target])
    family, _, type_name = name.rpartition("_")
    dtype = BY_NAME[type_name]
    template = _FLOAT_FAMILIES[family] if dtype.is_float else _INT_FAMILIES[family]
    fields = {
        "name": name,
        "type": VALUE_TYPES[type_name],
        "unsigned": f"uint{max(8, dtype.bits)}_t",
        "bits": str(dtype.bits),
        "f": "f" if VALUE_TYPES[type_name] == "float" else "",
        "one": "1.0f" if VALUE_TYPES[type_name] == "float" else "1.0",
    }
    text = template.text
    for field, value in fields.items():
        text = text.replace(f"@{field}@", value)
    return Helper(text, headers=template.headers)


_INT_FAMILIES: dict[str, Helper] = {
    "floordiv": Helper(
        """// Rounds to minus infinity; 0 if b is 0.
static inline @type@ @name@(@type@ a, @type@ b) {
    if (b == 0) return 0;
    if (b == -1) return (@type@)(0 - (@unsigned@)a);
    return (@type@)(a / b - (a % b != 0 && (a % b < 0) != (b < 0)));
}"""
    ),
    "mod": Helper(
        """// The remainder of floored division, with the sign of b; 0 if b is 0.
static inline @type@ @name@(@type@ a, @type@ b) {
    if (b == 0 || b == -1) return 0;
    @type@ r = (@type@)(a % b);
    return (@type@)(r != 0 && (r < 0) != (b < 0) ? r + b : r);
}"""
    ),
    "truncdiv": Helper(
        """// Rounds to zero; 0 if b is 0.
static inline @type@ @name@(@type@ a, @type@ b) {
    if (b == 0) return 0;
    return b == -1 ? (@type@)(0 - (@unsigned@)a) : (@type@)(a / b);
}"""
    ),
    "truncmod": Helper(
        """// The remainder of truncated division, with the sign of a; 0 if b is 0.
static inline @type@ @name@(@type@ a, @type@ b) {
    return b == 0 || b == -1 ? 0 : (@type@)(a % b);
}"""
    ),
    "udiv": Helper(
        """// 0 if b is 0.
static inline @type@ @name@(@type@ a, @type@ b) {
    return b == 0 ? 0 : (@type@)(a / b);
}"""
    ),
    "umod": Helper(
        """// 0 if b is 0.
static inline @type@ @name@(@type@ a, @type@ b) {
    return b == 0 ? 0 : (@type@)(a % b);
}"""
    ),
    "shl": Helper(
        """static inline @type@ @name@(@type@ a, @type@ b) {
    return (@unsigned@)b < @bits@ ? (@type@)((@unsigned@)a << b) : 0;
}"""
    ),
    "shr": Helper(
        """static inline @type@ @name@(@type@ a, @type@ b) {
    return (@type@)((@unsigned@)b < @bits@ ? a >> b : a >> (@bits@ - 1) >> 1);
}"""
    ),
    "min": Helper("static inline @type@ @name@(@type@ a, @type@ b) { return a < b ? a : b; }"),
    "max": Helper("static inline @type@ @name@(@type@ a, @type@ b) { return a > b ? a : b; }"),
    "abs": Helper(
        "static inline @type@ @name@(@type@ a) { return (@type@)(a < 0 ? 0 - (@unsigned@)a : (@unsigned@)a); }"
    ),
}

_FLOAT_FAMILIES: dict[str, Helper] = {
    "min": Helper(
        """// NaN if one of them is.
static inline @type@ @name@(@type@ a, @type@ b) { return a < b || a != a ? a : b; }"""
    ),
    "max": Helper(
        """// NaN if one of them is.
static inline @type@ @name@(@type@ a, @type@ b) { return a > b || a != a ? a : b; }"""
    ),
    "larger": Helper("static inline @type@ @name@(@type@ a, @type@ b) { return b > a ? b : a; }"),
    "sigmoid": Helper(
        """static inline @type@ @name@(@type@ x) {
    @type@ e = exp@f@(-fabs@f@(x));
    return x >= 0 ? @one@ / (@one@ + e) : e / (@one@ + e);
}""",
        headers=("math.h",),
    ),
    "scaleb": Helper(
        """static inline @type@ @name@(@type@ x, @type@ n) {
    if (!isfinite(n)) return x * (n < 0 ? 0 : n);
    return ldexp@f@(x, (int)fmax@f@(-5000, fmin@f@(5000, floor@f@(n))));
}""",
        headers=("math.h",),
    ),
    "gelu": Helper(
        """static inline @type@ @name@(@type@ x) {
    double wide = x;
    return (@type@)(0.5 * wide * erfc(wide * -0.70710678118654752));
}""",
        headers=("math.h",),
    ),
    "gelu_tanh": Helper(
        """static inline @type@ @name@(@type@ x) {
    double wide = x, inner = 0.79788456080286536 * (wide + 0.044715 * wide * wide * wide);
    return (@type@)(wide / (1.0 + exp(-2.0 * inner)));
}""",
        headers=("math.h",),
    ),
}

_SINGLE: dict[str, Helper] = {
    "wrap_i2": Helper("static inline int8_t wrap_i2(int x) { return (int8_t)(((x & 3) ^ 2) - 2); }"),
    "wrap_u2": Helper("static inline uint8_t wrap_u2(int x) { return (uint8_t)(x & 3); }"),
    "wrap_i4": Helper(
        "static inline int8_t wrap_i4(int x) { return (int8_t)(((x & 15) ^ 8) - 8); }",
    ),
    "wrap_u4": Helper(
        "static inline uint8_t wrap_u4(int x) { return (uint8_t)(x & 15); }",
    ),
    "f16_to_f32": Helper(
        """static inline float f16_to_f32(uint16_t h) {
    uint32_t exponent = (h >> 10) & 31, fraction = h & 1023;
    float value = exponent == 31 ? (fraction ? NAN : INFINITY)
                : exponent == 0  ? ldexpf((float)fraction, -24)
                                 : ldexpf((float)(fraction + 1024), (int)exponent - 25);
    return h >> 15 ? -value : value;
}""",
        headers=("math.h",),
    ),
    "to_f16": Helper(
        """// Rounds to nearest, ties to even.
static inline uint16_t to_f16(double x) {
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs(x);
    if (x != x) return 0x7e00;
    if (a >= 65520.0) return (uint16_t)(sign | 0x7c00);
    if (a < 0x1p-14) return (uint16_t)(sign | (uint16_t)rint(ldexp(a, 24)));
    int exponent;
    double fraction = frexp(a, &exponent);  // a = fraction * 2^exponent, fraction in [0.5, 1)
    return (uint16_t)(sign | (((exponent + 13) << 10) + (int)rint(ldexp(fraction, 11))));
}""",
        headers=("math.h",),
    ),
    "bf16_to_f32": Helper(
        """static inline float bf16_to_f32(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}""",
        headers=("string.h",),
    ),
    "to_bf16": Helper(
        """// Rounds to nearest, ties to even.
static inline uint16_t to_bf16(double x) {
    float value = (float)x;
    uint32_t bits;
    if (x != x) return 0x7fc0;
    memcpy(&bits, &value, sizeof bits);
    if ((double)value != x && !isinf(value)) {  // round to odd, so that the second rounding is the only one
        if (fabs((double)value) > fabs(x)) --bits;
        bits |= 1;
    }
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}""",
        headers=("math.h", "string.h"),
    ),
    "round_f16": Helper(
        "static inline float round_f16(double x) { return f16_to_f32(to_f16(x)); }", needs=("f16_to_f32", "to_f16")
    ),
    "round_bf16": Helper(
        "static inline float round_bf16(double x) { return bf16_to_f32(to_bf16(x)); }", needs=("bf16_to_f32", "to_bf16")
    ),
    "allocate": Helper(
        """static inline void *allocate(size_t size) {
    void *memory = malloc(size ? size : 1);
    if (!memory) abort();
    return memory;
}""",
        headers=("stdlib.h",),
    ),
}


def _saturating(name: str, source: DType, target: DType) -> Helper:
    """The helper `name`, which converts a float of type `source` to an integer of type `target`: it truncates and
    saturates, and NaN gives 0."""
    lo, hi = int(target.min), int(target.max)
    # hi + 1 and lo are powers of two (or 0), so they are exact in every float type.
    kind, suffix = ("double", "") if source.name == "f64" else ("float", "f")
    result = VALUE_TYPES[target.name]
    top = f"{result.removesuffix('_t').upper()}_MAX" if target.bits >= 8 else str(hi)
    bottom = f"{result.removesuffix('_t').upper()}_MIN" if target.bits >= 8 and lo else str(lo)
    return Helper(
        f"""// Truncates and saturates; NaN gives 0.
static inline {result} {name}({kind} x) {{
    if (x != x) return 0;
    if (x <= {float(lo).hex()}{suffix}) return {bottom};
    return x >= {float(hi + 1).hex()}{suffix} ? {top} : ({result})x;
}}"""
    )


def _bits(name: str, source: DType, target: DType) -> Helper:
    """The helper `name`, which reinterprets the bits of a `source` value as `target`. f16 and bf16 values, which are
    computed as float, are converted to their bits in memory and back."""
    memory = {**MEMORY_TYPES}
    enter = f"to_{source.name}(x)" if memory[source.name] != VALUE_TYPES[source.name] else "x"
    leave = f"{target.name}_to_f32(y)" if memory[target.name] != VALUE_TYPES[target.name] else "y"
    needs = tuple(call.partition("(")[0] for call in (enter, leave) if "(" in call)
    return Helper(
        f"""static inline {VALUE_TYPES[target.name]} {name}({VALUE_TYPES[source.name]} x) {{
    {memory[source.name]} from = {enter};
    {memory[target.name]} y;
    memcpy(&y, &from, sizeof y);
    return {leave};
}}""",
        needs,
        ("string.h",),
    )
