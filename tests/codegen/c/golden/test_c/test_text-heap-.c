#include <stdint.h>
#include <stdlib.h>

static inline void *allocate(size_t size) {
    void *memory = malloc(size ? size : 1);
    if (!memory) abort();
    return memory;
}

void heap(const float *restrict A, float *restrict B, int64_t n) {
    float *T = allocate(n * sizeof(float));
    for (int64_t i = 0; i < n; ++i) {
        T[i] = A[n - 1 - i];
    }
    for (int64_t j = 0; j < n; ++j) {
        B[j] = T[j];
    }
    free(T);
}
