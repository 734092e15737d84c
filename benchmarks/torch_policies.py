"""The policy suite as ordinary PyTorch modules, with random weights: what `tw.compile(module, example)` is tested on.

Layers follow the code named in each docstring (`policy_suite.py` builds the same networks as ONNX graphs). State
goes in and out as arguments and results; a `done` mask of the caller resets it. `python -m benchmarks.torch_policies`
compiles all of them and prints errors against eager PyTorch and the time to compile.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Outputs = dict[str, Tensor]


def orthogonal(module: nn.Module, gain: float = 2**0.5) -> nn.Module:
    """Weights as PPO implementations start them, which keeps the scale of activations."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(part.weight, gain)
            if part.bias is not None:
                nn.init.normal_(part.bias, std=0.1)
    return module


def mlp(sizes: Sequence[int], activation: Callable[[], nn.Module] = nn.ReLU, last: bool = True) -> nn.Sequential:
    """Linear layers with an activation between them, and after the last one if `last`."""
    layers: list[nn.Module] = []
    for k, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        layers.append(nn.Linear(fan_in, fan_out))
        if last or k < len(sizes) - 2:
            layers.append(activation())
    return nn.Sequential(*layers)


class M64(nn.Module):
    """Stable-Baselines3 MlpPolicy: separate tanh towers of 64; `log_std` belongs to the distribution."""

    def __init__(self, observation: int = 17, actions: int = 6) -> None:
        super().__init__()
        self.policy_net = mlp([observation, 64, 64], nn.Tanh)
        self.value_net = mlp([observation, 64, 64], nn.Tanh)
        self.action_head = nn.Linear(64, actions)
        self.value_head = nn.Linear(64, 1)
        self.log_std = nn.Parameter(torch.zeros(actions))

    def forward(self, obs: Tensor) -> Outputs:
        return {
            "action": self.action_head(self.policy_net(obs)),
            "value": self.value_head(self.value_net(obs)),
        }


class M256(nn.Module):
    """CleanRL SAC actor (Humanoid): two ReLU layers of 256, mean and squashed log standard deviation."""

    def __init__(self, observation: int = 376, actions: int = 17) -> None:
        super().__init__()
        self.fc1 = nn.Linear(observation, 256)
        self.fc2 = nn.Linear(256, 256)
        self.fc_mean = nn.Linear(256, actions)
        self.fc_logstd = nn.Linear(256, actions)

    def forward(self, obs: Tensor) -> Outputs:
        x = F.relu(self.fc1(obs))
        x = F.relu(self.fc2(x))
        log_std = torch.tanh(self.fc_logstd(x))
        return {"mean": self.fc_mean(x), "log_std": -5 + 0.5 * (2 - -5) * (log_std + 1)}


