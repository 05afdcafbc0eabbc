"""Refusals of hyperparameters: one line each that says what is wrong and what would do.

Every function raises ValueError; NaN is always refused.
"""

from collections.abc import Sequence


def check_positive(name: str, value: float) -> None:
    """Refuse what is not above 0."""
    _require(value > 0, f"{name} is {value}: it must be positive")


def check_not_negative(name: str, value: float) -> None:
    """Refuse what is below 0."""
    _require(value >= 0, f"{name} is {value}: it must not be negative")


def check_at_least(name: str, value: float, low: int) -> None:
    """Refuse what is below `low`."""
    _require(value >= low, f"{name} is {value}: it must be at least {low}")


def check_unit(name: str, value: float) -> None:
    """Refuse what lies outside [0, 1]."""
    _require(0 <= value <= 1, f"{name} is {value}: it must lie in [0, 1]")


def check_open_unit(name: str, value: float) -> None:
    """Refuse what lies outside (0, 1)."""
    _require(0 < value < 1, f"{name} is {value}: it must lie in (0, 1), the ends excluded")


def check_alpha(value: float) -> None:
    """Refuse a prioritisation exponent below 0."""
    _require(value >= 0, f"alpha is {value}: it must be 0 (uniform) or more")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse what is none of `choices`."""
    _require(value in choices, f"{name} is {value!r}: use one of {', '.join(choices)}")


def check_sizes(name: str, sizes: Sequence[int]) -> None:
    """Refuse layer sizes that are empty or not positive."""
    ok = len(sizes) > 0 and all(size > 0 for size in sizes)
    _require(ok, f"{name} is {tuple(sizes)}: give one positive size per layer")


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(message)
