"""RLlib's new API stack: env runners whose forward passes run on Tilewright, from one store of weights per node.

    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=8, env_runner_cls=tilewright.rl.rllib.TilewrightEnvRunner)
    )
    algorithm = config.build_algo()

Everything else stays as it is: connectors, sampling of actions, episodes, learners. A runner hands the weights that
arrive through `set_state` to the store of its node, with `WEIGHTS_SEQ_NO` as their version: the first runner that
sees a number packs and publishes, the others find it done and read. So weights are packed once per node and stand
there once, whatever the number of runners; and a runner acts on the newest weights that any runner of its node has
been sent. Episodes carry the `WEIGHTS_SEQ_NO` that was used for each step.

Works with single-agent algorithms whose module gives `action_dist_inputs` for `obs` (and `state_out` for `state_in`,
if it is recurrent), in exploration as in inference: PPO, APPO, IMPALA, SAC, BC, MARWIL and modules of one's own.
Anything else is one UnsupportedError, when the algorithm is built or at the first sample.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from operator import getitem
from typing import TYPE_CHECKING, Any

import ray
import torch
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from tilewright.rl.node import NodeStore, sweep_forgotten
from tilewright.rl.part import Part, Tensors, compile_part
from tilewright.rl.rllib_batch import Path, flat, nested, traceable
from tilewright.runtime.model import Model
from tilewright.support.errors import Problems, UnsupportedError

if TYPE_CHECKING:
    from tilewright.ir.selection import Precision

__all__ = ["TilewrightEnvRunner"]

PREFIX = "rllib-"
_INPUTS = (Columns.OBS, Columns.STATE_IN)
_OUTPUT = Columns.ACTION_DIST_INPUTS


class TilewrightEnvRunner(SingleAgentEnvRunner):
    """A SingleAgentEnvRunner whose module's forward passes read the node's store of weights.

    Each call uses one thread; `threads` in a subclass changes that:

        class Runner(TilewrightEnvRunner):
            threads = 2
            precision = "int8"  # of its products, as for `tw.compile`

    The store is named after the algorithm's log folder, lies in `$TILEWRIGHT_STORE_DIR` (default
    `/dev/shm/tilewright-<uid>`) and goes when the last runner of the node stops; what killed runners left is
    removed by a later run. Evaluation runners have a store of their own.
    """

    threads = 1
    precision: Precision = "fp32"

    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        name = f"{kwargs.get('log_dir')} {ray.get_runtime_context().get_job_id()} {config.in_evaluation}"
        self._store_name = PREFIX + hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
        self._forward: _Forward | None = None
        self._unread_state: Any = None
        self._state_seq_no = 0
        super().__init__(config=config, **kwargs)

    def make_module(self) -> None:
        """Build the module, and put the compiled program in the place of its forward passes."""
        super().make_module()
        if self.module is None:
            return
        if self._forward is not None:
            self._forward.close()
        _check(self.module, self.config)
        self._forward = _Forward(self.module, self._store_name, self.threads, self.precision)
        self.module.forward_exploration = self._acting
        self.module.forward_inference = self._acting

    def _acting(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        assert self._forward is not None, "only made modules act"
        outputs, version = self._forward(batch)
        # What episodes and metrics report is what was used, also when another runner has fetched it.
        self._weights_seq_no = version
        return outputs

    def set_state(self, state: Any) -> None:
        """RLlib's method; weights newer than the node's are also published to the node's store."""
        if self._forward is not None and COMPONENT_RL_MODULE in state:
            state = dict(state)
            weights = state.pop(COMPONENT_RL_MODULE)
            version = state.pop(WEIGHTS_SEQ_NO, None)
            self._forward.take(lambda: _module_state(weights), version)
            if not version or version > self._state_seq_no:
                # RLlib's module is a second copy that nothing reads but get_state: it is filled when that is called.
                self._unread_state = weights
            if version:
                self._state_seq_no = max(version, self._state_seq_no)
                self._weights_seq_no = max(version, self._weights_seq_no)
        super().set_state(state)

    def get_state(self, *args: Any, **kwargs: Any) -> Any:
        """RLlib's method; first copies the newest weights to RLlib's module, which otherwise nothing reads."""
        if self._unread_state is not None:
            self.module.set_state(_module_state(self._unread_state))
            self._unread_state = None
        return super().get_state(*args, **kwargs)

    def stop(self) -> None:
        """Close the environments, and detach from the store."""
        if self._forward is not None:
            self._forward.close()
        super().stop()


