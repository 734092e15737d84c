#!/usr/bin/env bash
# LLVM 22.1.0 (llvmlite 0.50.0), x86-64 with AVX512-VNNI or AVX-VNNI: a sum of products of an unsigned and a signed byte
# across 8, 16 or 32 lanes, written as halves that are added in ever narrower vectors, is the sum of the first four alone.
#
# zext of u8 times sext of i8 in <16 x i32>; then lanes 0 to 7 plus lanes 8 to 15 as <8 x i32>, and so on to one number.
# That is valid IR, and without VNNI its code is right. With it the code is one vpdpbusd, which sums four neighbouring
# products into each 32-bit lane, and a move of the first lane: the other lanes are added to nothing. Four lanes are right
# (there is one sum of four), so are two factors of one kind of extension, and llvm.vector.reduce.add of the same product.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet llvmlite==0.50.0
"$folder/env/bin/python" - <<'PYTHON'
import ctypes
import sys

import llvmlite
import llvmlite.binding as llvm

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()


def places(first, end):
    return ", ".join(f"i32 {k}" for k in range(first, end))


def function(lanes, *, narrowing, second="sext"):
    t = f"<{lanes} x i32>"
    lines = ["define i32 @f(ptr %p, ptr %q) {"]
    lines += [f"  %{name} = load <{lanes} x i8>, ptr %{at}, align 1" for name, at in (("u", "p"), ("v", "q"))]
    lines += [f"  %a = zext <{lanes} x i8> %u to {t}", f"  %b = {second} <{lanes} x i8> %v to {t}"]
    lines += [f"  %s{lanes} = mul {t} %a, %b"]
    if not narrowing:
        lines += [f"  %r = call i32 @llvm.vector.reduce.add.v{lanes}i32({t} %s{lanes})"]
    while narrowing and lanes > 1:
        half, t = lanes // 2, f"<{lanes} x i32>"
        for name, first in (("l", 0), ("h", half)):
            mask = f"<{half} x i32> <{places(first, first + half)}>"
            lines += [f"  %{name}{half} = shufflevector {t} %s{lanes}, {t} poison, {mask}"]
        lines += [f"  %s{half} = add <{half} x i32> %l{half}, %h{half}"]
        lanes = half
    lines += ["  %r = extractelement <1 x i32> %s1, i32 0"] if narrowing else []
    return "\n".join([*lines, "  ret i32 %r", "}"])


def compiled(text, cpu):
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(cpu=cpu, opt=3)
    return module, machine


def adds_lanes(text, cpu):
    """Whether the code adds lanes, and whether it has vpdpbusd."""
    module, machine = compiled(text, cpu)
    code = machine.emit_assembly(module)
    return any(add in code for add in ("vpaddd", "vphaddd", "vpsadbw")), "vpdpbusd" in code


def result(text, lanes):
    module, machine = compiled(text, llvm.get_host_cpu_name())
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    f = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(engine.get_function_address("f"))
    p, q = (ctypes.c_uint8 * lanes)(*range(1, lanes + 1)), (ctypes.c_int8 * lanes)(*[1] * lanes)
    return f(ctypes.addressof(p), ctypes.addressof(q))


print("llvmlite", llvmlite.__version__, "LLVM", llvm.llvm_version_info)
features = llvm.get_host_cpu_features()
runs = llvm.get_process_triple().startswith("x86_64-") and bool(features.get("avx512vnni"))
same = True
for lanes in (8, 16, 32):
    for cpu, narrowing, expected in (
        ("znver4", True, (False, True)),
        ("znver4", False, (True, True)),
        ("x86-64-v3", True, (True, False)),
    ):
        got = adds_lanes(function(lanes, narrowing=narrowing), cpu)
        print(lanes, "lanes", cpu, "narrowing" if narrowing else "reduce.add", "adds lanes, has vpdpbusd:", got)
        same &= got == expected
    same &= adds_lanes(function(lanes, narrowing=True, second="zext"), "znver4")[0]
    if runs:
        sums = [result(function(lanes, narrowing=narrowing), lanes) for narrowing in (True, False)]
        print(lanes, "lanes: the sum of 1 to", lanes, "narrowing", sums[0], "reduce.add", sums[1])
        same &= sums == [10, lanes * (lanes + 1) // 2]
print("run here" if runs else "not run: no AVX512-VNNI here")
sys.exit(not same)
PYTHON
