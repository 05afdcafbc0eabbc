"""Environments whose name ends in their size: any size will do, whether it is listed or not."""

SIZES = range(2, 65)

_BY_TEXT = {str(size): size for size in SIZES}  # one name for each: no zeros in front


def size(family: str, text: str) -> int:
    """Return the size that `text`, the end of a name, stands for.

    Args:
      family: what comes before it, such as walk/.
      text: a whole number.

    Raises:
      ValueError: it is none of `SIZES`.
    """
    if text not in _BY_TEXT:
        raise ValueError(
            f"there is no environment '{family}{text}': its name ends with a whole number from "
            f"{SIZES[0]} to {SIZES[-1]}, as in {family}10"
        )
    return _BY_TEXT[text]
