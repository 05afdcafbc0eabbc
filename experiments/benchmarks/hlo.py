"""What optimised HLO tells: copies of whole arrays in loops, and how much there is of a program."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple


def large_copies(text: str, size: int, children: int | None = None) -> list[str]:
    """Return the instructions in loops that copy an array with a dimension of `size` or more.

    XLA makes such a copy in every step where a read of an array might come after its next write in
    place.

    Args:
      text: optimised HLO.
      size: a number of elements, such as the capacity of a replay.
      children: also find arrays `[n, children]` of `size` elements or more, as trees hold them.
    """
    found = []
    called = _called(text)
    waiting, inside = re.findall(r"body=%([\w.-]+)", text), set()
    while waiting:
        name = waiting.pop()
        if name not in inside:
            inside.add(name)
            waiting += called.get(name, ())
    for name, line in _lines(text):
        match = re.search(r"= \(?\w+\[([\d,]+)\][^=]*?\bcopy(?:-start)?\(", line)
        if name not in inside or not match:
            continue
        shape = [int(n) for n in match[1].split(",")]
        if max(shape) >= size or (shape[-1] == children and math.prod(shape) >= size):
            found.append(line.strip())
    return found


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions, each with the name of its computation."""
    name = ""
    for line in text.splitlines():
        if start := re.match(r"(?:ENTRY )?%([\w.-]+) \(", line):
            name = start[1]
        yield name, line


def _called(text: str) -> dict[str, list[str]]:
    """Return which computations each one calls: fusions, branches, loops in loops."""
    called: dict[str, list[str]] = {}
    for name, line in _lines(text):
        for one in re.findall(
            r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%([\w.-]+)", line
        ):
            called.setdefault(name, []).append(one)
        for several in re.findall(r"branch_computations=\{([^}]*)\}", line):
            called.setdefault(name, []).extend(re.findall(r"%([\w.-]+)", several))
    return called


def operations(text: str) -> int:
    """Count the operations of a program as JAX hands it to XLA; those of a function once."""
    return len(re.findall(r" = \"?(?:stablehlo|chlo)\.", text))


class Counts(NamedTuple):
    """What a compiled program consists of."""

    instructions: int  # those within fusions, too
    fusions: int
    loops: int
    products: int  # of matrices, as instructions or calls of a library


def counts(text: str) -> Counts:
    """Count the instructions of a program, from its optimised HLO."""
    return Counts(
        instructions=len(re.findall(r"^\s+(?:ROOT )?%[\w.-]+ = ", text, re.MULTILINE)),
        fusions=len(re.findall(r" fusion\(", text)),
        loops=len(re.findall(r" while\(", text)),
        products=len(re.findall(r" (?:dot|convolution)\(|onednn\$matmul", text)),
    )
