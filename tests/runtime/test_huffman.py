"""Huffman's code: what comes back, its length against the entropy, and bytes that are no code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.runtime.huffman import LONGEST, RUN, decode, encode
from tilewright.support.errors import ArtifactError

Array = np.ndarray[Any, Any]


def drawn(count: int, alphabet: int, skew: float, seed: int = 0) -> Array:
    weights = np.arange(1, alphabet + 1, dtype=np.float64) ** -skew
    return np.random.default_rng(seed).choice(alphabet, count, p=weights / weights.sum())


@pytest.mark.parametrize("count", [0, 1, 2, RUN - 1, RUN, RUN + 1, 5 * RUN, 12_345])
@pytest.mark.parametrize("alphabet", [1, 2, 17, 256])
def test_the_same_symbols_come_back(count: int, alphabet: int) -> None:
    symbols = drawn(count, alphabet, 1.2)
    data = encode(symbols, alphabet)
    back, used = decode(data + b"more", count, "w")
    assert used == len(data)
    np.testing.assert_array_equal(back, symbols)


def test_its_length_is_within_a_tenth_of_the_entropy() -> None:
    symbols = drawn(100_000, 40, 1.5)
    shares = np.bincount(symbols) / symbols.size
    entropy = -np.sum(shares * np.log2(np.maximum(shares, 1e-300)))
    assert len(encode(symbols, 40)) < 1.1 * symbols.size * entropy / 8


def test_codes_are_no_longer_than_the_table() -> None:
    """Counts of Fibonacci's numbers have the longest codes of all."""
    counts = [1, 1]
    while len(counts) < LONGEST + 6:
        counts.append(counts[-1] + counts[-2])
    symbols = np.random.default_rng(1).permutation(np.repeat(np.arange(len(counts)), counts))
    data = encode(symbols, len(counts))
    assert max(data[4 : 4 + len(counts)]) <= LONGEST
    np.testing.assert_array_equal(decode(data, symbols.size, "w")[0], symbols)


def test_symbols_of_an_alphabet_of_words() -> None:
    symbols = drawn(3 * RUN * 7 + 5, 60_000, 0.3)
    np.testing.assert_array_equal(decode(encode(symbols, 60_000), symbols.size, "w")[0], symbols)


def test_what_is_no_code_is_one_error() -> None:
    symbols = drawn(2000, 9, 1.0)
    whole, rng = encode(symbols, 9), np.random.default_rng(2)
    for n in range(0, len(whole), 17):
        with pytest.raises(ArtifactError, match="w"):
            decode(whole[:n], symbols.size, "w")
    for count in (0, RUN - 1, 1999 - 2 * RUN, 2000 + 2 * RUN, 10**12):
        with pytest.raises(ArtifactError) if count else pytest.raises(AssertionError):
            back, used = decode(whole, count, "w")
            assert used == len(whole)
    refused = 0
    for _ in range(100):
        bad = bytearray(whole)
        bad[int(rng.integers(0, 24 if rng.random() < 0.5 else len(bad)))] ^= 1 << int(rng.integers(0, 8))
        try:
            back, _ = decode(bytes(bad), symbols.size, "w")
        except ArtifactError:
            refused += 1
            continue
        assert back.shape == symbols.shape and back.min() >= 0 and back.max() < 9
    assert refused > 20
