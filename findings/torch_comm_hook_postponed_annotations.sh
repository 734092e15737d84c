#!/usr/bin/env bash
# torch 2.13.0 (CPU): DistributedDataParallel.register_comm_hook refuses a hook with the right annotations if its module says
# `from __future__ import annotations`.
#
# The check compares the annotation of `bucket` with the class `dist.GradBucket` itself. With postponed annotations it is
# the text 'dist.GradBucket', so the hook is refused: "bucket annotation should be dist.GradBucket", which is what it says.
# The same function without annotations, or with evaluated ones, is taken.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy
cat >"$folder/postponed.py" <<'PYTHON'
from __future__ import annotations

import torch
import torch.distributed as dist


def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
PYTHON
sed 1d "$folder/postponed.py" >"$folder/evaluated.py"
cat >"$folder/probe.py" <<'PYTHON'
import sys

import evaluated
import postponed
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def taken(hook):
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    try:
        model.register_comm_hook(None, hook)
    except ValueError as error:
        return str(error)
    return "taken"


dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
got = {module.__name__: taken(module.hook) for module in (postponed, evaluated)}
print(torch.__version__, got)
dist.destroy_process_group()
wanted = {"postponed": "Communication hook: bucket annotation should be dist.GradBucket.", "evaluated": "taken"}
sys.exit(got != wanted)
PYTHON
"$folder/env/bin/python" "$folder/probe.py" "$folder"
