"""Transformers in PyTorch with random weights: BERT-base, GPT-2 small (prefill, and decoding with a cache)."""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn

from benchmarks.zoo.libraries import library

Built = tuple[nn.Module, tuple[Tensor, ...]]
"""A module and example inputs of batch 2."""


class _Bert(nn.Module):
    """BERT with positional tensors in and a tuple out, which both exporters take."""

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        transformers = library("transformers")
        self.bert = transformers.BertModel(transformers.BertConfig(attn_implementation="eager", **sizes))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        out = self.bert(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return out.last_hidden_state, out.pooler_output


def bert(tokens: int = 128, **sizes: int) -> Built:
    """BERT-base: 12 layers of 768, 12 heads, 110 million weights; or other sizes."""
    ids = torch.randint(0, 30522, (2, tokens))
    mask = torch.ones(2, tokens, dtype=torch.int64)
    mask[1, tokens // 2 :] = 0
    return _Bert(**sizes), (ids, mask, torch.zeros(2, tokens, dtype=torch.int64))


def bert_small() -> Built:
    """BERT-small (Turc et al. 2019): 4 layers of 512, 8 heads, 29 million weights."""
    return bert(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048)


class _Gpt2Block(nn.Module):
    """Pre-norm attention and a GELU (tanh form) MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, past_k: Tensor | None, past_v: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """x [batch, tokens, width], past [batch, heads, earlier tokens, 64]; also returns the new keys and values."""
        batch, tokens, width = x.shape
        heads = (t.reshape(batch, tokens, self.heads, 64).transpose(1, 2) for t in self.attn(self.ln_1(x)).chunk(3, 2))
        q, k_new, v_new = heads
        k = k_new if past_k is None else torch.cat([past_k, k_new], 2)
        v = v_new if past_v is None else torch.cat([past_v, v_new], 2)
        scores = q @ k.transpose(2, 3) / 8
        if tokens > 1:
            hidden = torch.full((tokens, tokens), torch.finfo(torch.float32).min).triu(1)
            scores = scores + hidden
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.proj(y)
        return x + self.out(nn.functional.gelu(self.fc(self.ln_2(x)), approximate="tanh")), k_new, v_new


class _Gpt2(nn.Module):
    """GPT-2 small (Radford et al. 2019): 12 layers of 768, 12 heads, 124 million weights, the head tied.

    Logits are of the last token. The new keys and values of all layers are results, [layers, batch, heads, tokens, 64]:
    the caller appends them to its cache.
    """

    def __init__(self, width: int = 768, depth: int = 12, vocabulary: int = 50257, positions: int = 1024) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(_Gpt2Block(width, width // 64) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, 0.0, 0.02)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, past_k: Tensor | None = None, past_v: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = self.wte(input_ids) + self.wpe(position_ids)
        keys, values = [], []
        for i, block in enumerate(self.blocks):
            past = (None, None) if past_k is None or past_v is None else (past_k[i], past_v[i])
            x, k, v = block(x, *past)
            keys.append(k)
            values.append(v)
        logits = self.ln_f(x[:, -1]) @ self.wte.weight.t()
        return logits, torch.stack(keys), torch.stack(values)


def gpt2_prefill(tokens: int = 128) -> Built:
    ids = torch.randint(0, 50257, (2, tokens))
    return _Gpt2(), (ids, torch.arange(tokens).expand(2, -1).contiguous())


def gpt2_decode(earlier: int = 128) -> Built:
    """One token after `earlier` ones whose keys and values are given."""
    past = [torch.randn(12, 2, 12, earlier, 64) for _ in range(2)]
    return _Gpt2(), (torch.randint(0, 50257, (2, 1)), torch.full((2, 1), earlier), *past)
