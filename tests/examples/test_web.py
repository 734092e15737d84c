"""The pages of `examples/web`: their JavaScript beside Python in Node, and in a headless Chromium (`make web`)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from benchmarks import policy_suite
from examples.web import catch, site
from tests.examples.browser import CHROMIUM, Page, browser, served
from tests.examples.strokes import DIGITS, picture

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
in_browser = pytest.mark.skipif("TILEWRIGHT_WEB" not in os.environ, reason="make web runs it: it trains both networks")
ROOT = Path(__file__).resolve().parents[2]


def node(folder: Path, code: str) -> Any:
    """Run a JavaScript module, which may import the pages' modules, in Node and return what it prints, as JSON."""
    shutil.copytree(site.PAGES, folder, dirs_exist_ok=True)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "run.mjs").write_text(code)
    done = subprocess.run(["node", "run.mjs"], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_player_who_stays_under_the_ball_catches_all() -> None:
    game = catch.Game(np.random.default_rng(0).integers(0, 1 << 30, (50, 2)))
    while game.balls < 50:
        game.step(game.teacher())
    assert game.caught == 50
    assert catch.share_caught(lambda frames: [0, 1, 0]) < 0.5


def _actions(rng: np.random.Generator) -> Any:
    """Actions that go to and fro, so that some balls are caught."""
    return np.repeat(rng.integers(0, 3, 60), 7)


@needs_node
def test_the_game_is_the_same_in_javascript(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    numbers, actions = rng.integers(0, 1 << 30, (9, 2)), _actions(rng)
    seen = node(
        tmp_path,
        f"""
        import {{ Game, SIDE }} from './game.js';
        const numbers = {numbers.tolist()}, pixels = new Uint8Array(SIDE * SIDE), seen = [];
        const game = new Game((ball) => numbers[ball % numbers.length]);
        for (const action of {actions.tolist()}) {{
          game.step(action);
          game.frame(pixels);
          seen.push([game.balls, game.caught, Array.from(pixels)]);
        }}
        console.log(JSON.stringify(seen));""",
    )
    game = catch.Game(numbers)
    for action, (balls, caught, pixels) in zip(actions, seen, strict=True):
        game.step(int(action))
        assert (game.balls, game.caught) == (balls, caught)
        np.testing.assert_array_equal(game.frame().ravel(), pixels)
    assert game.balls > 5 and game.caught > 0


@needs_node
def test_strokes_become_the_same_picture_in_javascript(tmp_path: Path) -> None:
    drawn = node(
        tmp_path,
        f"""
        import {{ picture }} from './pen.js';
        const digits = {json.dumps([*DIGITS.values(), [[(7, 7)]]])};
        console.log(JSON.stringify([picture([]), ...digits.map(picture)].map((p) => Array.from(p))));""",
    )
    assert not any(drawn[0])
    for pixels, strokes in zip(drawn[1:], [*DIGITS.values(), [[(7.0, 7.0)]]], strict=True):
        # A pixel whose centre is at the pen's edge may be in or out.
        np.testing.assert_allclose(pixels, picture(strokes), atol=1 / 16 + 1e-6)
        assert np.abs(pixels - picture(strokes)).sum() < 0.5


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, str, dict[str, Any]]]:
    """A browser, the site's address, and both models by name."""
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn, which make web installs")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    from examples.mnist_like.digits import load
    from examples.web import digits

    weights, share = digits.trained(load())
    assert share > 0.97
    models = {"digits": digits.model(weights), "player": catch.model(catch.trained())}
    folder = tmp_path_factory.mktemp("site")
    sizes = site.write(folder, models)
    assert sizes["digits"] < 10_000 and sizes["player"] < 60_000
    with served(folder) as address, browser(tmp_path_factory.mktemp("profile")) as page:
        yield page, address, models


def _draw(page: Page, strokes: list[Any]) -> dict[str, Any]:
    """Draws with the mouse on an empty paper, gives what the page shows."""
    page.value("document.getElementById('clear').click()")
    left, top = page.value("(({ x, y }) => [x, y])(document.getElementById('paper').getBoundingClientRect())")
    for stroke in strokes:
        for kind, points in (("Pressed", stroke[:1]), ("Moved", stroke), ("Released", stroke[-1:])):
            for x, y in points:
                page.mouse(kind, left + x, top + y)
    shown: dict[str, Any] = page.value("window.shown")
    assert page.value("document.getElementById('answer').textContent") == str(shown["best"])
    return shown


