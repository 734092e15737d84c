"""Programs for GPUs, run: the driver's functions by name, memory of the device, weights there, and the native way of a
call, which is one launch of a graph. No toolkit is needed, and no driver before a program is loaded."""
