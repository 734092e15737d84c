"""Hostile peers and broken connections, longer: the tests of `tests/live/transport` under TILEWRIGHT_FUZZ."""

from __future__ import annotations

import os

import pytest

from tests.live.transport import test_hostile, test_loss

pytestmark = pytest.mark.skipif(
    not os.environ.get("TILEWRIGHT_FUZZ"), reason="tests/live/transport runs a few hundred of these cases"
)

test_hostile_servers = test_hostile.test_hostile_servers
test_hostile_nodes = test_hostile.test_hostile_nodes
test_bytes_changed_on_the_way = test_hostile.test_bytes_changed_on_the_way
test_cut_anywhere = test_loss.test_cut_anywhere
