"""Which option somebody may have meant."""

import difflib
from collections.abc import Iterable

# Likeness of an option's name, from which it is suggested. Whoever writes "alfa" for "alpha" has
# the first letter right, and "version" is not "epsilon".
_NEAR, _NEAR_IF_BEGUN_ALIKE = 0.75, 0.65


def nearest(name: str, options: Iterable[str]) -> str | None:
    """Return the option that is nearest in spelling, its group aside; None: none is near.

    Groups count only between options of the same name: they would make any two of one group alike.
    """
    own = _own(name)

    def likeness(option: str) -> tuple[float, float]:
        other = _own(option)
        alike = difflib.SequenceMatcher(None, own, other).ratio()
        if len(own) > 2 and other.startswith(f"{own}-"):  # "dry" of "dry-run"
            alike = max(alike, _NEAR)
        return alike, difflib.SequenceMatcher(None, name, option).ratio()

    def is_near(option: str) -> bool:
        begun_alike = own[:1] == _own(option)[:1]
        return likeness(option)[0] >= (_NEAR_IF_BEGUN_ALIKE if begun_alike else _NEAR)

    return max(filter(is_near, options), key=likeness, default=None)


def _own(option: str) -> str:
    """Return an option's name without dashes and the group that it is of."""
    return option.lstrip("-").rpartition(".")[2]
