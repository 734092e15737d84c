"""TorchRL: collectors whose policy reads a store of weights, and the weight synchronisation that feeds it.

    published = tilewright.rl.torchrl.publish(policy, "pendulum", env.reset())
    collector = MultiSyncCollector(
        [make_env] * 8, published.policy, weight_sync_schemes={"policy": published.scheme}, frames_per_batch=..., ...
    )
    for data in collector:
        ...                                              # train `policy`
        collector.update_policy_weights_(policy)

The deterministic modules of the policy are compiled. What follows them runs in TorchRL as before: the distribution, its
sampling under `set_exploration_type`, exploration modules, Q-value modules. `update_policy_weights_` publishes once,
whatever the number of workers, and every worker's next step uses that version: there is no message that could fail to
arrive. Which version gave a step is in the data under `version_key`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import nn
from torchrl.weight_update import WeightSyncScheme

from tilewright.live.store import Actor, Publisher, attach
from tilewright.rl.node import publisher_of
from tilewright.rl.part import Part, Tensors, compile_part, weights_of
from tilewright.support.errors import CallError, Problems, UnsupportedError, WeightError

if TYPE_CHECKING:
    from tilewright.ir.selection import Precision

__all__ = ["Published", "StorePolicy", "StoreWeightSync", "publish"]

MAX_CARRIED = 4096
"""The largest number of elements of all parameters and buffers (an epsilon, a scale) of a module that is not compiled;
they are passed along with each call."""


def publish(
    policy: TensorDictModuleBase,
    name: str,
    example: TensorDictBase,
    *,
    threads: int = 1,
    version_key: str | None = None,
    directory: str | os.PathLike[str] | None = None,
    wait: float = 0.0,
    precision: Precision = "fp32",
) -> Published:
    """Compile a policy, open the weight store `name`, and make what collectors need to read from it.

    Args:
        policy: a TensorDictModule or a sequence of them: ProbabilisticActor, QValueActor, ActorValueOperator, ...
        name: the name of the store.
        example: a tensordict with the policy's `in_keys`, of any batch size, such as `env.reset()`.
        threads: the number of threads of a call in each worker.
        version_key: the key of an entry of collected data with the version of the weights that gave the action, int64
            (*batch, 1).
        directory, wait: as for `tw.Publisher`.
        precision: of the products, as for `tw.compile`: "bf16", "fp16", "int8", "int8w" or "int4w".

    Raises:
        UnsupportedError: something with parameters depends on what was sampled; all such modules are listed.
    """
    parts = _Parts(policy)
    examples = parts.examples(example)
    training = policy.training
    policy.eval()
    try:
        model = compile_part(
            Part(policy, examples, parts.function), examples, name=type(policy).__name__, precision=precision
        )
    finally:
        policy.train(training)
    publisher = publisher_of(name, model, directory=directory, wait=wait)
    store = StorePolicy(parts, name, threads=threads, version_key=version_key, directory=directory)
    return Published(policy, publisher, store)


class Published:
    """The result of `publish`. A context manager that closes the publisher.

    Attributes:
        policy: for collectors, in any process: a `StorePolicy`.
        scheme: for the argument `weight_sync_schemes` of collectors: a `StoreWeightSync`.
        publisher: the store's `tw.Publisher`.
    """

    def __init__(self, source: nn.Module, publisher: Publisher, policy: StorePolicy) -> None:
        self._source = source
        self.publisher = publisher
        self.policy = policy
        self.scheme = StoreWeightSync(self)

    @property
    def version(self) -> int:
        """The number of the newest version in the store, to which this object publishes."""
        return self.publisher.version

    def publish(self, weights: Any = None, version: int | None = None) -> int:
        """Publish weights; returns their version. For collectors without `weight_sync_schemes`, or without a collector.

        Args:
            weights: a module, a tensordict of parameters and buffers, or a dict of names; the policy's if None.
            version: more than the newest; one more if None.
        """
        return self.publisher.publish(_named(self._source if weights is None else weights), version=version)

    def close(self) -> None:
        """Close the publisher, so that nothing more can be published. The store and its last version stay for the
        workers."""
        self.publisher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _named(weights: Any) -> dict[str, Any]:
    """The weights `weights` (a module, a tensordict of parameters and buffers, or a dict) by the names that
    `state_dict()` uses. Raises WeightError for anything else, and if there are none."""
    if isinstance(weights, nn.Module):
        return weights_of(weights)
    if isinstance(weights, TensorDictBase):
        weights = weights.flatten_keys(".").to_dict()
    if not isinstance(weights, Mapping) or not weights:
        raise WeightError(
            "there are no weights to publish",
            expected="a module, a tensordict of parameters, or a dict of names",
            got="nothing" if isinstance(weights, Mapping) else type(weights).__name__,
        )
    if any(isinstance(value, Mapping) for value in weights.values()):
        weights = TensorDict(weights).flatten_keys(".").to_dict()
    return {name: value.detach() for name, value in weights.items()}


# -- the workers' side -------------------------------------------------------------------------------------------------


class StorePolicy(TensorDictModuleBase):
    """A policy whose weights are those of a store; its `in_keys` and `out_keys` are the original's.

    It may be pickled, copied and sent anywhere on this machine; it attaches to the store at its first call in a
    process.
    """

    def __init__(
        self,
        parts: _Parts,
        name: str,
        *,
        threads: int = 1,
        version_key: str | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        self.in_keys = parts.in_keys
        self.out_keys = parts.out_keys + ([version_key] if version_key is not None else [])
        self._version_key = version_key
        self._where = (name, threads, directory)
        # Not registered as children: their parameters and buffers come from the store, not from a collector.
        self.__dict__["_parts"] = parts.without_head()
        self.__dict__["_actor"] = None

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the policy's entries from the newest weights in the store, and add them to the tensordict."""
        actor = self.__dict__["_actor"] or self._attach()
        parts: _Parts = self.__dict__["_parts"]
        inputs, batch = parts.inputs(tensordict)
        outputs, version = actor.versioned(*inputs)
        parts.store(outputs if isinstance(outputs, tuple) else (outputs,), tensordict, batch)
        if self._version_key is not None:
            tensordict.set(self._version_key, torch.full((*batch, 1), version, dtype=torch.int64))
        for module in parts.tail:
            tensordict = module(tensordict)
        return tensordict

    @property
    def version(self) -> int:
        """The number of the version in the store that a call would use now; attaches to the store if that has not been
        done."""
        actor: Actor = self.__dict__["_actor"] or self._attach()
        return actor.version

    def _attach(self) -> Actor:
        name, threads, directory = self._where
        actor = attach(name, threads, directory=directory)
        self.__dict__["_actor"] = actor
        # What is written to the tail must reach neither the original policy nor, through shared memory, other workers.
        self.__dict__["_parts"] = self.__dict__["_parts"].private()
        return actor

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_actor": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> StorePolicy:
        twin = self.__class__.__new__(self.__class__)
        twin.__dict__.update(self.__getstate__())
        return twin


