"""Steps of training networks: our compiled step, PyTorch's eager mode, Inductor and JAX. One thread each.

All start with the same weights and batch and report the loss of their first step, so that the race can see that they do
the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from benchmarks import models
from tilewright.measure.contender import Prepared

RATE = 1e-4


@dataclass(frozen=True, slots=True)
class Case:
    """A network in training mode, its loss, and a batch."""

    build: Callable[[], Any]
    loss: Callable[..., Any]
    batch: Callable[[], tuple[Any, ...]]


def _classified(model: Any, x: Any, y: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(model(x), y)


def _searched(model: Any, board: Any, policy: Any, value: Any) -> Any:
    """AlphaZero's: cross entropy of the search's moves and the squared error of the outcome."""
    import torch

    result = model(board)
    moves = torch.nn.functional.cross_entropy(result["policy"], policy)
    return moves + (result["value"][:, 0] - value).square().mean()


def _ppo(model: Any, obs: Any, actions: Any, old: Any, advantages: Any, returns: Any) -> Any:
    from tilewright.train import losses

    result = model(obs)
    logits, values = result.values() if isinstance(result, dict) else result
    policy = losses.ppo(losses.categorical_log_prob(actions, logits), old, advantages)
    return policy + 0.5 * losses.mse(values[:, 0], returns)


def _resnet18() -> Any:
    from benchmarks.torch_vision import BasicBlock, ResNet

    return ResNet(BasicBlock, [2, 2, 2, 2])


def _transformer() -> Any:
    from torch import nn

    class Transformer(nn.Module):
        """Six layers of width 256 on 128 tokens; without dropout, whose numbers are not PyTorch's."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(1000, 256)
            layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, "gelu", batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
            self.head = nn.Linear(256, 10)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.layers(self.embedding(tokens)).mean(1))

    return Transformer()


def _lstm() -> Any:
    from torch import nn

    class Classifier(nn.Module):
        """Two layers of 128 over 64 steps of 32 features."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.LSTM(32, 128, 2, batch_first=True)
            self.head = nn.Linear(128, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.layers(x)[0][:, -1])

    return Classifier()


def _mlp() -> Any:
    from torch import nn

    sizes = [64] + [256] * 16
    layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(256, 10))


def _policy(name: str) -> Callable[[], Any]:
    def build() -> Any:
        from benchmarks.torch_policies import create

        return create(name)

    return build


def _pictures(*shape: int, classes: int) -> Callable[[], tuple[Any, ...]]:
    def batch() -> tuple[Any, ...]:
        import torch

        return torch.randn(shape), torch.randint(classes, shape[:1])

    return batch


def _tokens() -> tuple[Any, ...]:
    import torch

    return torch.randint(1000, (8, 128)), torch.randint(10, (8,))


def _games() -> tuple[Any, ...]:
    import torch

    board = (torch.rand(64, 17, 19, 19) < 0.3).float()
    return board, torch.rand(64, 362).softmax(1), torch.rand(64) * 2 - 1


def _rollout(name: str, actions: int) -> Callable[[], tuple[Any, ...]]:
    def batch() -> tuple[Any, ...]:
        import torch

        from benchmarks.torch_policies import inputs

        (obs,) = inputs(name, 256)
        return obs, torch.randint(actions, (256,)), -torch.rand(256), torch.randn(256), torch.randn(256)

    return batch


CASES: dict[str, Case] = {
    "resnet18 64x64@32": Case(_resnet18, _classified, _pictures(32, 3, 64, 64, classes=1000)),
    "transformer 6x256, 128 tokens@8": Case(_transformer, _classified, _tokens),
    "lstm 2x128, 64 steps@32": Case(_lstm, _classified, _pictures(32, 64, 32, classes=10)),
    "mlp 16x256@2048": Case(_mlp, _classified, _pictures(2048, 64, classes=10)),
    "az6@64": Case(_policy("az6"), _searched, _games),
    "nat ppo@256": Case(_policy("nat"), _ppo, _rollout("nat", 6)),
    "imp ppo@256": Case(_policy("imp"), _ppo, _rollout("imp", 15)),
}


def task_of(case: str) -> tuple[Any, Callable[..., Any], tuple[Any, ...]]:
    """A case's network, loss and batch, the same ones in each process."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    chosen = CASES[case]
    return chosen.build().train(), chosen.loss, chosen.batch()


