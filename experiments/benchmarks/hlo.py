"""Sizes of programs, from their HLO."""

import re
from typing import NamedTuple


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
