"""The dashboard in headless Chromium, where there is one: what its script draws of a server that has answered."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.serve.models import Served
from tilewright.serve.server import Server, Settings

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
X = np.ones((2, 4), np.float32)


def rendered(url: str, folder: Path) -> str:
    """The page's elements as they are after three seconds of its own time."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}",
        "--virtual-time-budget=3000", "--timeout=20000", "--dump-dom", url,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.mark.skipif(
    CHROMIUM is None or "TILEWRIGHT_BROWSER" not in os.environ, reason="make serve runs it, with Debian's chromium"
)
def test_what_the_page_draws(layer: tw.Model, tmp_path: Path) -> None:
    names = ("layer", "&lt;b&gt;")  # a name of a model is text, whatever it holds
    models = [Served(name, "1", layer, promise=0.5) for name in names]
    with Server(Settings(http_port=0), models) as server:
        with tw.client.Client(server.url) as client:
            for _ in range(7):
                client.infer("layer", {"x": X})
            with pytest.raises(tw.Error):
                client.infer("layer", {"x": X[0]})
            with pytest.raises(tw.Error):
                client.infer("layer", {"x": X}, timeout=1e-6)
        page = rendered(f"{server.url}/dashboard", tmp_path)
    rows = re.findall(r"<tr>(.*?)</tr>", page.partition('id="models"')[2], re.S)
    assert len(rows) == 2
    cells = re.findall(r"<td(?: class=\"(\w+)\")?>(.*?)</td>", rows[0], re.S)
    texts = [text for _, text in cells]
    assert texts[0] == "layer/1" and "<polyline" in texts[3] and "<rect" in texts[13]
    assert all(float(text) > 0 for text in texts[4:8]) and texts[8] == "500"
    assert [(kind, int(text)) for kind, text in cells[9:13]] == [("", 0), ("bad", 1), ("", 0), ("bad", 1)]
    assert "2 rows: 7 batches" in texts[13]
    assert "&amp;lt;b&amp;gt;/1" in rows[1]
    assert re.search(r'id="state">ready, 0 in flight, up \d+ s<', page)
