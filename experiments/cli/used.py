"""Options that count only in some runs: given where none is such, they are refused."""

import argparse
from collections.abc import Callable, Iterable

from experiments.runs import registry
from experiments.runs.run_config import RunConfig


def check_used(args: argparse.Namespace, configs: Iterable[RunConfig]) -> None:
    """Refuse options that were given and that none of the runs uses.

    Raises:
      ValueError: one line that names the option, and where it counts.
    """
    runs = list(configs)
    for name, (where, used) in _USED.items():
        if name in vars(args) and not any(map(used, runs)):
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} counts {where} alone: leave it out")


def _stacks(config: RunConfig) -> bool:
    own = config.sizes.frame_stack
    return bool(own) or (own is None and hasattr(config.env_options, "stack"))


def _is_discrete(config: RunConfig) -> bool:
    return registry.AGENTS[config.agent].actions == "discrete"


# Not --observe-every: pages repeat an arm of a comparison, which may have it for another's sake.
_USED: dict[str, tuple[str, Callable[[RunConfig], bool]]] = {
    "eval_epsilon": ("for discrete actions", _is_discrete),
    "frame_spare": ("where frames are stacked (--frame-stack)", _stacks),
}
