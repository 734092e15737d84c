#include <stdint.h>

extern "C" __global__ void gemm(
    const float *__restrict__ X,
    const float *__restrict__ Y,
    float *__restrict__ Z
) {
    const int64_t Z_local_0_0 = blockIdx.y;
    const int64_t Z_local_1_0 = blockIdx.x;
    float Z_local[1];
    const int64_t i_init = threadIdx.y;
    const int64_t j_init = threadIdx.x;
    Z_local[0] = 0.0f;
    for (int64_t k_0 = 0; k_0 < 3; ++k_0) {
        __shared__ float X_shared[16];
        __shared__ float Y_shared[16];
        const int64_t X_0 = threadIdx.y;
        const int64_t X_1 = threadIdx.x;
        X_shared[X_0 * 4 + X_1] = X[(Z_local_0_0 * 4 + X_0) * 12 + (k_0 * 4 + X_1)];
        const int64_t Y_0 = threadIdx.y;
        const int64_t Y_1 = threadIdx.x;
        Y_shared[Y_0 * 4 + Y_1] = Y[(k_0 * 4 + Y_0) * 12 + (Z_local_1_0 * 4 + Y_1)];
        __syncthreads();
        const int64_t i = threadIdx.y;
        const int64_t j = threadIdx.x;
        for (int64_t k_1 = 0; k_1 < 4; ++k_1) {
            Z_local[0] = Z_local[0] + X_shared[i * 4 + k_1] * Y_shared[k_1 * 4 + j];
        }
        __syncthreads();
    }
    const int64_t Z_local_0_1 = threadIdx.y;
    const int64_t Z_local_1_1 = threadIdx.x;
    Z[(Z_local_0_0 * 4 + Z_local_0_1) * 12 + (Z_local_1_0 * 4 + Z_local_1_1)] = Z_local[0];
}

extern "C" void gemm_launch(const float *X, const float *Y, float *Z, cudaStream_t stream) {
    gemm<<<dim3((unsigned)(3), (unsigned)(3), 1), dim3(4, 4, 1), 0, stream>>>(X, Y, Z);
}