def nature(channels: int, width: int = 512) -> nn.Sequential:
    """The Nature CNN (Mnih et al. 2015) on 84x84."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, width),
        nn.ReLU(),
    )


class NAT(nn.Module):
    """Stable-Baselines3 CnnPolicy: uint8 frames divided by 255 inside the model."""

    def __init__(self, actions: int = 6) -> None:
        super().__init__()
        self.network = nature(4)
        self.action_net = nn.Linear(512, actions)
        self.value_net = nn.Linear(512, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        x = self.network(obs.float() / 255.0)
        return self.action_net(x), self.value_net(x)


class ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv1(F.relu(self.conv0(F.relu(x))))


class IMP(nn.Module):
    """CleanRL ppo_procgen: the IMPALA residual network (Espeholt et al. 2018) with stacks of 16, 32, 32."""

    def __init__(self, channels: int = 3, size: int = 64, actions: int = 15) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in (16, 32, 32):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
            layers += [ResidualBlock(width), ResidualBlock(width)]
            channels, size = width, (size + 1) // 2
        layers += [nn.Flatten(), nn.ReLU(), nn.Linear(channels * size * size, 256), nn.ReLU()]
        self.network = nn.Sequential(*layers)
        self.actor = nn.Linear(256, actions)
        self.critic = nn.Linear(256, 1)

    def forward(self, obs: Tensor) -> Outputs:
        x = self.network(obs)
        return {"action": self.actor(x), "value": self.critic(x)}


class NL(nn.Module):
    """CleanRL ppo_atari_lstm: the Nature trunk on one channel, an LSTM whose state `done` resets, heads."""

    def __init__(self, actions: int = 4, hidden: int = 128) -> None:
        super().__init__()
        self.network = nature(1)
        self.lstm = nn.LSTM(512, hidden)
        self.actor = nn.Linear(hidden, actions)
        self.critic = nn.Linear(hidden, 1)

    def forward(self, obs: Tensor, done: Tensor, h: Tensor, c: Tensor) -> Outputs:
        x = self.network(obs / 255.0)
        keep = (1.0 - done).view(1, -1, 1)
        x, (h, c) = self.lstm(x.unsqueeze(0), (h * keep, c * keep))
        x = torch.flatten(x, 0, 1)
        return {"action": self.actor(x), "value": self.critic(x), "h": h, "c": c}


class HOK1(nn.Module):
    """Tencent's hok_env 1v1 (Honor of Kings): entity perceptrons, LSTM of 512, five heads, target attention, value.

    The 725 features are 2 heroes of 235, 8 soldiers of 18, 4 organs of 18, 14 of the main hero, 25 global ones.
    """

    def __init__(self, hidden: int = 512) -> None:
        super().__init__()
        self.hero = mlp([235, 512, 256, 128])
        self.soldier = mlp([18, 64, 64, 32])
        self.organ = mlp([18, 64, 64, 32])
        self.main = mlp([14, 64, 32, 16])
        self.concat = nn.Linear(425, 512)
        self.lstm = nn.LSTM(512, hidden)
        self.heads = nn.ModuleList(nn.Linear(hidden, width) for width in (12, 16, 16, 16, 16))
        self.no_target = nn.Parameter(torch.randn(1, 1, 32))
        self.hero_key = nn.Linear(128, 32)
        self.query = nn.Linear(hidden, 32)
        self.value = nn.Sequential(nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, obs: Tensor, state: tuple[Tensor, Tensor], reset: Tensor | None = None) -> dict[str, Any]:
        heroes, soldiers, organs, main, world = torch.split(obs, [470, 144, 72, 14, 25], dim=1)
        hero = self.hero(heroes.reshape(-1, 2, 235))
        soldier = self.soldier(soldiers.reshape(-1, 2, 4, 18))
        organ = self.organ(organs.reshape(-1, 2, 2, 18))
        parts = [hero, soldier.max(dim=2).values, organ.amax(2), self.main(main), world]
        x = F.relu(self.concat(torch.cat([p.flatten(1) for p in parts], dim=1)))
        h, c = state
        if reset is not None:
            h, c = (torch.where(reset[None, :, None], 0.0, s) for s in (h, c))
        y, (h, c) = self.lstm(x.unsqueeze(0), (h, c))
        x = y.squeeze(0)
        # Targets: none, both heroes, the enemy's four soldiers, the enemy's first organ.
        unowned = self.no_target.expand(x.shape[0], 1, 32)
        keys = torch.cat([unowned, self.hero_key(hero), soldier[:, 1], organ[:, 1, :1]], dim=1)
        target = torch.bmm(keys, self.query(x).unsqueeze(2)).squeeze(2)
        return {"heads": [head(x) for head in self.heads], "target": target, "value": self.value(x), "state": (h, c)}


class HOK3(nn.Module):
    """Tencent's hok_env 3v3: for each of three heroes a small image and the features of all units around it.

    The 2852 features are 6 heroes of 251, 20 soldiers of 25, 6 organs of 29, 20 monsters of 28, 44 of the main hero, 68
    global ones. The heroes share all weights, so they are a batch of three.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(6, 18, 5, padding=2)
        self.conv2 = nn.Conv2d(18, 12, 3, padding=1)
        self.hero = mlp([251, 512, 512, 128, 128, 64])
        self.soldier = mlp([25, 64, 64, 64, 32])
        self.organ = mlp([29, 64, 64, 64, 32])
        self.monster = mlp([28, 64, 64, 64, 32])
        self.main = mlp([44, 64, 32])
        self.concat = nn.Linear(1156, 256)
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, width)) for width in (13, 25, 42, 42, 39)
        )

    def forward(self, image: Tensor, vector: Tensor) -> tuple[Tensor, ...]:
        batch = image.size(0)
        x = F.max_pool2d(F.relu(self.conv1(image.flatten(0, 1))), 3, 2)
        x = F.relu(self.conv2(x)).flatten(1)
        parts = torch.split(vector.view(batch * 3, 2852), [1506, 500, 174, 560, 44, 68], dim=1)
        sides = ((self.hero, 2, 3, 251), (self.soldier, 2, 10, 25), (self.organ, 2, 3, 29), (self.monster, 1, 20, 28))
        pooled = [
            net(part.view(batch * 3, *shape)).max(dim=2)[0].flatten(1)
            for (net, *shape), part in zip(sides, parts, strict=False)
        ]
        x = F.relu(self.concat(torch.cat([x, *pooled, self.main(parts[4]), parts[5]], dim=1)))
        return tuple(head(x).view(batch, 3, -1) for head in self.heads)


