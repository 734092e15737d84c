"""Tests whose programs run on other machines: `python -m tests.emulated`, a part of `make targets`.

    machines.py   the machines: a target, how a program for it is linked, what runs it (qemu-user, Node, wasmtime)
    library.py    a program's code in a process of the emulator, with the face of `runtime/program.py`'s library
    runner.c runner.mjs runner_wasmtime.py    what reads calls from a pipe there
    plugin.py     for pytest: `-p tests.emulated.plugin --emulator neoverse-n1`

Compiler and runtime are the usual ones, on this machine. A call's buffers go to the emulator's process and come back,
so that each test compares the other machine's code with its own reference.
"""