@in_browser
def test_digits_that_are_drawn_are_read(pages: Any, capsys: pytest.CaptureFixture[str]) -> None:
    page, address, models = pages
    page.open(f"{address}/digits.html", "window.shown !== undefined")
    model, right = tw.compile(models["digits"]), []
    for digit, strokes in DIGITS.items():
        shown = _draw(page, strokes)
        seen = np.array(shown["picture"], np.float32)
        assert np.abs(seen - picture(strokes)).mean() < 0.05  # the mouse has whole pixels
        np.testing.assert_allclose(shown["likely"], model(seen[None])[0], rtol=1e-5, atol=1e-6)
        right.append(shown["best"] == digit)
        if digit == 3:
            _keep("digits.png", page)
    measured = page.value("window.measured")
    with capsys.disabled():
        print(f"\ndigits in Chromium: {sum(right)} of 10 read, {measured}")
    assert sum(right) >= 9 and page.said == []
    assert measured["microseconds"] < 500


@in_browser
def test_the_network_catches_balls(pages: Any, capsys: pytest.CaptureFixture[str]) -> None:
    page, address, models = pages
    page.open(f"{address}/catch.html", "window.measured !== undefined")
    model, rng = tw.compile(models["player"]), np.random.default_rng(6)
    frames, _ = catch.moments(5, rng)
    for frame in frames:
        action, scores = page.value(f"window.choose({frame.ravel().tolist()})")
        wanted = model(frame[None])[0]
        np.testing.assert_allclose(scores, wanted, rtol=1e-4, atol=1e-4)
        assert action == int(np.argmax(wanted))
    caught, balls = page.value("window.play(20)")
    _keep("catch.png", page)
    measured = page.value("window.measured")
    with capsys.disabled():
        print(f"\nNatureCNN in Chromium: {caught} of {balls} balls caught, {measured}")
    assert caught >= 0.9 * balls and page.said == []
    page.value("document.getElementById('network').click()")
    assert page.value("document.getElementById('network').checked") is False


def _keep(name: str, page: Page) -> None:
    """The picture in the documents, where it is asked for anew."""
    if os.environ["TILEWRIGHT_WEB"] == "pictures":
        (ROOT / "docs" / "pictures" / name).write_bytes(page.picture(720, 480))


@in_browser
def test_the_tutorial_works_in_a_browser(
    pages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "tutorial" / "browser.md").read_text()
    monkeypatch.chdir(tmp_path)
    exec("\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)), {})
    (site_page,) = re.findall(r"^```html\n(.*?)^```", text, re.M | re.S)
    (tmp_path / "site" / "index.html").write_text(site_page)
    page, _, _ = pages
    with served(tmp_path / "site") as address:
        page.open(f"{address}/index.html", "document.getElementById('action')?.textContent")
        shown = page.value("document.getElementById('action').textContent")
        printed = capsys.readouterr().out
        assert re.search(rf"^{re.escape(shown)}$", printed, re.M), (shown, printed)
        page.value(
            "const slider = document.getElementById('x'); slider.value = 1; slider.dispatchEvent(new Event('input'))"
        )
        assert page.value("document.getElementById('action').textContent") != shown


@in_browser
def test_a_call_has_threads_in_a_browser(tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    program = tw.compile_program(policy_suite.m64(), dims={"batch": 48}, threads=3, target="wasm32-simd128")
    program.bundle(tmp_path / "one")
    program.bundle(tmp_path / "three", threads=3)
    (tmp_path / "index.html").write_text(
        """<!doctype html><script type="module">
        import { load as single } from './one/m64.js';
        import { load } from './three/m64.js';
        const [one, three] = [await single(), await load({ threads: 3 })];
        const obs = new Float32Array(48 * 17).map((_, i) => Math.sin(i));
        const bits = (model) => JSON.stringify(Object.values(model.run({ obs })).map((x) => Array.from(x)));
        window.equal = Array.from({ length: 200 }, () => bits(three)).every((x) => x === bits(one));
        window.workers = three.workers.length;
        </script>"""
    )
    (tmp_path / "profile").mkdir()
    with served(tmp_path) as address, browser(tmp_path / "profile") as page:
        page.open(f"{address}/index.html", "window.workers !== undefined")
        assert page.value("[window.workers, window.equal, crossOriginIsolated]") == [2, True, True]
        assert all("favicon" in said for said in page.said), page.said
