#!/usr/bin/env bash
# LLVM 22.1.0 (llvmlite 0.50.0), x86-64 with AVX-512: the loop vectoriser divides under the condition of the first lane.
#
# `if (b[i] > 0) x = a[m / n]; else x = -1; c[i] = x` has one address in all lanes. The vectorised loop computes m / n in
# a branch that is taken where the first lane's condition holds; where only others' do, they gather from an address that
# was never computed: another number, or a fault. With urem of a constant it is the same. What is asked of LLVM says
# whether the division stands in a block that the first lane alone guards. Without AVX-512 the loop is not vectorised.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet llvmlite==0.50.0
"$folder/env/bin/python" - <<'PYTHON'
import re
import sys

import llvmlite
import llvmlite.binding as llvm

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
TEXT = """
define void @f(ptr noalias readonly %a, ptr noalias %c, ptr noalias readonly %b, i64 %n, i64 %m) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %join ]
  %bp = getelementptr inbounds float, ptr %b, i64 %i
  %bv = load float, ptr %bp
  %is = fcmp ogt float %bv, 0.0
  br i1 %is, label %then, label %join
then:
  %r = udiv i64 %m, %n
  %p = getelementptr inbounds float, ptr %a, i64 %r
  %v = load float, ptr %p
  br label %join
join:
  %x = phi float [ %v, %then ], [ -1.0, %loop ]
  %q = getelementptr inbounds float, ptr %c, i64 %i
  store float %x, ptr %q
  %next = add nuw nsw i64 %i, 1
  %more = icmp slt i64 %next, 64
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


def optimized(cpu):
    module = llvm.parse_assembly(TEXT)
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(cpu=cpu, opt=3)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return str(module)


def guards_of_divisions(text):
    """For each division, the condition of the branch into its block."""
    blocks = dict(re.findall(r"^([\w.]+):.*\n((?:  .*\n)+)", text, re.M))
    names = [name for name, body in blocks.items() if " udiv " in body]
    return [c for n in names for c in re.findall(rf"br i1 (%[\w.]+), label %{re.escape(n)}, ", text)]


print("llvmlite", llvmlite.__version__, "LLVM", llvm.llvm_version_info)
same = True
for cpu, vectorised in (("znver4", True), ("x86-64-v3", False)):
    text = optimized(cpu)
    lanes = re.findall(r"(%[\w.]+) = extractelement <\d+ x i1> %[\w.]+, i(?:32|64) (\d+)", text)
    guards = guards_of_divisions(text)
    first = [dict(lanes).get(g) == "0" for g in guards]
    print(cpu, "vectorised:", "masked.gather" in text, "divisions under the first lane's condition:", sum(first))
    same &= ("masked.gather" in text) == vectorised == (bool(first) and all(first))
sys.exit(not same)
PYTHON
