"""PER by the expected TD error, EPER (Panahi et al. 2024), which averages noise in TD errors."""

import dataclasses

from jaxreplay.methods import per
from jaxreplay.methods.per import PERConfig, PERLeaf
from jaxreplay.methods.proportional import Proportional
from jaxreplay.sampler import Method
from jaxreplay.types import Requirements

_FEEDBACK = frozenset({"expected_td_error"})


def sampler(config: PERConfig = PERConfig()) -> Proportional:
    """Return the EPER sampler: PER that reads `expected_td_error` in place of `td_error`."""
    priority = PERLeaf(config.alpha, config.epsilon, config.clip, "expected_td_error")
    return dataclasses.replace(per.sampler(config), leaf=priority, feedback=_FEEDBACK)


def method(config: PERConfig = PERConfig()) -> Method:
    """Return EPER: the sampler, and an objective that averages weighted critic losses.

    The objective requires that agents predict `expected_td_error`, the mean of the TD error given
    the observation and the action.

    Args:
      config: options of PER; `config.for_run(updates)` anneals beta over `updates` gradient steps.
    """
    objective = per.method(config).objective
    return Method(sampler(config), objective._replace(requires=Requirements(feedback=_FEEDBACK)))
