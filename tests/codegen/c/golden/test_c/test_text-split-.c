#include <stdint.h>

void add(const float *restrict A, const float *restrict B, float *restrict C, int64_t n) {
    for (int64_t io = 0; io < (n + 31) / 32; ++io) {  // parallel
        for (int64_t ii = 0; ii < 32; ++ii) {  // vectorized
            if (io * 32 + ii < n) {
                C[io * 32 + ii] = A[io * 32 + ii] + B[io * 32 + ii];
            }
        }
    }
}
