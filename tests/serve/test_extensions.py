"""Extensions that are off unless asked for: repository, shared memory, tokens; and a Unix socket."""

from __future__ import annotations

import http.client
import os
import shutil
import time
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.serve.errors import Status
from tilewright.serve.models import Served
from tilewright.serve.server import Server, Settings
from tilewright.serve.tokens import Tokens

from .conftest import echo, expected
from .test_rest import ask, tensor

X = np.random.default_rng(4).standard_normal((2, 4)).astype(np.float32)


def test_repository(layer_path: Path, layer: tw.Model, tmp_path: Path) -> None:
    shutil.copy(layer_path, tmp_path / "first.onnx")
    (tmp_path / "second" / "3").mkdir(parents=True)
    layer.save(tmp_path / "second" / "3" / "model.tw")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    (tmp_path / "notes.txt").write_text("nothing")
    with Server(Settings(http_port=0, repository=tmp_path)) as server:

        def states() -> dict[str, str]:
            return {f"{m['name']}/{m['version']}": m["state"] for m in ask(server, "POST", "/v2/repository/index")[1]}

        assert states() == dict.fromkeys(("broken/1", "first/1", "second/3"), "UNAVAILABLE")
        assert ask(server, "POST", "/v2/repository/models/first/load")[0] == 200
        assert ask(server, "POST", "/v2/repository/models/second/load", {})[0] == 200
        assert states()["first/1"] == states()["second/3"] == "READY"
        with tw.client.Client(server.url) as client:
            np.testing.assert_allclose(
                client.infer("second", {"x": X}, version="3")["y"], expected(X), rtol=1e-5, atol=1e-6
            )
        assert ask(server, "POST", "/v2/repository/models/second/unload")[0] == 200
        assert ask(server, "GET", "/v2/models/second")[0] == 404
        status, answer, _ = ask(server, "POST", "/v2/repository/models/broken/load")
        assert status == 400 and "cannot be loaded" in answer["error"]
        for name in ("notes", "..%2f..%2fetc%2fpasswd", "none"):
            assert ask(server, "POST", f"/v2/repository/models/{name}/load")[0] == 404
        body = {"parameters": {"config": "{}"}}
        assert ask(server, "POST", "/v2/repository/models/first/load", body)[0] == 400


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    created = SharedMemory(create=True, size=4096)
    yield created
    created.close()
    created.unlink()


def test_shared_memory(memory: SharedMemory, layer: tw.Model) -> None:
    with Server(Settings(http_port=0, shared_memory=True), [Served("layer", "1", layer)]) as server:

        def register(name: str, **body: object) -> int:
            return ask(server, "POST", f"/v2/systemsharedmemory/region/{name}/register", body)[0]

        whole = {"key": memory.name, "offset": 0, "byte_size": 4096}
        assert register("r", **whole) == 200
        assert register("r", **whole) == 400  # there already
        for wrong in (
            {"key": "../../etc/passwd"}, {"key": "/etc/passwd"}, {"byte_size": 8192}, {"offset": -1}, {"key": "a/b"},
            {"offset": 1}, {"byte_size": "many"}, {"key": "missing-tilewright"},
        ):  # fmt: skip
            assert register("s", **(whole | wrong)) == 400
        assert ask(server, "GET", "/v2/systemsharedmemory/status")[1][0]["name"] == "r"
        memory.buf[: X.nbytes] = X.tobytes()

        def shared(offset: int, size: int) -> dict[str, object]:
            return {"shared_memory_region": "r", "shared_memory_offset": offset, "shared_memory_byte_size": size}

        body = {
            "inputs": [tensor(X, "FP32", parameters=shared(0, X.nbytes))],
            "outputs": [{"name": "y", "parameters": shared(1024, 24)}],
        }
        status, answer, _ = ask(server, "POST", "/v2/models/layer/infer", body)
        assert status == 200 and "data" not in answer["outputs"][0]
        y = np.frombuffer(bytes(memory.buf[1024:1048]), np.float32).reshape(2, 3)
        np.testing.assert_allclose(y, expected(X), rtol=1e-5, atol=1e-6)
        body["outputs"] = [{"name": "y", "parameters": shared(1024, 23)}]
        assert "does not fit" in ask(server, "POST", "/v2/models/layer/infer", body)[1]["error"]
        body["outputs"] = []
        os.truncate(f"/dev/shm/{memory.name}", 0)
        assert "truncated" in ask(server, "POST", "/v2/models/layer/infer", body)[1]["error"]
        assert ask(server, "POST", "/v2/systemsharedmemory/region/r/unregister")[0] == 200
        assert ask(server, "GET", "/v2/systemsharedmemory/region/r/status")[0] == 404


def test_tokens() -> None:
    tokens = Tokens({"all-may-infer-here": ["infer"], "operators-of-this": ["infer", "metrics", "repository"]})
    with Server(Settings(http_port=0, tokens=tokens), [echo()]) as server:
        x = {"x": np.array([b"a"], object)}
        assert ask(server, "GET", "/v2/health/live")[0] == 200  # probes have no token
        with tw.client.Client(server.url, token="all-may-infer-here") as client:
            assert client.infer("echo", x)["y"].tolist() == [b"a"]
        for token, status in ((None, Status.UNAUTHENTICATED), ("all-may-infer-her", Status.UNAUTHENTICATED)):
            with tw.client.Client(server.url, token=token) as client, pytest.raises(tw.Error) as error:
                client.infer("echo", x)
            assert error.value.status is status  # type: ignore[attr-defined]
        headers = {"Authorization": "Bearer all-may-infer-here"}
        assert ask(server, "POST", "/v2/repository/index", headers=headers)[0] == 403
    for wrong in ({"short": ["infer"]}, {"a-token-that-is-long": ["everything"]}):
        with pytest.raises(tw.Error, match="a token"):
            Tokens(wrong)


def test_an_answer_without_a_body_claims_no_json(layer_path: Path) -> None:
    with Server(Settings(http_port=0, repository=layer_path.parent)) as other:
        connection = http.client.HTTPConnection("127.0.0.1", other.http_port or 0, timeout=20)
        connection.request("POST", "/v2/repository/models/layer/load")
        answer = connection.getresponse()
        assert (answer.status, answer.read(), answer.getheader("Content-Type")) == (200, b"", None)
        connection.close()


def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "serve.sock"
    with Server(Settings(http_port=None, unix=str(path)), [echo()]):
        with tw.client.Client(f"unix:{path}") as client:
            assert client.infer("echo", {"x": np.array([b"a"], object)})["y"].tolist() == [b"a"]


def test_stopping_answers_what_has_come() -> None:
    def slow(x: np.ndarray) -> np.ndarray:
        time.sleep(0.3)
        return x

    server = Server(Settings(http_port=0), [echo("slow", "f32", slow)]).start()
    with tw.client.Client(server.url) as client:
        from threading import Thread

        got: list[np.ndarray] = []
        thread = Thread(target=lambda: got.append(client.infer("slow", {"x": np.ones(1, np.float32)})["y"]))
        thread.start()
        time.sleep(0.1)
        server.close()
        thread.join()
        assert got[0].tolist() == [1.0]
        assert not client.is_ready()