class DZ(nn.Module):
    """DouZero: an LSTM over five earlier moves, then five layers of 512; the batch is the set of legal moves."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(162, 128, batch_first=True)
        for k, fan_in in enumerate((128 + 373, 512, 512, 512, 512), 1):
            setattr(self, f"dense{k}", nn.Linear(fan_in, 512))
        self.dense6 = nn.Linear(512, 1)

    def forward(self, z: Tensor, x: Tensor) -> Outputs:
        out, _ = self.lstm(z)
        x = torch.cat([out[:, -1, :], x], dim=-1)
        for k in range(1, 6):
            x = torch.relu(getattr(self, f"dense{k}")(x))
        return {"values": self.dense6(x)}


class TransformerLayer(nn.Module):
    """One layer of CleanRL's transformer: a query attends to a memory, normalised first, with a residual around."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries = nn.Linear(width, width)
        self.keys = nn.Linear(width, width)
        self.values = nn.Linear(width, width)
        self.fc_out = nn.Linear(width, width)
        self.layer_norm_q = nn.LayerNorm(width)
        self.norm_kv = nn.LayerNorm(width)
        self.layer_norm_attn = nn.LayerNorm(width)
        self.fc_projection = nn.Sequential(nn.Linear(width, width), nn.ReLU())

    def forward(self, memories: Tensor, mask: Tensor, x: Tensor) -> Tensor:
        batch, steps, width = memories.shape
        shape = (self.heads, width // self.heads)
        kv = self.norm_kv(memories)
        k = self.keys(kv).reshape(batch, steps, *shape)
        v = self.values(kv).reshape(batch, steps, *shape)
        q = self.queries(self.layer_norm_q(x)).reshape(batch, 1, *shape)
        energy = torch.einsum("nqhd,nkhd->nhqk", [q, k])
        energy = energy.masked_fill(mask.unsqueeze(1).unsqueeze(1) == 0, float("-1e20"))
        attention = torch.softmax(energy / width**0.5, dim=3)
        y = torch.einsum("nhql,nlhd->nqhd", [attention, v]).reshape(batch, width)
        x = self.fc_out(y) + x
        return x + self.fc_projection(self.layer_norm_attn(x))


class TXL(nn.Module):
    """CleanRL ppo_trxl: the Nature trunk, three transformer layers that attend to a memory of earlier steps, heads."""

    def __init__(self, actions: int = 4, width: int = 384, layers: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.encoder = nature(3, 512)
        self.linear_embedding = nn.Linear(512, width)
        self.pos_embedding = nn.Parameter(torch.randn(1024, width) * 0.1)
        self.transformer_layers = nn.ModuleList(TransformerLayer(width, heads) for _ in range(layers))
        self.hidden_post_trxl = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.actor = nn.Linear(width, actions)
        self.critic = nn.Linear(width, 1)

    def forward(self, obs: Tensor, memory: Tensor, mask: Tensor, memory_indices: Tensor) -> Outputs:
        x = F.relu(self.linear_embedding(self.encoder(obs.float() / 255.0)))
        memory = memory + self.pos_embedding[memory_indices].unsqueeze(2)
        retained = []
        for k, layer in enumerate(self.transformer_layers):
            retained.append(x.detach())
            x = layer(memory[:, :, k], mask, x)
        x = self.hidden_post_trxl(x)
        return {"action": self.actor(x), "value": self.critic(x).flatten(), "memory": torch.stack(retained, dim=1)}


def conv_bn(fan_in: int, fan_out: int, kernel: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(fan_in, fan_out, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(fan_out))


class AZ(nn.Module):
    """AlphaZero for 19x19 Go: residual tower with batch norm, policy and value heads."""

    def __init__(self, blocks: int = 6, width: int = 128) -> None:
        super().__init__()
        self.stem = conv_bn(17, width, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(conv_bn(width, width, 3), nn.ReLU(inplace=True), conv_bn(width, width, 3))
            for _ in range(blocks)
        )
        self.policy = nn.Sequential(conv_bn(width, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(722, 362))
        self.value = nn.Sequential(
            conv_bn(width, 1, 1), nn.ReLU(), nn.Flatten(), nn.Linear(361, 256), nn.ReLU(), nn.Linear(256, 1), nn.Tanh()
        )
        for part in self.modules():
            if isinstance(part, nn.BatchNorm2d):
                nn.init.uniform_(part.weight, 0.3, 0.6)
                nn.init.normal_(part.bias, std=0.1)
                part.running_mean.normal_(std=0.1)  # type: ignore[union-attr]
                part.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]

    def forward(self, board: Tensor) -> Outputs:
        x = F.relu(self.stem(board))
        for block in self.blocks:
            x = F.relu(block(x) + x)
        return {"policy": self.policy(x), "value": self.value(x)}


# --- the table ------------------------------------------------------------------------------------------------------

Inputs = Callable[[int], tuple[Any, ...]]


def _bytes(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def _mask(*shape: int) -> Tensor:
    return (torch.rand(shape) < 0.3).float()


@dataclass(frozen=True, slots=True)
class Policy:
    """How to make a policy, and arguments of its `forward` for a batch."""

    build: Callable[[], nn.Module]
    inputs: Inputs


def _txl_inputs(n: int) -> tuple[Any, ...]:
    return _bytes(n, 3, 84, 84), torch.randn(n, 119, 3, 384), 1 - _mask(n, 119), torch.randint(0, 1024, (n, 119))


POLICIES: dict[str, Policy] = {
    "m64": Policy(M64, lambda n: (torch.randn(n, 17),)),
    "m256": Policy(M256, lambda n: (torch.randn(n, 376),)),
    "nat": Policy(NAT, lambda n: (_bytes(n, 4, 84, 84),)),
    "imp": Policy(IMP, lambda n: (torch.rand(n, 3, 64, 64),)),
    "nl": Policy(NL, lambda n: (_bytes(n, 1, 84, 84), _mask(n), torch.randn(1, n, 128), torch.randn(1, n, 128))),
    "hok1": Policy(
        HOK1,
        lambda n: (torch.rand(n, 725), (torch.randn(1, n, 512), torch.randn(1, n, 512)), torch.rand(n) < 0.3),
    ),
    "hok3": Policy(HOK3, lambda n: (torch.rand(n, 3, 6, 17, 17), torch.rand(n, 3, 2852))),
    "dz": Policy(DZ, lambda n: (_mask(n, 5, 162), _mask(n, 373))),
    "txl": Policy(TXL, _txl_inputs),
    "az6": Policy(AZ, lambda n: ((torch.rand(n, 17, 19, 19) < 0.3).float(),)),
}


def create(name: str) -> nn.Module:
    """The module of `name` in evaluation mode, the same every time."""
    torch.manual_seed(0)
    with torch.no_grad():
        return orthogonal(POLICIES[name].build()).eval()


def inputs(name: str, batch: int, seed: int = 1) -> tuple[Any, ...]:
    """Arguments of `forward` for `batch` entries."""
    torch.manual_seed(seed)
    return POLICIES[name].inputs(batch)


def _main() -> None:
    import tilewright as tw

    print(f"{'policy':8} {'compile, s':>10}   largest error at batch 1, 2, 5, 8")
    for name in POLICIES:
        module = create(name)
        start = time.perf_counter()
        model = tw.compile(module, inputs(name, 2))
        seconds = time.perf_counter() - start
        errors = []
        for batch in (1, 2, 5, 8):
            arguments = inputs(name, batch)
            with torch.no_grad():
                expected = torch.utils._pytree.tree_leaves(module(*arguments))
            result = model(*torch.utils._pytree.tree_leaves(arguments))
            pairs = zip(result if isinstance(result, tuple) else (result,), expected, strict=True)
            errors.append(max(float((a - b).abs().max()) for a, b in pairs))
        print(f"{name:8} {seconds:10.2f}   {'  '.join(f'{e:.1e}' for e in errors)}", flush=True)


if __name__ == "__main__":
    _main()
