"""Running programs on GPUs: the driver's functions, device memory, weights on the device, and native calls, each of
which launches one CUDA graph. No toolkit is needed, and no driver before a program is loaded."""
