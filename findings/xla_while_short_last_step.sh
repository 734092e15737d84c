#!/usr/bin/env bash
# jaxlib 0.10.2, CPU: a while loop between constants, whose counter grows by more than 1, ends a step too early where its
# last step is a short one and the bound is near a start that is not positive. No error is raised.
#
# `i = -20; while i < n: i += 10` has one step for n in -19 to -11 and two for n in -9 to -1. Compiled by XLA it has none
# and one. From 0 by 2 to n = 1 it has none. Loops of three steps and more, from a positive start, or whose bound is an
# argument of the function are right, and so is jax.disable_jit. XLA takes a loop of which it believes that it has no step,
# or one, out of the program: no `while` is left in the compiled module.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet jax==0.10.2 jaxlib==0.10.2
JAX_PLATFORMS=cpu "$folder/env/bin/python" - <<'PYTHON'
import sys

import jax
import jax.numpy as jnp
import jaxlib


def steps(start, stop, by):
    def more(state):
        return state[0] < stop

    def step(state):
        return state[0] + by, state[1] + 1

    return jax.lax.while_loop(more, step, (jnp.int32(start), jnp.int32(0)))[1]


print("jax", jax.__version__, "jaxlib", jaxlib.__version__)
same = True
for start, by, stops, lost in (
    (0, 2, range(0, 8), {1}),
    (-20, 10, range(-20, 11), {*range(-19, -10), *range(-9, 0)}),
    (5, 10, range(5, 36), set()),
):
    right = [len(range(start, stop, by)) for stop in stops]
    constant = [int(jax.jit(lambda stop=stop: steps(start, stop, by))()) for stop in stops]
    argument = jax.jit(lambda stop: steps(start, stop, by))
    print(f"from {start} by {by}, bounds {stops[0]} to {stops[-1]}: steps {right}, between constants {constant}")
    same &= constant == [n - (stop in lost) for stop, n in zip(stops, right, strict=True)]
    same &= [int(argument(jnp.int32(stop))) for stop in stops] == right
with jax.disable_jit():
    same &= int(steps(0, 1, 2)) == 1
left = jax.jit(lambda: steps(0, 1, 2)).lower().compile().as_text().count(" while(")
print("loops left in the compiled module:", left)
sys.exit(not (same and left == 0))
PYTHON
