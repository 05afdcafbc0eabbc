"""Markdown tables of numbers."""

from collections.abc import Sequence

Cell = str | int | float | None


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a Markdown table, its first column aligned left and the others right.

    Numbers are written with three significant digits, None as a dash.
    """
    lines = [list(head), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join([first, *rest]) + " |"

    rules = [("-" * width if not i else "-" * (width - 1) + ":") for i, width in enumerate(widths)]
    return "\n".join([line(lines[0]), line(rules), *map(line, lines[1:])])


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) or abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:.2f}" if abs(cell) < 10 else f"{cell:.1f}"
