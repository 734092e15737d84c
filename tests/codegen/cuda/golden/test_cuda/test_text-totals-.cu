#include <stdint.h>

extern "C" __global__ void totals(const float *__restrict__ X, float *__restrict__ Y) {
    const int64_t i_1 = blockIdx.x;
    __shared__ float T[1];
    __shared__ float T_rf[8];
    const int64_t k_1 = threadIdx.x;
    T_rf[k_1] = 0.0f;
    for (int64_t k_0 = 0; k_0 < 5; ++k_0) {
        T_rf[k_1] = T_rf[k_1] + X[i_1 * 40 + (k_0 * 8 + k_1)];
    }
    if (threadIdx.x == 0) {
        T[0] = 0.0f;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int64_t k_1_1 = 0; k_1_1 < 8; ++k_1_1) {
            T[0] = T[0] + T_rf[k_1_1];
        }
    }
    __syncthreads();
    for (int64_t j_0 = 0; j_0 < 5; ++j_0) {
        const int64_t j_1 = threadIdx.x;
        Y[i_1 * 40 + (j_0 * 8 + j_1)] = X[i_1 * 40 + (j_0 * 8 + j_1)] / T[0];
    }
}

extern "C" void totals_launch(const float *X, float *Y, cudaStream_t stream) {
    totals<<<dim3((unsigned)(3), 1, 1), dim3(8, 1, 1), 0, stream>>>(X, Y);
}