def _module_state(state: Any) -> dict[str, Any]:
    if isinstance(state, ray.ObjectRef):
        state = ray.get(state)
    if DEFAULT_MODULE_ID in state:
        state = state[DEFAULT_MODULE_ID]
    result: dict[str, Any] = state
    return result


def _check(module: Any, config: Any) -> None:
    problems = Problems()
    where = f"module {type(module).__name__}"
    if not isinstance(module, TorchRLModule):
        problems.add(UnsupportedError("is not a TorchRLModule", where=where))
    if config.is_multi_agent:
        problems.add(UnsupportedError("multi-agent algorithms are not supported", where=where))
    problems.raise_if_any("the algorithm cannot run on TilewrightEnvRunner", kind=UnsupportedError)


class _Forward:
    """The compiled forward pass of a module: compiled at the first batch that comes, for its dtypes and shapes."""

    def __init__(self, module: Any, name: str, threads: int, precision: Precision) -> None:
        self._module = module
        self._store, self._precision = NodeStore(name, threads), precision
        self._inputs: list[Path] = []
        self._outputs: list[Path] = []
        self._waiting: tuple[Callable[[], Mapping[str, Any]], int | None] | None = None

    def take(self, weights: Callable[[], Mapping[str, Any]], version: int | None) -> None:
        """Take over weights that the learner sent; `weights` is called only if no process of the node has published
        this version."""
        if self._store.is_open:
            self._store.publish(weights, version)
        else:
            self._waiting = (weights, version)

    def __call__(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        if not self._store.is_open:
            self._open({key: batch[key] for key in _INPUTS if key in batch})
        result, version = self._store.call(*[functools.reduce(getitem, path, batch) for path in self._inputs])
        outputs = result if isinstance(result, tuple) else (result,)
        return nested(zip(self._outputs, outputs, strict=True)), version

    def _open(self, batch: dict[str, Any]) -> None:
        sweep_forgotten(PREFIX)
        inputs = flat(batch)
        self._inputs = list(inputs)
        self._outputs = list(flat(_eager(self._module, batch)))
        self._store.open(lambda: self._compile(inputs), *(self._waiting or ()))
        self._waiting = None

    def _compile(self, inputs: dict[Path, Any]) -> Model:
        examples = {"_".join(path): tensor for path, tensor in inputs.items()}
        module = self._module

        def forward(tensors: Tensors) -> Tensors:
            batch = nested(zip(inputs, tensors.values(), strict=True))
            result = flat(module._forward_exploration(batch, t=0))
            return {"_".join(path): result[path] for path in self._outputs}

        with traceable(module):
            part = Part(module, examples, forward)
            return compile_part(part, examples, name=type(module).__name__, precision=self._precision)

    def close(self) -> None:
        """Detach this process from the store of weights; the last of the node's runners to do so removes the store's
        files."""
        self._store.close()


def _eager(module: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """The outputs that the module computes eagerly from `batch`. Raises UnsupportedError unless exploration and
    inference give the same distribution parameters and nothing else."""
    where = f"module {type(module).__name__}"
    module.eval()
    passes: dict[str, dict[str, Any]] = {"_forward_exploration": {"t": 0}, "_forward_inference": {}}
    results = [getattr(module, name)(dict(batch), **kwargs) for name, kwargs in passes.items()]
    problems = Problems()
    for name, outputs in zip(passes, results, strict=True):
        if _OUTPUT not in outputs or not set(outputs) <= {_OUTPUT, Columns.STATE_OUT}:
            problems.add(
                UnsupportedError(f"{name} gives something else", where=where, expected=_OUTPUT, got=sorted(outputs))
            )
    problems.raise_if_any("the module is not supported", kind=UnsupportedError)
    if not torch.equal(results[0][_OUTPUT], results[1][_OUTPUT]):
        raise UnsupportedError("exploration and inference compute different things", where=where)
    first: dict[str, Any] = results[0]
    return first
