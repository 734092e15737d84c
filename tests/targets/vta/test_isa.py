"""Words, fields and text of VTA's instructions."""

import numpy as np
import pytest

from tilewright.support.errors import ParseError, TargetError
from tilewright.targets.vta import Alu, AluOp, Config, Finish, Gemm, Load, Memory, Store, Tokens, decode, encode
from tilewright.targets.vta.assembly import assemble, disassemble
from tilewright.targets.vta.isa import Opcode, Uop, decode_uops, encode_uops, fields, opcodes, pack, unpack, uop_fields


def words_of(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 256, (count, 16), dtype=np.uint8)
    words[:, 0] = words[:, 0] & 0xF8 | rng.integers(0, 5, count, dtype=np.uint8)
    return words


def test_fields_of_random_words_come_back() -> None:
    words = words_of(100_000)
    codes = opcodes(words)
    for code in Opcode:
        mine = words[codes == code]
        values = unpack(mine, fields(code))
        rebuilt = pack(values, fields(code))
        for name, column in unpack(rebuilt, fields(code)).items():
            assert np.array_equal(column, values[name]), (code, name)
        used = pack({n: np.full(1, (1 << abs(b)) - 1 if b > 0 else -1) for n, b in fields(code) if n}, fields(code))
        assert np.array_equal(rebuilt, mine & used)  # unused bits become 0, all others stay


def test_instructions_of_random_words_come_back_also_as_text() -> None:
    words = words_of(3000, 1)
    memory = (words[:, 0] >> 7 | words[:, 1] << 1) & 7
    words = words[~((opcodes(words) < 2) & (memory > 5)) & ~((opcodes(words) == 4) & ((words[:, 13] >> 4 & 7) > 4))]
    program = decode(words)
    assert len(program) > 2000
    assert decode(encode(program)) == program
    assert assemble(disassemble(program)) == program


def test_a_word_bit_by_bit() -> None:
    load = Load(Memory.WGT, 0x1234, 0x89ABCDEF, 2, 3, 4, 5, 6, 7, 8, Tokens(pop_next=True, push_next=True))
    low = 0 | 1 << 4 | 1 << 6 | 1 << 7 | 0x1234 << 10 | 0x89ABCDEF << 26
    high = 2 | 3 << 16 | 4 << 32 | 5 << 48 | 6 << 52 | 7 << 56 | 8 << 60
    assert bytes(encode([load])[0]) == low.to_bytes(8, "little") + high.to_bytes(8, "little")
    gemm = Gemm(5, 9, 3, 2, 1, 2, 3, 4, 5, 6, reset=True, tokens=Tokens(pop_prev=True))
    low = 2 | 1 << 3 | 1 << 7 | 5 << 8 | 9 << 21 | 3 << 35 | 2 << 49
    high = 1 | 2 << 11 | 3 << 22 | 4 << 33 | 5 << 44 | 6 << 54
    assert bytes(encode([gemm])[0]) == low.to_bytes(8, "little") + high.to_bytes(8, "little")
    alu = Alu(AluOp.SHR, 0, 1, 1, 16, 0, 1, 0, 1, use_imm=True, imm=-8)
    low, high = 4 | 1 << 21 | 1 << 35 | 16 << 49, 1 << 11 | 1 << 33 | 3 << 44 | 1 << 47 | 0xFFF8 << 48
    assert bytes(encode([alu])[0]) == low.to_bytes(8, "little") + high.to_bytes(8, "little")
    uops = [Uop(2047, 1, 1023), Uop(3, 2, 1)]
    assert encode_uops(uops).view("<u4").ravel().tolist() == [2047 | 1 << 11 | 1023 << 22, 3 | 2 << 11 | 1 << 22]
    assert decode_uops(encode_uops(uops)) == uops


def test_other_sizes_have_other_widths() -> None:
    small = Config(log_block=3, log_inp_bytes=12, log_wgt_bytes=13, log_acc_bytes=14, log_uop_bytes=12)
    assert uop_fields(small) == (("dst", 9), ("src", 9), ("wgt", 7))
    gemm = Gemm(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    assert decode(encode([gemm], small), small) == [gemm]
    with pytest.raises(TargetError, match="do not fit into the words"):
        Config(log_acc_bytes=20)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("jump", "no such instruction"),
        ("load dram", "no such memory"),
        ("alu", "no such op"),
        ("gemm iter_in=x", "no field"),
        ("gemm iter_in=1 iter_in=1", "no field|twice"),
        ("finish reset", "no field"),
        ("gemm tokens=1", "no field"),
    ],
)
def test_wrong_text_is_refused_with_its_line(text: str, wrong: str) -> None:
    with pytest.raises(ParseError, match=wrong) as caught:
        assemble(f"finish\n{text}")
    assert "line 2" in str(caught.value)


def test_wrong_words_and_values_are_refused() -> None:
    for word, wrong in ((7, "opcode"), (3 << 8 | 0, "memory")):
        words = np.frombuffer(word.to_bytes(16, "little"), np.uint8).reshape(1, 16).copy()
        if wrong == "memory":
            words[0, :2] = [0x80, 3]  # memory 7
        with pytest.raises(ParseError, match=f"no such {wrong}"):
            decode(words)
    with pytest.raises(ParseError, match="iter_out"):
        encode([Gemm(iter_out=1 << 14)])
    with pytest.raises(ParseError, match="imm"):
        encode([Alu(AluOp.ADD, imm=1 << 15)])
    assert decode(encode([Finish(), Store()])) == [Finish(), Store()]
