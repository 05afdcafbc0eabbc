"""What the compiler made of a loop: copies of whole arrays, read from the optimised HLO."""

import re


def large_copies(text: str, size: int) -> list[str]:
    """Return the instructions in loops that copy an array with a dimension of `size` or more.

    XLA makes such a copy in every step where a read of an array might come after its next write in
    place.

    Args:
      text: optimised HLO.
      size: a number of elements, the capacity of a replay say.
    """
    bodies = set(re.findall(r"body=%([\w.-]+)", text))
    found, inside = [], False
    for line in text.splitlines():
        if start := re.match(r"(?:ENTRY )?%([\w.-]+) \(", line):
            inside = start[1] in bodies
        match = re.search(r"= \(?\w+\[([\d,]+)\][^=]*?\bcopy(?:-start)?\(", line)
        if inside and match and any(int(n) >= size for n in match[1].split(",")):
            found.append(line.strip()[:160])
    return found