class StoreWeightSync(WeightSyncScheme):
    """A WeightSyncScheme that publishes to the store which the workers' `StorePolicy` reads.

    `send` gives a policy's weights to the publisher, and returns when they are current for every next call of every
    worker. Workers of other stores, or only some of the workers, cannot be served: these raise an error.
    """

    def __init__(self, published: Published) -> None:
        super().__init__(strategy="tensordict")
        self._published: Published | None = published

    def send(self, weights: Any = None, worker_ids: Any = None) -> None:
        """Publish weights (the original policy's present ones if None) for all workers. Raises UnsupportedError unless
        `worker_ids` is None, WeightError in a process that does not publish."""
        if self._published is None:
            raise WeightError("weights are sent by the process that publishes them")
        if worker_ids is not None:
            raise UnsupportedError("a store serves all workers alike", expected="worker_ids=None", got=worker_ids)
        self._published.publish(weights)

    def receive(self, timeout: float | None = None) -> None:
        """Nothing has to be received: calls find the newest version by themselves."""

    def create_transport(self, **kwargs: Any) -> Any:
        """None: weights travel through the store, not over a transport of TorchRL."""
        return None

    def _init_on_sender_impl(self, *, model_id: str = "policy", context: Any = None, **kwargs: Any) -> None:
        if getattr(context, "policy_version_tracker", None) is not None:
            hint = 'pass version_key="policy_version" to tilewright.rl.torchrl.publish'
            raise UnsupportedError("track_policy_version counts messages, of which there are none", hint=hint)
        self._check(getattr(context, "policy", None), model_id)
        self.model_id = model_id
        self.context = context

    def _init_on_receiver_impl(
        self, *, model_id: str, context: Any = None, model: Any = None, worker_idx: int | None = None, **kwargs: Any
    ) -> None:
        self._check(model, model_id)
        self.model_id = model_id
        self.model = model
        self.worker_idx = worker_idx

    def _check(self, model: Any, model_id: str) -> None:
        """Raise CallError if `model`, the policy number `model_id`, does not read the store: it would silently go on
        with its own weights."""
        if model is not None and not isinstance(model, StorePolicy):
            raise CallError(
                "the policy does not read the store",
                where=f"model {model_id!r}",
                expected="`policy` of what tilewright.rl.torchrl.publish gives",
                got=type(model).__name__,
            )

    def _setup_connection_and_weights_on_sender_impl(self, **kwargs: Any) -> None:
        """Nothing to do: the publisher has put the first version there."""

    def _setup_connection_and_weights_on_receiver_impl(self, **kwargs: Any) -> None:
        """Nothing to do: policies attach when they are called."""

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return state | {"_published": None}


# -- what of a policy is compiled --------------------------------------------------------------------------------------


