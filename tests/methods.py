"""Methods with options that fit the small replays of tests."""

from jaxreplay.methods import METHODS
from jaxreplay.sampler import Method

SHORT = {"windows": {"length": 4}, "sequences": {"length": 4, "period": 2}, "slices": {"length": 4}}


def short(name: str, updates: int | None = None) -> Method:
    """Return a method, for a run of this many updates if given."""
    config = METHODS[name].config(**SHORT.get(name, {}))
    return METHODS[name].method(config if updates is None else config.for_run(updates))
