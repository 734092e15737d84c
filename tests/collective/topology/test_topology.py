"""All-reductions as rounds against sums, bytes against bounds, the model's choice against the simulator's best."""

from __future__ import annotations

import numpy as np
import pytest

from tests.collective.topology.choices import NETWORKS, ratio
from tilewright.collective.topology import ALGORITHMS, Model, Network, fit, picture, rounds_of
from tilewright.collective.topology.algorithms import execute
from tilewright.support.errors import CollectiveError


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_rank_has_the_sum(algorithm: str) -> None:
    rng = np.random.default_rng(1)
    for ranks in (1, 2, 3, 4, 5, 7, 8, 13, 16, 33):
        for elements in (0, 1, ranks, 4 * ranks + 3):
            for chunks in (1, 3) if algorithm == "two trees" else (1,):
                arrays = rng.integers(0, 100, (ranks, elements))
                want = np.broadcast_to(arrays.sum(0), arrays.shape)
                execute(rounds_of(algorithm, ranks, elements, chunks), arrays)
                np.testing.assert_array_equal(arrays, want, err_msg=f"{ranks} ranks, {elements} elements")


def test_messages_are_matchings() -> None:
    for algorithm in ALGORITHMS:
        for one in rounds_of(algorithm, 13, 64, 2):
            for m in one:
                assert len(set(m.source.tolist())) == len(m.source) == len(set(m.target.tolist()))
                assert (m.source != m.target).all()


def test_bytes_and_rounds_are_the_bounds() -> None:
    ranks, elements = 8, 8 * 15
    bound = 2 * (ranks - 1) * elements // ranks
    for algorithm, rounds in (("ring", 14), ("halving and doubling", 6)):
        sent = execute(rounds_of(algorithm, ranks, elements), np.ones((ranks, elements)))
        assert set(sent.values()) == {bound}
        assert len(list(rounds_of(algorithm, ranks, elements))) == rounds
    assert len(list(rounds_of("recursive doubling", ranks, elements))) == 3
    sent = execute(rounds_of("two trees", ranks, elements, 5), np.ones((ranks, elements)))
    assert sum(sent.values()) == 2 * (ranks - 1) * elements
    assert max(sent.values()) <= 2 * elements


def test_a_rank_is_inside_one_tree_at_most() -> None:
    for ranks in (2, 5, 8, 23, 100):
        inside = np.zeros((2, ranks), bool)
        for one in rounds_of("two trees", ranks, 2, 1):
            for m in one:
                if m.reduces:
                    inside[m.begin, m.target] = True
        assert not (inside[0] & inside[1])[ranks % 2 :].any()


@pytest.mark.parametrize("name", NETWORKS)
def test_the_choice_is_hardly_slower_than_the_best(name: str) -> None:
    for ranks, nbytes in ((8, 4), (23, 1 << 14), (40, 1 << 23)):
        value, text = ratio(NETWORKS[name], ranks, nbytes, (1, 8, 64))
        assert value <= 1.2, text


def test_times_of_a_link() -> None:
    network = Network(latency=1e-3, overhead=1e-4, bandwidth=1e6, burst=0, reducing=1e9)
    assert network.ping(1000) == pytest.approx(1e-4 + 1e-3 + 1e-3)
    assert Network(latency=1e-3, overhead=0, bandwidth=1e6, burst=600).ping(1000) == pytest.approx(1e-3 + 4e-4)
    two = network.all_reduce("recursive doubling", 2, 10_000)
    assert two == pytest.approx(1e-4 + 1e-2 + 1e-3 + 1e-5)
    assert network.all_reduce("ring", 1, 100) == 0


def test_a_fit_is_the_line() -> None:
    model = fit([(s, 2e-6 + s * 3e-9) for s in (1, 100, 10_000)], [(s, s * 1e-10) for s in (1000, 2000)])
    assert (model.alpha, model.beta, model.gamma) == pytest.approx((2e-6, 3e-9, 1e-10))
    assert fit([(1, 2e-6), (1000, 1e-6)]).beta == 0
    assert fit([(10, 1e-6), (1000, 2e-4)]).alpha == 0
    burst = fit([(s, 2e-6 + max(0, s - 4096) * 3e-9) for s in (1, 4096, 65536, 10**6, 10**7)])
    assert (burst.alpha, burst.beta, burst.burst) == pytest.approx((2e-6, 3e-9, 4096))
    with pytest.raises(CollectiveError, match="two sizes"):
        fit([(1, 1e-6)])


def test_wrong_arguments() -> None:
    with pytest.raises(CollectiveError, match="no such all-reduction"):
        rounds_of("star", 4, 4)
    with pytest.raises(CollectiveError, match="no such algorithm"):
        Model(1e-6, 1e-9, 0).seconds("star", 4, 4)
    assert Model(1e-6, 1e-9, 0).seconds("ring", 1, 4) == 0


def test_a_picture_has_a_line_a_round() -> None:
    lines = picture("tree", 3).splitlines()
    assert lines[0].split() == ["round", "rank", "0", "rank", "1", "rank", "2"]
    assert len(lines) == 5
    assert ">0 0:3+" in lines[1]
