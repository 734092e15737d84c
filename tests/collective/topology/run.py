"""`make topologies`: the model's choice against the fastest algorithm on simulated networks, 8 to 1,024 ranks."""

from __future__ import annotations

from tests.collective.topology.choices import NETWORKS, SIZES, ratio


def main() -> None:
    worst: dict[str, tuple[float, str]] = {}
    for name, network in NETWORKS.items():
        for ranks in (8, 13, 16, 23, 64, 100, 256, 1000, 1024):
            for nbytes in SIZES:
                value, text = ratio(network, ranks, nbytes)
                worst[name] = max(worst.get(name, (0.0, "")), (value, text))
        print(f"{name}: at worst {worst[name][0]:.3f} times the best: {worst[name][1]}", flush=True)


if __name__ == "__main__":
    main()
