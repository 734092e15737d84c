"""The cases that are compiled to see whether the compiler makes other code: the suites' models and layers, each in some
settings.

Models are taken as they are timed, with their batch fixed, and with it left open; some also for two threads, with
products in bf16 and int8, and with other fast convolutions. Layers stand as in the tables, with two more. What else
the compiler makes, from learning steps to the runtime's own code, stands in `built_cases.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks import bench_models, built_cases, layers, models


@dataclass(frozen=True, slots=True)
class Case:
    """A model in one setting; `batch` None leaves its batch open."""

    model: str
    batch: int | None = 1
    threads: int = 1
    precision: str = "fp32"
    fast: str = "auto"

    @property
    def name(self) -> str:
        """`az6`, `az6@8`, `az6@batch`, with what else differs from the usual: `bert 2t bf16 strassen`."""
        batch = {1: "", None: "@batch"}.get(self.batch, f"@{self.batch}")
        words = [self.model.removeprefix(layers.PREFIX) + batch]
        words += [f"{self.threads}t"] * (self.threads != 1)
        words += [self.precision] * (self.precision != "fp32") + [self.fast] * (self.fast != "auto")
        return " ".join(words)

    @property
    def dims(self) -> dict[str, int]:
        """The dimensions that are fixed: what comes from the onnx wheel and single layers have no open ones."""
        has_open = not self.model.startswith((layers.PREFIX, "light-"))
        return {"batch": self.batch} if has_open and self.batch is not None else {}


_THREADS = "m64 dz@8 nat@32 az6 resnet50 mobilenetv2 unet bert gpt2-decode"
_THREADS_LAYERS = "conv3x3-128-128-19 conv3x3-64-64-224 conv1x1-64-256-56 gemm-512x512x512 gemv-1x4096x4096"
_THREADS_LAYERS += " softmax-1536x128 layer-norm-384x768 attention-384x768 depthwise3x3-144-144-56"
_PRECISION = "m64 dz@8 txl nat az6 resnet50 mobilenetv2 bert gpt2 light-squeezenet"
_PRECISION_LAYERS = "conv3x3-128-128-19 conv1x1-256-64-56 gemm-512x512x512 gemv-1x1024x1024 attention-384x768"
_STRASSEN = "dz@64 bert gpt2 resnet50"
_STRASSEN_LAYERS = "gemm-1024x1024x1024 gemm-384x768x3072 conv1x1-256-1024-14"
_EXACT = "az6 resnet18 vgg16 yolo"
_EXACT_LAYERS = "conv3x3-128-128-19 conv3x3-512-512-7 conv5x5-64-64-28 conv5-256-256-1024"

QUICK = """
m64, dz@8, hok3@batch, txl, nl, nat, az6, az6@batch, mobilenetv2, light-shufflenet, gpt2-decode, m64 2t,
bert bf16, resnet50 int8, dz@64 strassen, yolo exact, conv3x3-128-128-28, conv3x3-64-64-15, conv3x3-3-16-64,
conv5x5-64-64-28, conv9x9-64-64-28, conv1x1-64-256-56, conv1x1-256-1024-14 strassen,
grouped3x3-128-128-28-g4, grouped3x3-128-128-56-g32, depthwise7x7-96-96-56,
transposed2x2-128-64-64-s2, conv3x3-256-256-28-d2, conv5-256-256-1024, gemm-1024x1024x1024, matmul-256x256x256,
gemv-1x1024x1024, softmax-1536x128, residual-norm-128x768, gelu-128x3072, attention-384x768, attention-384x768 bf16
"""
"""Names of a few that have each plan in them (but the one of empty loops), for a look in between."""


def cases() -> list[Case]:
    """All of them, the large ones first, so that no worker ends long after the others."""
    results = [Case(c.model, c.batch) for c in bench_models.cases()]
    results += [Case(name) for name in models.LIGHT]
    results += [Case(name, None) for name in (*models.POLICY, *models.TORCH)]
    layer = [Case(layers.PREFIX + name) for name in (*layers.OTHERS, *layers.read())]
    variants = [
        *(replace(c, threads=2) for c in _named(_THREADS, _THREADS_LAYERS)),
        *(replace(c, precision=p) for p in ("bf16", "int8") for c in _named(_PRECISION, _PRECISION_LAYERS)),
        *(replace(c, fast="strassen") for c in _named(_STRASSEN, _STRASSEN_LAYERS)),
        *(replace(c, fast="exact") for c in _named(_EXACT, _EXACT_LAYERS)),
    ]
    built = [Case(built_cases.PREFIX + name) for name in built_cases.BUILT]
    return list(dict.fromkeys((*reversed(results), *variants, *layer, *built)))


def quick() -> list[Case]:
    """The cases of `QUICK`, and the built ones."""
    known = {case.name: case for case in cases()}
    built = [case for name, case in known.items() if name.startswith(built_cases.PREFIX)]
    return [*(known[name.strip()] for name in QUICK.replace("\n", " ").split(",")), *built]


def _named(labels: str, single: str) -> Iterator[Case]:
    for label in labels.split():
        model, _, batch = label.partition("@")
        yield Case(model, int(batch or 1))
    for name in single.split():
        yield Case(layers.PREFIX + name)
