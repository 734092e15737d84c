#!/usr/bin/env bash
# torch 2.13.0 (CPU), backend gloo: all_reduce and broadcast of a tensor whose elements are not side by side give wrong numbers
# and overwrite elements that the tensor does not have; there is no error and no warning.
#
# Gloo takes as many elements as the tensor has from its first one on, whatever its strides say. For `x[:, ::2]` these are
# the first half of x's rows, with the columns between: the first half of the result is right, the second is what it was,
# and the columns between are summed as well. A transposed tensor is right, since all of its elements lie side by side.
# NCCL's backend refuses such tensors ("Tensors must be contiguous").
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy
cat >"$folder/probe.py" <<'PYTHON'
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    x = torch.arange(24.0).reshape(4, 6)
    dist.all_reduce(x[:, ::2])
    y = torch.arange(12.0).reshape(3, 4)
    dist.all_reduce(y.t())
    got = {
        "even columns": x[:, ::2].tolist(),
        "odd columns": x[:, 1::2].tolist(),
        "transposed": torch.equal(y, 2 * torch.arange(12.0).reshape(3, 4)),
    }
    wanted = {
        "even columns": [[0.0, 4.0, 8.0], [12.0, 16.0, 20.0], [12.0, 14.0, 16.0], [18.0, 20.0, 22.0]],
        "odd columns": [[2.0, 6.0, 10.0], [14.0, 18.0, 22.0], [13.0, 15.0, 17.0], [19.0, 21.0, 23.0]],
        "transposed": True,
    }
    if rank == 0:
        print(torch.__version__, got)
    dist.barrier()
    dist.destroy_process_group()
    assert got == wanted


if __name__ == "__main__":
    mp.spawn(run, (sys.argv[1],), nprocs=2)
PYTHON
"$folder/env/bin/python" "$folder/probe.py" "$folder"
