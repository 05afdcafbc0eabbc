"""PER by the expected TD error, EPER (Panahi et al. 2024): noise in TD errors has no priority."""

import dataclasses

from jaxreplay.methods import per
from jaxreplay.methods.per import PERConfig, PERLeaf
from jaxreplay.methods.proportional import Proportional
from jaxreplay.sampler import Method
from jaxreplay.types import Requirements

_FEEDBACK = frozenset({"expected_td_error"})


@dataclasses.dataclass(frozen=True)
class EPERConfig(PERConfig):
    """Hyperparameters of EPER, those of PER for the expected TD error."""


def sampler(config: EPERConfig = EPERConfig()) -> Proportional:
    """Return the EPER sampler: PER with the feedback `expected_td_error` as the TD error."""
    leaf = PERLeaf(config.alpha, config.epsilon, config.clip, "expected_td_error")
    return dataclasses.replace(per.sampler(config), leaf=leaf, feedback=_FEEDBACK)


def method(config: EPERConfig = EPERConfig()) -> Method:
    """Return EPER: the sampler, and an objective that averages weighted critic losses.

    The objective requires that agents predict `expected_td_error`, the mean of the TD error given
    the observation and the action.
    """
    objective = config.objective()._replace(requires=Requirements(feedback=_FEEDBACK))
    return Method(sampler(config), objective)
