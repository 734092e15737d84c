"""All examples of many processes: `python -m examples.distributed`, or `make demo-distributed`."""

from __future__ import annotations

from importlib.util import find_spec

from examples.distributed import pipeline, server_actors


def main() -> int:
    good = pipeline.main() < 1e-4
    _, reward = server_actors.main()
    good &= reward > 0.9
    if find_spec("torch") is None:
        print("data-parallel learning needs PyTorch")
    else:
        from examples.distributed import data_parallel

        good &= all(one["accuracy"] > 0.9 for one in data_parallel.main("digits").values())
        ddp, compiled = (one["losses"] for one in data_parallel.main("ResNet-18").values())
        good &= abs(ddp[0] - compiled[0]) < 1e-3 and all(min(losses[-5:]) < losses[0] for losses in (ddp, compiled))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
