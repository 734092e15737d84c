#include <math.h>
#include <stdbool.h>
#include <stdint.h>

static inline float f16_to_f32(uint16_t h) {
    uint32_t exponent = (h >> 10) & 31, fraction = h & 1023;
    float value = exponent == 31 ? (fraction ? NAN : INFINITY)
                : exponent == 0  ? ldexpf((float)fraction, -24)
                                 : ldexpf((float)(fraction + 1024), (int)exponent - 25);
    return h >> 15 ? -value : value;
}

// Rounds to nearest, ties to even.
static inline uint16_t to_f16(double x) {
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs(x);
    if (x != x) return 0x7e00;
    if (a >= 65520.0) return (uint16_t)(sign | 0x7c00);
    if (a < 0x1p-14) return (uint16_t)(sign | (uint16_t)rint(ldexp(a, 24)));
    int exponent;
    double fraction = frexp(a, &exponent);  // a = fraction * 2^exponent, fraction in [0.5, 1)
    return (uint16_t)(sign | (((exponent + 13) << 10) + (int)rint(ldexp(fraction, 11))));
}

static inline float round_f16(double x) { return f16_to_f32(to_f16(x)); }

// NaN if one of them is.
static inline float max_f32(float a, float b) { return a > b || a != a ? a : b; }

// The remainder of floored division, with the sign of b; 0 if b is 0.
static inline int64_t mod_i64(int64_t a, int64_t b) {
    if (b == 0 || b == -1) return 0;
    int64_t r = (int64_t)(a % b);
    return (int64_t)(r != 0 && (r < 0) != (b < 0) ? r + b : r);
}

// Truncates and saturates; NaN gives 0.
static inline int32_t f32_to_i32(float x) {
    if (x != x) return 0;
    if (x <= -0x1.0000000000000p+31f) return INT32_MIN;
    return x >= 0x1.0000000000000p+31f ? INT32_MAX : (int32_t)x;
}

void odd_name(
    uint16_t *restrict A,
    int32_t *restrict I,
    uint8_t *restrict for_,
    const bool *restrict M,
    int64_t n
) {
    for (int64_t i = 0; i < 4; ++i) {
        for (int64_t j = 0; j < n; ++j) {
            const float s = round_f16(f16_to_f32(A[i * n + j]) * 0.5f);
            if (M[j] && !(i < 2 || I[j] < 0)) {
                A[i * n + j] = to_f16(max_f32(s, round_f16((float)I[j])));
            } else if (i == 3) {
                A[i * n + j] = to_f16(j % 2 == 0 ? s : -s);
            } else {
                I[j] = (int32_t)((uint32_t)I[j] * 3u + (uint32_t)(int32_t)(i / 2) - (uint32_t)f32_to_i32(f16_to_f32(A[i * n + mod_i64(j + i - 3, n)])));
            }
            for_[i] = (uint8_t)(for_[i] + 200);
        }
    }
}
