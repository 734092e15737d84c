/* The instructions of AMX that generated code has, as Intel's manual defines them (Software Developer's Manual, volume 2,
   TDPBF16PS, TDPFP16PS, TDPBUSD, TILELOADD, TILESTORED, TILEZERO, LDTILECFG): eight registers of sixteen rows of 64
   bytes, for each thread. TDPBF16PS takes subnormal numbers as zero, TDPFP16PS those of half precision as they are.
   Both make none, round to nearest even whatever the process asks for, and have a sum for each side of the pairs. */
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { ROWS = 16, BYTES = 64, WORDS = BYTES / 4 };
static _Thread_local union { uint8_t bytes[8][ROWS][BYTES]; float sums[8][ROWS][WORDS]; int32_t counts[8][ROWS][WORDS]; } tiles;
static _Thread_local int configured;
long tw_amx_products, tw_amx_loads;

/* Where this is not 0, registers of f32 have sums in double precision beside them, which are what is stored. */
long tw_amx_exact;
static _Thread_local double wide[8][ROWS][WORDS];

/* A second level of cache of so many sets of 16 ways, which only loads of registers fill: the lines that it lacked. */
enum { WAYS = 16, MOST_SETS = 4096 };
long tw_amx_sets, tw_amx_misses;
static uintptr_t lines[MOST_SETS][WAYS];

static void touch(const char *address) {
    uintptr_t line = (uintptr_t)address / BYTES, *set = lines[line % tw_amx_sets];
    int way = 0;
    while (way < WAYS - 1 && set[way] != line) way++;
    tw_amx_misses += set[way] != line;
    memmove(set + 1, set, way * sizeof *set);  /* the line that was used longest ago goes */
    set[0] = line;
}

static inline float flushed(uint32_t bits) {
    uint32_t kept = (bits & 0x7f800000u) ? bits : bits & 0x80000000u;
    float value;
    memcpy(&value, &kept, 4);
    return value;
}

static inline float flush(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return flushed(bits);
}

void tw_amx_ldtilecfg(const uint8_t *table) {
    configured = table[0] == 1;
    for (int t = 0; t < 8; t++) configured &= table[16 + 2 * t] == BYTES && table[48 + t] == ROWS;
    memset(&tiles, 0, sizeof tiles);
}

void tw_amx_tilerelease(void) { configured = 0; }

static int ready(void) {
    if (!configured) __builtin_trap();
    return 1;
}

void tw_amx_tilezero(uint8_t t) { ready(); memset(tiles.bytes[t], 0, sizeof tiles.bytes[t]); memset(wide[t], 0, sizeof wide[t]); }

void tw_amx_tileloadd64(uint8_t t, const char *from, int64_t stride) {
    ready();
    tw_amx_loads++;
    for (int i = 0; i < ROWS; i++) memcpy(tiles.bytes[t][i], from + i * stride, BYTES);
    for (int i = 0; i < ROWS && tw_amx_sets; i++) touch(from + i * stride);
}

void tw_amx_tilestored64(uint8_t t, char *to, int64_t stride) {
    ready();
    for (int i = 0; i < ROWS && tw_amx_exact; i++)
        for (int n = 0; n < WORDS; n++) tiles.sums[t][i][n] = (float)wide[t][i][n];
    for (int i = 0; i < ROWS; i++) memcpy(to + i * stride, tiles.bytes[t][i], BYTES);
}

/* Half precision: numbers below 2^-14 are multiples of 2^-24. */
static inline float from_half(uint32_t bits) {
    uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023, wide;
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f;
    wide = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

static inline float number(uint32_t pair, int second, int half) {
    if (half) return from_half(second ? pair >> 16 : pair & 0xffffu);
    return flushed(second ? pair & 0xffff0000u : pair << 16);
}

static void multiply(uint8_t c, uint8_t a, uint8_t b, int half) {
    ready();
    tw_amx_products++;
    float right[WORDS][2][WORDS];
    for (int k = 0; k < WORDS; k++)
        for (int n = 0; n < WORDS; n++) {
            uint32_t pair;
            memcpy(&pair, &tiles.bytes[b][k][4 * n], 4);
            for (int s = 0; s < 2; s++) right[k][s][n] = number(pair, s, half);
        }
    for (int m = 0; m < ROWS; m++) {
        float sums[2][WORDS] = {{0}};
        for (int k = 0; k < WORDS; k++) {
            uint32_t pair;
            memcpy(&pair, &tiles.bytes[a][m][4 * k], 4);
            float left[2] = {number(pair, 0, half), number(pair, 1, half)};
            for (int s = 0; s < 2; s++)
                for (int n = 0; n < WORDS; n++) sums[s][n] = flush(fmaf(left[s], right[k][s][n], sums[s][n]));
            for (int s = 0; s < 2 && tw_amx_exact; s++)
                for (int n = 0; n < WORDS; n++) wide[c][m][n] += (double)left[s] * right[k][s][n];
        }
        for (int n = 0; n < WORDS; n++)
            tiles.sums[c][m][n] = flush(flush(tiles.sums[c][m][n]) + flush(sums[0][n] + sums[1][n]));
    }
}

void tw_amx_tdpbf16ps(uint8_t c, uint8_t a, uint8_t b) { multiply(c, a, b, 0); }

void tw_amx_tdpfp16ps(uint8_t c, uint8_t a, uint8_t b) { multiply(c, a, b, 1); }

void tw_amx_tdpbusd(uint8_t c, uint8_t a, uint8_t b) {
    ready();
    for (int m = 0; m < ROWS; m++)
        for (int k = 0; k < WORDS; k++)
            for (int n = 0; n < WORDS; n++)
                for (int s = 0; s < 4; s++)
                    tiles.counts[c][m][n] += tiles.bytes[a][m][4 * k + s] * (int8_t)tiles.bytes[b][k][4 * n + s];
}