def own(case: str, memory: str | None = "auto") -> Prepared:
    """Our step, with a budget of memory if another one than the default is given."""
    import tilewright as tw

    module, loss, batch = task_of(case)
    start = time.perf_counter()
    step = tw.compile_step(module, loss, tw.train.Adam(RATE), batch, clip=0.5, memory=memory)
    info = {"compile_seconds": time.perf_counter() - start, "flops": flops(module, loss, batch)}
    arrays = [x.numpy() for x in batch]
    info["loss"] = step(*arrays)["loss"]
    used = step.model.memory()
    info |= {"planned": used.arena, "held": used.arenas_held}
    return Prepared(lambda: step(*arrays), None, info)


def flops(module: Any, loss: Callable[..., Any], batch: tuple[Any, ...]) -> int:
    """Operations of all products and convolutions of the loss and its gradients, as PyTorch counts them."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    state = {name: value.clone() for name, value in module.state_dict().items()}
    # PyTorch knows no count of its fused recurrent layers.
    with FlopCounterMode(display=False) as counter, torch.backends.mkldnn.flags(enabled=False):
        loss(module, *batch).backward()
    module.load_state_dict(state)
    module.zero_grad()
    return int(counter.get_total_flops())


def stepping(objective: Callable[..., Any], module: Any, batch: tuple[Any, ...]) -> Callable[[], float]:
    """A step of PyTorch with its fused Adam."""
    import torch

    optimizer = torch.optim.Adam(module.parameters(), RATE, fused=True)

    def call() -> float:
        optimizer.zero_grad()
        result = objective(module, *batch)
        result.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
        return float(result.detach())

    return call


def eager(case: str) -> Prepared:
    module, loss, batch = task_of(case)
    call = stepping(loss, module, batch)
    return Prepared(call, None, {"loss": call()})


def inductor(case: str) -> Prepared:
    """Model and loss through `torch.compile`, whose kernels are kept under `build`; clipping and Adam as eager."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(models.ROOT / "build" / "peers" / "inductor"))
    import torch

    module, loss, batch = task_of(case)
    call = stepping(torch.compile(loss, dynamic=False), module, batch)
    start = time.perf_counter()
    result = call()
    return Prepared(call, None, {"loss": result, "compile_seconds": time.perf_counter() - start})


def allocated(case: str, compiler: str) -> Prepared:
    """The bytes that PyTorch's allocator has handed out at the fullest moment of a step, beyond what there is before
    it: the gradients are among them, what oneDNN takes within a call is not."""
    from torch.profiler import ProfilerActivity, profile

    prepared = {"eager": eager, "inductor": inductor}[compiler](case)
    prepared.call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        prepared.call()
    events = seen.profiler.kineto_results.events()
    held = accumulate(e.nbytes() for e in events if e.name() == "[memory]")
    return Prepared(prepared.call, None, {"peak": max(held)})


def jax(case: str) -> Prepared:
    """The whole step in one `jit`, its state donated."""
    import jax.numpy as jnp

    from benchmarks.peers import training_jax

    module, _, batch = task_of(case)
    state = {name: value.numpy() for name, value in module.state_dict().items()}
    trained = {name for name, _ in module.named_parameters()}
    step, first = training_jax.step_of(training_jax.LOSSES[case.replace("@", " ").split()[0]], state, trained)
    retained = [first]
    arrays = [jnp.asarray(x.numpy()) for x in batch]

    def call() -> float:
        retained[0], value = step(retained[0], *arrays)
        return float(value)

    start = time.perf_counter()
    result = call()
    return Prepared(call, None, {"loss": result, "compile_seconds": time.perf_counter() - start})
