"""A decoder in PyTorch whose keys and values stay in place: rotary positions, fewer heads of keys than of queries."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import tilewright as tw  # noqa: E402


class Decoder(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Attention of `heads` query heads over `groups` heads of keys and values, causal."""

    def __init__(self, width: int = 64, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, self.depth = heads, groups, width // heads
        self.q = torch.nn.Linear(width, width, bias=False)
        self.k, self.v = (torch.nn.Linear(width, groups * self.depth, bias=False) for _ in range(2))

    def forward(self, x, past_k, past_v):  # type: ignore[no-untyped-def]
        batch, n, width = x.shape
        past, depth = past_k.shape[2], self.depth
        q, k, v = (p(x).view(batch, n, -1, depth).transpose(1, 2) for p in (self.q, self.k, self.v))
        at = torch.arange(n) + past
        angle = at[:, None] * 100.0 ** (-torch.arange(0, depth, 2) / depth)
        cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)

        def transposed(t):  # type: ignore[no-untyped-def]
            return t * cos + torch.cat([-t[..., depth // 2 :], t[..., : depth // 2]], -1) * sin

        k, v = torch.cat([past_k, transposed(k)], 2), torch.cat([past_v, v], 2)
        shape = (batch, self.groups, self.heads // self.groups, past + n, depth)
        keys, values = (t[:, :, None].expand(shape).reshape(batch, self.heads, past + n, depth) for t in (k, v))
        seen = torch.arange(past + n)[None] <= at[:, None]
        scores = (transposed(q) @ keys.transpose(2, 3) * depth**-0.5).masked_fill(~seen, torch.finfo(torch.float32).min)
        return (scores.softmax(-1) @ values).transpose(1, 2).reshape(batch, n, width), k, v


def test_a_decoder_of_pytorch_with_state() -> None:
    torch.manual_seed(0)
    module = Decoder().eval()
    example = (torch.randn(2, 5, 64), torch.randn(2, 2, 7, 16), torch.randn(2, 2, 7, 16))
    cache = {0: "batch", 2: "past"}
    dynamic = {"x": {0: "batch", 1: "n"}, "past_k": cache, "past_v": cache}
    model = tw.compile(module, example, dynamic=dynamic, state={"past_k": "output1", "past_v": "output2"})
    assert isinstance(model, tw.Model)
    assert model.show("graph").count("lowered.attention") == 1
    for batch in (1, 3):
        state = model.state(30, batch=batch)
        k = v = torch.zeros(batch, 2, 0, 16)
        for n in (4, 1, 1, 6, 1):
            x = torch.randn(batch, n, 64)
            with torch.no_grad():
                want, k, v = module(x, k, v)
            torch.testing.assert_close(state(x), want, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(torch.from_numpy(state.arrays()["past_k"].copy()), k, rtol=1e-5, atol=1e-6)
