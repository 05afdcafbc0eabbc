"""The section of films: recorded episodes, embedded as long as the page stays small."""

import base64

from experiments.analysis import files
from experiments.pages.blocks import Film, Lines, Section
from experiments.pages.source import Source

MOST_BYTES = 6_000_000  # of all films of a page together


def section(source: Source) -> Section | None:
    """Return the films that lie beside the runs, in the order of the arms, up to a limit."""
    blocks, left_out, total = [], [], 0
    for label, arm in source.arms.items():
        path = arm.film
        if path is None:
            continue
        try:
            content = files.read_bytes(path)
        except ValueError as error:
            left_out.append(f"{label}: {error}")
            continue
        if not content.startswith(b"GIF8"):
            left_out.append(f"{label}: {path.name} is no GIF")
        elif total + len(content) > MOST_BYTES:
            left_out.append(f"{label}: {path.name} has {len(content) / 1e6:.1f} MB")
        else:
            total += len(content)
            data = base64.b64encode(content).decode()
            blocks.append(Film(label, f"data:image/gif;base64,{data}"))
    if not blocks and not left_out:
        return None
    intro = (
        f"Greedy episodes, as experiments.watch recorded them. A page holds at most "
        f"{MOST_BYTES / 1e6:g} MB of films; those left out lie beside their runs."
    )
    more = [Lines(left_out)] if left_out else []
    return Section("film", "An episode", intro, [*blocks, *more])
