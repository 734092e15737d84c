#include <math.h>
#include <stdint.h>

void softmax(const float *restrict X, float *restrict Y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {  // parallel
        _Alignas(64) float E[16];
        float total[1];
        total[0] = 0.0f;
        for (int64_t j = 0; j < 16; ++j) {
            E[j] = expf(X[i * 16 + j]);
            total[0] = total[0] + E[j];
        }
        for (int64_t k = 0; k < 16; ++k) {
            Y[i * 16 + k] = E[k] / total[0];
        }
    }
}
