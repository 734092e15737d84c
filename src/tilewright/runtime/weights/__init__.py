"""Live weights: checking, packing, and one place for a model's weights that all processes of a node share.

    check.py      what a user hands in against what the program wants
    packed.py     one version in memory: raw as given, packed as the program reads it
    prepare.py    the program that packs
    control.py    the control page: slots, the current one, readers and their pins
    local.py      the weights of a `Model`, in its own memory
    files.py      a store on disk (or rather in memory): folders, permissions, locks, epochs
    segment.py    packed weights that processes share
    publisher.py  `Publisher`: the one who writes
    actor.py      `Actor`: one of many who read
    stores.py     what `tilewright store` shows and sweeps

Nothing here imports the compiler. docs/store.md has the design.
"""
