/* What a Cortex-M needs before main: a stack, the floating-point unit, memory as C expects it, semihosting. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
extern char __StackTop, __etext, __data_start__, __data_end__, __bss_start__, __bss_end__;
extern int main(int argc, char **argv);
extern void initialise_monitor_handles(void);
static void reset(void) {
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* CPACR: full access to the FPU */
    __asm volatile("dsb\n isb");
    memcpy(&__data_start__, &__etext, (size_t)(&__data_end__ - &__data_start__));
    memset(&__bss_start__, 0, (size_t)(&__bss_end__ - &__bss_start__));
    initialise_monitor_handles();
    char *argv[] = {"main", "io", ARGUMENTS 0}; /* of the test: the sizes of the call */
    exit(main((int)(sizeof argv / sizeof *argv) - 1, argv));
}
static void fault(void) {
    __asm volatile("mov r0, #0x18\n ldr r1, =0x20023\n bkpt 0xab"); /* semihosting: the end, by an error */
    for (;;) {}
}
__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
    &__StackTop, reset, fault, fault, fault, fault, fault};
void _init(void) {}
void _fini(void) {}
