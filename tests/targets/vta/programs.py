"""Programs for the tests: random ones with their memory, and some that compute something known."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.targets.vta.config import Memory
from tilewright.targets.vta.isa import Alu, AluOp, Finish, Gemm, Instruction, Load, Store, Uop, encode_uops

BASE = 4096
Program = list[Instruction]


def random_program(rng: np.random.Generator, length: int) -> tuple[Program, np.ndarray[Any, Any]]:
    """Instructions without tokens, in an order that makes sense, and the image of DRAM from BASE on. Few rows are used,
    so that many instructions depend on each other."""
    uops = [Uop(*(int(rng.integers(0, n)) for n in (24, 24, 6))) for _ in range(12)]
    image = rng.integers(0, 256, 1 << 14, dtype=np.uint8)
    image[:48] = encode_uops(uops).ravel()
    # INP rows of DRAM 260.., WGT rows 18.., ACC rows 68..; results go to a part of their own, which is read again.
    program: Program = [Load(Memory.UOP, 0, BASE // 4, 1, 12, 12)]
    program += [Load(Memory.INP, 0, 300, 1, 60, 60), Load(Memory.WGT, 0, 20, 1, 16, 16)]
    program += [Load(Memory.ACC, 0, 70, 1, 60, 60)]
    program += [_instruction(rng) for _ in range(length)]
    return [*program, Finish()], image


def _instruction(rng: np.random.Generator) -> Instruction:
    def upto(most: int, least: int = 0) -> int:
        return int(rng.integers(least, most + 1))

    kind = rng.choice(["inp", "wgt", "acc", "acc8", "store", "gemm", "alu", "nothing"])
    pads = [upto(2) if rng.random() < 0.3 else 0 for _ in range(4)]
    y, x = upto(3, int(rng.random() < 0.9)), upto(4, 1)
    loops = {"uop_bgn": (b := upto(10)), "uop_end": min(12, b + upto(2)), "iter_out": upto(3), "iter_in": upto(3, 1)}
    steps = {f"{n}_{w}": upto(2) for n in ("dst", "src") for w in ("out", "in")}
    match kind:
        case "inp":
            return Load(Memory.INP, upto(10), 300 + upto(500), y, x, upto(6), *pads)
        case "wgt":
            return Load(Memory.WGT, upto(2), 20 + upto(40), min(y, 2), min(x, 2), upto(3))
        case "acc":
            return Load(Memory.ACC, upto(10), 70 + upto(100), y, x, upto(6), *pads)
        case "acc8":
            return Load(Memory.ACC8, upto(10), 300 + upto(700), y, x, upto(6), *pads)
        case "store":
            return Store(Memory.OUT, upto(20), 700 + upto(200), y, x, upto(6))
        case "gemm":
            return Gemm(**loops, **steps, wgt_out=upto(2), wgt_in=upto(2), reset=rng.random() < 0.2)
        case "alu":
            op = AluOp(upto(4))
            imm = upto(31, -31) if op is AluOp.SHR else upto(30000, -30000)
            # A row that is shifted by another one would need a small number there.
            return Alu(op, **loops, **steps, use_imm=op is AluOp.SHR or rng.random() < 0.5, imm=imm)
    return rng.choice([Load(Memory.INP), Load(Memory.UOP), Store()])


def product(rng: np.random.Generator, rows: int, depth: int, columns: int, shift: int) -> tuple[Any, ...]:
    """A product with its words' text, its image, where its result lies and what it is by NumPy: int8[rows, depth] times
    int8[columns, depth] transposed, shifted right and clipped."""
    x = rng.integers(-128, 128, (rows, depth), np.int8)
    w = rng.integers(-128, 128, (columns, depth), np.int8)
    kb, nb = depth // 16, columns // 16
    packed = w.reshape(nb, 16, kb, 16).transpose(0, 2, 1, 3)
    uops = encode_uops([Uop()])
    image = np.zeros(1 << 16, np.uint8)
    image[:4] = uops.ravel()
    image[4096 : 4096 + x.size] = x.view(np.uint8).ravel()  # INP row 512, [row][block]
    image[16384 : 16384 + w.size] = (
        packed.copy().view(np.uint8).ravel()
    )  # WGT row 80, [block of columns][block][16][16]
    loops = f"uop_bgn=0 uop_end=1 iter_out={rows} iter_in={nb} dst_out={nb} dst_in=1"
    text = f"""load uop dram_base=1024 y_size=1 x_size=1 x_stride=1
load inp dram_base=512 y_size=1 x_size={rows * kb} x_stride={rows * kb}
load wgt dram_base=80 y_size=1 x_size={kb * nb} x_stride={kb * nb} +next
gemm {loops} reset -prev
"""
    for k in range(kb):
        # A list of one micro-operation has no rows of its own: each block of the depth has its own base.
        image[64 * (k + 1) : 64 * (k + 1) + 4] = encode_uops([Uop(0, k, k)]).ravel()
        text += f"load uop dram_base={1024 + 16 * (k + 1)} y_size=1 x_size=1 x_stride=1\n"
        text += f"gemm {loops} src_out={kb} wgt_in={kb}\n"
    text += "load uop dram_base=1024 y_size=1 x_size=1 x_stride=1\n"
    scaled = f"alu {{}} uop_bgn=0 uop_end=1 iter_out={rows} iter_in={nb} dst_out={nb} dst_in=1 use_imm imm={{}}"
    text += "".join(scaled.format(op, imm) + "\n" for op, imm in (("shr", shift), ("min", 127), ("max", -128)))
    text = (
        text[:-1]
        + f""" +next
store out dram_base=2048 y_size=1 x_size={rows * nb} x_stride={rows * nb} -prev +prev
finish -next
"""
    )
    at = 2048 * 16 - BASE
    wanted = np.clip((x.astype(np.int32) @ w.T.astype(np.int32)) >> shift, -128, 127).astype(np.int8)
    return text, image, at, wanted
