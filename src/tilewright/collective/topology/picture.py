"""Draws an all-reduction as text: one line for each round, one column for each rank."""

from __future__ import annotations

from tilewright.collective.topology.algorithms import rounds_of


def picture(algorithm: str, ranks: int, elements: int | None = None, chunks: int = 1) -> str:
    """A table of the messages in each round of an all-reduction by `algorithm` between `ranks` ranks, by their sender;
    two trees send the data in `chunks` chunks.

    `>3 0:2+` means elements 0 and 1 sent to rank 3, which adds them; without `+` they replace its own. If `elements` is
    None, there is one for each rank.
    """
    rows = []
    for one in rounds_of(algorithm, ranks, ranks if elements is None else elements, chunks):
        cells = [list[str]() for _ in range(ranks)]
        for m in one:
            for source, target, begin, end in zip(m.source, m.target, m.begin, m.end, strict=True):
                cells[source].append(f">{target} {begin}:{end}{'+' if m.reduces else ''}")
        rows.append([", ".join(cell) or "." for cell in cells])
    heads = [f"rank {r}" for r in range(ranks)]
    widths = [max(len(head), *(len(row[r]) for row in rows), 0) for r, head in enumerate(heads)]
    lines = ["round  " + "  ".join(head.ljust(w) for head, w in zip(heads, widths, strict=True))]
    for number, row in enumerate(rows, 1):
        lines.append(f"{number:5}  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)))
    return "\n".join(line.rstrip() for line in lines)
