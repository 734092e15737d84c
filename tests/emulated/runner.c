/* Serves calls of a program's entries on a pipe: numbers are int64, data follows (library.py says what). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
void tw_run(void **slots, const int64_t *dims, int64_t tid, int64_t nthreads, void *barrier);
void tw_prepare(void **slots, const int64_t *dims, int64_t tid, int64_t nthreads, void *barrier);
void tw_shapes(const int64_t *dims, int64_t *out);
void tw_control(void *control, int64_t limit);
enum { INPUT = 1, OUTPUT = 2 };
static void get(void *data, int64_t count) {
    if (count && fread(data, 1, (size_t)count, stdin) != (size_t)count) exit(0);
}
static int64_t number(void) {
    int64_t value;
    get(&value, 8);
    return value;
}
/* Memory in whole pages, after it and before it one that no access is allowed to. Buffers end, but for their alignment, where
   theirs does; what no call has written is 0xff: floats that are no numbers. */
enum { PAGE = 4096, ALIGNMENT = 64 };
static size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }
static size_t mapped(size_t bytes) { return rounded(bytes, PAGE) + 2 * PAGE; }
static char *guarded(size_t bytes) {
    char *pages = mmap(0, mapped(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) exit(3);
    if (bytes && mprotect(pages + PAGE, rounded(bytes, PAGE), PROT_READ | PROT_WRITE)) exit(3); /* qemu refuses zero */
    memset(pages + PAGE, 0xff, rounded(bytes, PAGE));
    return pages + PAGE + rounded(bytes, PAGE) - rounded(bytes, ALIGNMENT);
}
static void release(char *data, size_t bytes) {
    munmap(data + rounded(bytes, ALIGNMENT) - rounded(bytes, PAGE) - PAGE, mapped(bytes));
}
int main(void) {
    for (;;) {
        int64_t function = number(), limit = number(), dims = number();
        int64_t *sizes = calloc((size_t)dims + 1, 8);
        get(sizes, 8 * dims);
        int64_t count = number();
        int64_t *bytes = calloc((size_t)count + 1, 16);
        get(bytes, 16 * count);
        void **slots = calloc((size_t)count + 1, sizeof *slots);
        for (int64_t k = 0; k < count; ++k) {
            slots[k] = guarded((size_t)bytes[2 * k]);
            if (bytes[2 * k + 1] & INPUT) get(slots[k], bytes[2 * k]);
        }
        static _Alignas(64) int64_t control[16];
        tw_control(control, limit);
        slots[count] = control;
        if (function == 0) tw_run(slots, sizes, 0, 1, 0);
        if (function == 1) tw_prepare(slots, sizes, 0, 1, 0);
        if (function == 2) tw_shapes(sizes, slots[0]);
        for (int64_t k = 0; k < count; ++k) {
            if (bytes[2 * k + 1] & OUTPUT) fwrite(slots[k], 1, (size_t)bytes[2 * k], stdout);
            release(slots[k], (size_t)bytes[2 * k]);
        }
        fwrite(control, 8, 16, stdout);
        fflush(stdout);
        free(sizes);
        free(bytes);
        free(slots);
    }
}
