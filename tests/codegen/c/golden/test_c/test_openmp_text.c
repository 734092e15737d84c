#include <omp.h>
#include <stdint.h>

// T: a workspace of m * nthreads * 4 bytes at a multiple of 64
void rows(
    const float *restrict A,
    float *restrict B,
    float *restrict T,
    int64_t n,
    int64_t m,
    int64_t nthreads
) {
    #pragma omp parallel for num_threads((int)nthreads)
    for (int64_t i_1 = 0; i_1 < n; ++i_1) {
        const int64_t tid = omp_get_thread_num();
        B[i_1] = 0.0f;
        for (int64_t j_0 = 0; j_0 < m / 16; ++j_0) {
            #pragma omp simd
            for (int64_t j_1 = 0; j_1 < 16; ++j_1) {
                T[tid * m + (j_0 * 16 + j_1)] = A[i_1 * m + (j_0 * 16 + j_1)] * 2.0f;
            }
            for (int64_t k_1 = 0; k_1 < 16; ++k_1) {  // vectorized
                B[i_1] = B[i_1] + T[tid * m + (j_0 * 16 + k_1)];
            }
        }
    }
}
