"""Weights of a program in one process: checked, packed, and made current by a single store to memory.

    check.py    checks a user's weights against the program's parameters
    packed.py   one version in memory: raw as passed in, and packed as the program reads it
    prepare.py  the program that packs
    control.py  the control page: slots, the current one, readers and their pins
    local.py    the weights of a `Model`, in its own memory

`live/store` does the same for all processes of a node.
"""
