"""`python -m tilewright.targets.vta`: check files of recorded streams, print a program as text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tilewright.support.errors import Error
from tilewright.targets.vta.encodings import differences as encodings
from tilewright.targets.vta.encodings import has_encodings
from tilewright.targets.vta.streams import differences, read


def check(files: Sequence[str]) -> int:
    """Run the streams of files, or encode their words, and print which differ. Returns 0 if none does, 1 if some do, 2
    for an invalid file."""
    code = 0
    for path in files:
        total = wrong = 0
        try:
            if has_encodings(path):
                total, texts = encodings(path)
                for text in texts:
                    print(f"{path}: {text}")
                    code = max(code, 1)
                print(f"{path}: {total} words, {'all equal' if not texts else 'differences'}")
                continue
            for stream in read(path):
                total += 1
                for text in differences(stream):
                    print(f"{path}: {stream.name}: {text}")
                    code = max(code, 1)
                    wrong += 1
        except Error as error:
            print(error, file=sys.stderr)
            code = 2
            continue
        print(f"{path}: {total} streams, {'all equal' if not wrong else f'{wrong} differences'}")
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments`; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tilewright.targets.vta", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("check", help="run recorded streams and say which differ")
    command.add_argument("files", nargs="+", metavar="FILE")
    return check(parser.parse_args(arguments).files)


if __name__ == "__main__":
    sys.exit(main())