class _Parts:
    """A policy in two parts: modules that are compiled, and a tail that runs in PyTorch.

    Attributes:
        head: modules that are compiled, in order.
        tail: modules that draw random numbers or depend on one that does, and parameterless ones; in order.
    """

    def __init__(self, policy: TensorDictModuleBase) -> None:
        self.in_keys = list(policy.in_keys)
        self.out_keys = list(policy.out_keys)
        self.head: list[Any] = []
        self.tail: list[Any] = []
        self._divide(policy)
        produced = {key for module in self.head for key in module.out_keys}
        needed = {key for module in self.tail for key in module.in_keys} | set(self.out_keys)
        self._head_keys = [key for key in _ordered(self.head) if key in produced & needed]
        # By their modules and names: while it is traced another tensor stands there.
        self._carried = [(m, name) for module in self.tail for m in module.modules() for name in _own_tensors(m)]
        self._ranks: list[int] = []

    def _divide(self, policy: TensorDictModuleBase) -> None:
        """Divide a policy's modules: those that draw random numbers, or read results of the tail, go to the tail."""
        problems = Problems()
        deferred: set[Any] = set()
        names = {id(module): name for name, module in policy.named_modules()}
        for module in _flat(policy):
            compiled = isinstance(module, TensorDictModule) and not deferred.intersection(module.in_keys)
            (self.head if compiled else self.tail).append(module)
            if not compiled:
                deferred.update(module.out_keys)
                size = sum(t.numel() for t in module.state_dict().values())
                if size > MAX_CARRIED:
                    where = f"module {names.get(id(module), '?')!r} ({type(module).__name__})"
                    problems.add(
                        UnsupportedError(
                            "has parameters and is not compiled, because it draws random numbers or depends on them",
                            where=where,
                            expected=f"at most {MAX_CARRIED} elements",
                            got=size,
                        )
                    )
        if not self.head:
            problems.add(UnsupportedError("has nothing to compile", where=f"policy {type(policy).__name__}"))
        if sum(isinstance(m, ProbabilisticTensorDictModule) for m in self.tail) > 1:
            problems.add(UnsupportedError("has several distributions", where=f"policy {type(policy).__name__}"))
        problems.raise_if_any("the policy is not supported", kind=UnsupportedError)

    def function(self, inputs: Tensors) -> Tensors:
        """The function to compile, from the head's inputs to its outputs."""
        td = TensorDict(dict(zip(self.in_keys, inputs.values(), strict=True)), batch_size=[])
        for module in self.head:
            td = module(td)
        outputs = {_text(key): td.get(key) for key in self._head_keys}
        return outputs | {f"carried_{i}": getattr(m, name).clone() for i, (m, name) in enumerate(self._carried)}

    def examples(self, example: TensorDictBase) -> dict[str, torch.Tensor]:
        """The inputs of the example by name, with one batch axis of two."""
        problems = Problems()
        result = {}
        for key in self.in_keys:
            value = example.get(key, None)
            if value is None:
                problems.add(CallError("is missing", where=f"entry {_text(key)!r} of the example"))
                continue
            value = value[(0,) * example.batch_dims]
            self._ranks.append(value.ndim)
            result[_text(key)] = value.detach().cpu().expand(2, *value.shape).contiguous()
        problems.raise_if_any("the example does not fit the policy", kind=CallError)
        return result

    def without_head(self) -> _Parts:
        """The parts for workers: without the compiled modules, whose weights are in the store."""
        parts = copy.copy(self)
        parts.head = []
        return parts

    def private(self) -> _Parts:
        """A copy of the parts that has its own tail."""
        parts = copy.copy(self)
        parts.tail, parts._carried = copy.deepcopy((self.tail, self._carried))
        return parts

    def inputs(self, tensordict: TensorDictBase) -> tuple[list[torch.Tensor], torch.Size]:
        """The inputs of a call with one batch axis, and the batch shape that they had."""
        results = []
        batch = torch.Size()
        for key, rank in zip(self.in_keys, self._ranks, strict=True):
            value = tensordict.get(key)
            batch = value.shape[: value.ndim - rank]
            results.append(value if len(batch) == 1 else value.reshape(-1, *value.shape[len(batch) :]))
        return results, batch

    def store(self, outputs: tuple[Any, ...], tensordict: TensorDictBase, batch: torch.Size) -> None:
        """Put the outputs of a call into a tensordict, and copy the tensors that are passed along with the weights into
        the tail."""
        for key, value in zip(self._head_keys, outputs, strict=False):
            tensordict.set(key, value if len(batch) == 1 else value.reshape(*batch, *value.shape[1:]))
        with torch.no_grad():
            for (module, name), value in zip(self._carried, outputs[len(self._head_keys) :], strict=True):
                getattr(module, name).copy_(value)


def _flat(module: Any) -> list[Any]:
    """The modules of nested sequences as one list, in order."""
    if isinstance(module, TensorDictSequential):
        return [leaf for child in module.module for leaf in _flat(child)]
    return [module]


def _ordered(modules: list[Any]) -> list[Any]:
    return list(dict.fromkeys(key for module in modules for key in module.out_keys))


def _own_tensors(module: nn.Module) -> list[str]:
    """Names of a module's own parameters and buffers, those that `state_dict()` has."""
    names = [name for name, t in (module._parameters | module._buffers).items() if t is not None]
    return [name for name in names if name not in module._non_persistent_buffers_set]


def _text(key: Any) -> str:
    return key if isinstance(key, str) else "_".join(key)
