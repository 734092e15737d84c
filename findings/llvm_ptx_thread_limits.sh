#!/usr/bin/env bash
# llvmlite 0.50.0 (LLVM 22.1) and ptxas 13.0.88: a kernel that has both "nvvm.maxntid" and "nvvm.reqntid" is valid to LLVM,
# which prints both directives, and what it printed is refused by ptxas, even where the two numbers are equal:
#   error   : Conflicting directives: .maxntid and .reqntid cannot both be specified
# Neither attribute's description says that they exclude each other, and the verifier passes. Each alone is assembled. A
# writer of LLVM text that knows the exact number of threads gives "nvvm.reqntid" alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet llvmlite==0.50.0 nvidia-cuda-nvcc==13.0.88
cd "$folder"
"$folder/env/bin/python" - <<'PYTHON'
import subprocess
import sys
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
TRIPLE = "nvptx64-nvidia-cuda"
machine = llvm.Target.from_triple(TRIPLE).create_target_machine(cpu="sm_90", features="+ptx86", opt=2)
ptxas = next(Path(sys.prefix).rglob("ptxas"))
got = {}
for names in (("maxntid",), ("reqntid",), ("maxntid", "reqntid")):
    attributes = " ".join(f'"nvvm.{name}"="128"' for name in names)
    module = llvm.parse_assembly(f"""target triple = "{TRIPLE}"
define ptx_kernel void @k(ptr addrspace(1) %x) {attributes} {{
  store i32 1, ptr addrspace(1) %x
  ret void
}}""")
    module.verify()
    text = machine.emit_assembly(module)
    Path("kernel.ptx").write_text(text)
    printed = tuple(name for name in names if f".{name} 128" in text)
    done = subprocess.run([ptxas, "-arch=sm_90", "kernel.ptx", "-o", "kernel.cubin"], capture_output=True, text=True)
    output = done.stdout + done.stderr
    refused = "Conflicting directives" in output
    got[names] = printed, "refused" if refused else "assembled" if done.returncode == 0 else output
print(llvmlite.__version__, llvm.llvm_version_info, got)
wanted = {names: (names, "refused" if len(names) == 2 else "assembled") for names in got}
sys.exit(got != wanted)
PYTHON
