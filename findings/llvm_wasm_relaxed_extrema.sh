#!/usr/bin/env bash
# LLVM 22.1.0 (llvmlite 0.50.0), wasm32 with relaxed-simd: an ordered comparison of vectors and a selection of the same two
# values, whose result for NaN the IR states, become f32x4.relaxed_max or relaxed_min, whose result for NaN is not stated.
#
# `select (fcmp olt x, y), y, x` gives x where either is NaN. With simd128 alone the code is f32x4.pmax, which says the same.
# With relaxed-simd it is f32x4.relaxed_max, of which the proposal says that for NaN an engine may give either operand or
# NaN. The flags nnan and nsz are not set. llvm.maximum stays f32x4.max, which is right; llvm.maxnum becomes relaxed_max,
# too, though it states that the operand that is no NaN is given. With llvm.arithmetic.fence around the selected values the
# comparison (f32x4.lt) and the selection (v128.bitselect) stay two instructions.
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
V = "<4 x float>"


def select(compare, yes, no, fence=False):
    text = f"define {V} @f({V} %x, {V} %y) {{\n  %c = fcmp {compare} {V} %x, %y\n"
    if fence:
        text += "".join(f"  %f{n} = call {V} @llvm.arithmetic.fence.v4f32({V} %{n})\n" for n in "xy")
        yes, no = f"f{yes}", f"f{no}"
    text += f"  %r = select <4 x i1> %c, {V} %{yes}, {V} %{no}\n  ret {V} %r\n}}\n"
    return text + (f"declare {V} @llvm.arithmetic.fence.v4f32({V})\n" if fence else "")


def call(name):
    declared = f"declare {V} @llvm.{name}.v4f32({V}, {V})\n"
    return declared + f"define {V} @f({V} %x, {V} %y) {{\n  %r = call {V} @llvm.{name}.v4f32({V} %x, {V} %y)\n  ret {V} %r\n}}\n"


def code(text, features):
    module = llvm.parse_assembly('target triple = "wasm32-unknown-unknown"\n' + text)
    module.verify()
    machine = llvm.Target.from_triple("wasm32-unknown-unknown").create_target_machine(features=features, opt=3)
    return re.findall(r"f32x4\.(?!replace)\w+|v128\.bitselect", machine.emit_assembly(module))


print("llvmlite", llvmlite.__version__, "LLVM", llvm.llvm_version_info)
same = True
for what, text, strict, relaxed in (
    ("x < y ? y : x", select("olt", "y", "x"), ["f32x4.pmax"], ["f32x4.relaxed_max"]),
    ("x > y ? y : x", select("ogt", "y", "x"), ["f32x4.pmin"], ["f32x4.relaxed_min"]),
    ("llvm.maximum", call("maximum"), ["f32x4.max"], ["f32x4.max"]),
    ("x < y ? y : x, fenced", select("olt", "y", "x", True), ["f32x4.lt", "v128.bitselect"], None),
):
    for features, expected in (("+simd128", strict), ("+simd128,+relaxed-simd", relaxed or strict)):
        got = code(text, features)
        print(f"{what}: {features}: {' '.join(got)}")
        same &= got == expected
got = code(call("maxnum"), "+simd128,+relaxed-simd")
print(f"llvm.maxnum: +simd128,+relaxed-simd: {' '.join(got)}")
same &= got == ["f32x4.relaxed_max"]
sys.exit(not same)
PYTHON
