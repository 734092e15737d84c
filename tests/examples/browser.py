"""A headless Chromium, spoken to by its DevTools protocol over two pipes, and a server for a folder."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
TIMEOUT = 60.0
"""Seconds to wait for an answer of the browser."""


START = """\
import fcntl, os, sys
given, told = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 5) for n in sys.argv[1:3])
os.dup2(given, 3), os.dup2(told, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Starts the browser, whose protocol's pipes are its descriptors 3 and 4."""


class Page:
    """One page. `said` has what its console said: errors too."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._pending, self._count, self._session = b"", 0, ""
        self.said: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self._hear(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        """The next message of the browser."""
        end = time.monotonic() + TIMEOUT
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"the browser said nothing for {TIMEOUT} seconds; its console: {self.said}"
            more = os.read(self._answers, 1 << 16)
            assert more, "the browser ended"
            self._pending += more
        first, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def _hear(self, event: Mapping[str, Any]) -> None:
        match event.get("method"):
            case "Runtime.exceptionThrown":
                details = event["params"]["exceptionDetails"]
                self.said.append(details.get("exception", {}).get("description", details["text"]))
            case "Log.entryAdded":
                entry = event["params"]["entry"]
                self.said.append(f"{entry['text']} {entry.get('url', '')}")

    def open(self, url: str, ready: str) -> None:
        """Goes there, and waits until a JavaScript expression holds."""
        self._ask("Page.navigate", url=url)
        end = time.monotonic() + TIMEOUT
        while not self.value(ready):
            assert time.monotonic() < end, f"{url}: {ready} does not come true; the console says {self.said}"
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        """Evaluate a JavaScript expression and return its value, as JSON; a promise is waited for."""
        result = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def mouse(self, kind: str, x: float, y: float) -> None:
        """An event of the left button: "Pressed", "Moved" or "Released"."""
        down = {"button": "left", "buttons": int(kind != "Released"), "clickCount": 1}
        self._ask("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **down)

    def picture(self, width: int, height: int) -> bytes:
        """The page's upper left part, as PNG."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        return base64.b64decode(self._ask("Page.captureScreenshot", clip=clip)["data"])


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A page of a browser that ends with the block; its files are in `profile`."""
    assert CHROMIUM is not None
    (requests, commands), (answers, told) = os.pipe(), os.pipe()
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
    flags += ["--no-first-run", "--window-size=800,700", f"--user-data-dir={profile}", "about:blank"]
    line = [sys.executable, "-c", START, str(requests), str(told), CHROMIUM, *flags]
    log = (profile / "log").open("wb")
    process = subprocess.Popen(line, pass_fds=(requests, told), stdout=log, stderr=log, start_new_session=True)
    os.close(requests)
    os.close(told)
    try:
        yield Page(commands, answers)
    finally:
        os.close(commands)  # the browser ends when its pipe does
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(answers)
        log.close()


class _Quiet(SimpleHTTPRequestHandler):
    """Isolates its pages, so that their clock has five microseconds and memory may be shared; logs nothing."""

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder's files."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
