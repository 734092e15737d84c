"""`python -m tests.words`: refused words in names, docstrings, comments, messages and documents (part of `make lint`).

`--update` lowers the counts that are allowed, `--list WORD` shows where a word stands, `--totals` how often each does.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.words import ledger, rules


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.words", description=__doc__)
    options.add_argument("--update", action="store_true", help="lower the counts that are allowed to those of the tree")
    options.add_argument("--totals", action="store_true", help="print how often each word stands in the tree")
    options.add_argument("--list", metavar="WORD", help="print the lines in which a word stands")
    chosen = options.parse_args()
    if chosen.list:
        for path in rules.files():
            text = path.read_text()
            for word, at in rules.words(path, text):
                if word == chosen.list:
                    line = text.count("\n", 0, at) + 1
                    print(f"{path.relative_to(rules.ROOT)}:{line}: {text.splitlines()[line - 1].strip()}")
        return 0
    now = ledger.measured()
    if chosen.totals:
        totals = sum(now.values(), Counter[str]())
        print("\n".join(f"{count:6} {word}" for word, count in totals.most_common()))
        return 0
    allowed = ledger.parsed(ledger.PATH.read_text())
    if chosen.update:
        ledger.PATH.write_text(ledger.printed(ledger.lowered(allowed, now)))
        allowed = ledger.parsed(ledger.PATH.read_text())
    complaints = ledger.complaints(allowed, now)
    print("\n".join(complaints), file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    raise SystemExit(main())
