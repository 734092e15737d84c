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

        good &= all(one["accuracy"] > 0.9 for one in data_parallel.main().values())
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
