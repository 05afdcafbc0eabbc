"""Tables of finished runs, in Markdown that is aligned for terminals."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def table(rows: Sequence[Mapping[str, Any]], called: str = "replay") -> str:
    """Return an aligned Markdown table of runs; for the arguments, see `cells`."""
    return markdown(cells(rows, called))


def cells(rows: Sequence[Mapping[str, Any]], called: str = "replay") -> list[list[str]]:
    """Return the cells of a table of runs, including the header.

    There is a column with agent steps if their number differs between runs.

    Args:
      rows: one mapping per run, with the keys of `summaries.summarise`, `replay` (its label) and
        optionally `steps_per_second` (agent steps per second over all seeds, or None).
      called: header of the column of labels.
    """
    threshold = next((row["threshold"] for row in rows if row["threshold"] is not None), None)
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        called: lambda row: row["replay"].replace("\n", " "),
        "final return: IQM [95 % interval]": lambda row: with_interval(
            row["final_iqm"], row["final_interval"]
        ),
    }
    if len({row["final_step"] for row in rows}) > 1:
        columns["agent steps"] = lambda row: _integer(row["final_step"])
    if threshold is not None:
        columns[f"seeds at {threshold:g}"] = lambda row: f"{row['reached']}/{len(row['seeds'])}"
        columns[f"steps to {threshold:g} (median)"] = lambda row: _integer(
            row["median_steps_to_threshold"]
        )
    if any("steps_per_second" in row for row in rows):
        columns["steps/s"] = lambda row: _integer(row.get("steps_per_second"))
    if any(row.get("diverged") for row in rows):
        columns["seeds that diverged"] = lambda row: (
            f"{len(row.get('diverged', ()))}/{len(row['seeds'])}"
        )
    return [list(columns), *([cell(row) for cell in columns.values()] for row in rows)]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells, including the header; columns after the first are right-aligned."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [_line(rows[0], widths), _line(rule, widths)]
    return "\n".join(lines + [_line(row, widths) for row in rows[1:]]) + "\n"


def number(value: float | None) -> str:
    """Return a number in the format of the tables, or "-" for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if 1_000 <= abs(value) < 10_000_000 else f"{value:.4g}"


def with_interval(value: float | None, ends: Sequence[float | None] | None) -> str:
    """Return a number and the ends of its interval, or "-" without an interval."""
    if ends is None:
        return "-"
    low, high = map(number, ends)
    return f"{number(value)} [{low}, {high}]"


def span(numbers: Sequence[int]) -> str:
    """Return the range of some numbers in words, such as "5" or "5 to 10"."""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _integer(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = [(cell, width) for cell, width in zip(cells, widths, strict=True)]
    padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
    return f"| {' | '.join(padded)} |"
