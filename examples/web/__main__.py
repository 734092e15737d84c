"""Train both networks and write the site: `python -m examples.web`."""

from __future__ import annotations

import argparse
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import tilewright as tw
from examples.mnist_like.digits import load
from examples.web import catch, digits, site


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.web", description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("build/web"))
    parser.add_argument("--epochs", type=int, default=30, help="of the digits")
    parser.add_argument("--steps", type=int, default=400, help="of the player")
    parser.add_argument("--serve", type=int, metavar="PORT", help="show the site there until interrupted")
    options = parser.parse_args(arguments)
    weights, share = digits.trained(load(), options.epochs)
    print(f"digits: {share:.1%} of the test's pictures are read right")
    player = catch.model(catch.trained(options.steps))
    print(f"catch: {catch.share_caught(tw.compile(player)):.0%} of the balls are caught")
    for name, count in site.write(options.output, {"digits": digits.model(weights), "player": player}).items():
        print(f"{options.output}/{name}: a module of {count} bytes")
    if options.serve is not None:
        print(f"http://localhost:{options.serve}")
        handler = partial(SimpleHTTPRequestHandler, directory=str(options.output))
        ThreadingHTTPServer(("localhost", options.serve), handler).serve_forever()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
