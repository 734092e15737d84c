"""The dashboard in headless Chromium, where there is one: what its script draws of a service with results."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from tests.farm import scene
from tests.farm.test_service import Running, collected, in_channel, key, measured, send, state, tuned
from tests.serve.test_dashboard_browser import CHROMIUM, rendered
from tilewright.farm import rollout
from tilewright.farm.state import State
from tilewright.records.signed import SigningKey

__all__ = ["collected", "key", "state"]  # fixtures


@pytest.mark.skipif(
    CHROMIUM is None or "TILEWRIGHT_BROWSER" not in os.environ, reason="make farm runs it, with Debian's chromium"
)
def test_what_the_page_draws(state: State, collected: Path, key: SigningKey, tmp_path: Path) -> None:
    tuned(state, collected, key)
    with state.database.transaction() as t:
        t.run("UPDATE workload SET label = '<b>the layer</b>'")
    rollout.enter_canary(state)
    canary = in_channel(state, "canary")
    for number in range(3):
        send(state, measured(1.03, tuple(canary), number))
    rollout.weigh(state)
    with Running(state, key) as http:
        refused = rendered(f"{http.url}/dashboard", tmp_path / "a")
        page = rendered(f"{http.url}/dashboard#token=a-token-that-reads", tmp_path / "b")
    assert "a bearer token is wanted" in refused
    assert re.search(rf'id="state">0 queued, 0 running, {2 * len(canary)} done, 0 failed<', page)
    assert re.search(r"\d+ core-seconds spent, [\d.]+ saved a day", page)
    tables = {name: _rows(page, name) for name in ("queue", "workers", "gains", "measurements", "models", "history")}
    assert len(tables["queue"]) == 2 * len(canary) and len(tables["workers"]) >= 2
    assert all("1.050 [1.030, 1.070]" in row and "<svg" in row and "stable" in row for row in tables["gains"])
    assert len(tables["gains"]) == len(canary) and len(tables["measurements"]) == 3
    assert "&lt;b&gt;the layer&lt;/b&gt;" in tables["models"][0] and "100.0 %" in tables["models"][0]
    assert len(tables["history"]) == 3 * len(canary) and "released" in tables["history"][0]
    assert scene.machines() in page


def _rows(page: str, name: str) -> list[str]:
    body = page.partition(f'<table id="{name}">')[2].partition("</table>")[0].partition("<tbody>")[2]
    return re.findall(r"<tr>(.*?)</tr>", body, re.S)
