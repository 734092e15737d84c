#include <stdint.h>

void add(const float *restrict A, const float *restrict B, float *restrict C, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        C[i] = A[i] + B[i];
    }
}
