#!/usr/bin/env bash
# torch 2.13.0 (CPU): a process group that is the default one while torch.distributed.nn.functional is imported is never
# freed: destroy_process_group returns, and the group's threads go on.
#
# The functions of that module have `group=group.WORLD` as a default argument, which is the group itself where there is
# one at the time, and None where there is none. torch._dynamo imports the module, and so do the first torch.compile, the
# first torch.export and what else comes to them in a process, mostly after init_process_group. Where the module was
# imported before, threads end. With threads left a process may end by SIGABRT ("terminate called without an active
# exception"), as one that did not destroy its group may.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy
cat >"$folder/probe.py" <<'PYTHON'
import os
import sys

import torch
import torch.distributed as dist

order, path = sys.argv[1:]


def threads():
    names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    return sum("gloo" in name for name in names)


if order == "before":
    import torch.distributed.nn.functional
dist.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)
dist.all_reduce(torch.ones(4))
if order == "after":
    import torch.distributed.nn.functional
if order == "by export":
    torch.export.export(torch.nn.Linear(4, 4), (torch.ones(3, 4),))
held = vars(torch.distributed.nn.functional).values() if "torch.distributed.nn.functional" in sys.modules else ()
kept = [f for f in held if dist.group.WORLD in (getattr(f, "__defaults__", None) or ())]
dist.destroy_process_group()
print(f"imported {order}: {threads()} threads of Gloo's left; functions that hold the group: {len(kept)}", flush=True)
os._exit(0 if (threads() == 0) == (order in ("never", "before")) == (not kept) else 1)
PYTHON
for order in never before after "by export"; do
  "$folder/env/bin/python" "$folder/probe.py" "$order" "$folder/store $order"
done
