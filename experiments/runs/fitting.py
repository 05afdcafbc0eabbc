"""Names that fit those that were given: what help describes where a command would refuse."""

import itertools
from collections.abc import Sequence

from experiments.runs import presets, registry
from experiments.runs.presets import PRESETS, Names
from experiments.runs.registry import AGENTS, EXAMPLES
from jaxreplay.methods import METHODS


def names(
    preset: str | None,
    envs: Sequence[str] | None,
    agent: str | None,
    replays: Sequence[str] | None,
) -> Names:
    """Return names for a run whose own ones are only some, such that all of them fit.

    The usual ones stay where they fit. Where nothing does, the agent gets a place at least, so
    that what does not fit is what is refused.

    Args:
      preset: that brings names; None: those of the commands.
      envs: that were named; None: none was.
      agent: the same.
      replays: methods, the same.
    """
    usual = presets.names(preset)
    others = AGENTS if preset is None else PRESETS[preset].agents
    agents = [agent] if agent else dict.fromkeys([usual.agent, *others])
    methods = [replays] if replays else [usual.replays, *([name] for name in METHODS)]
    places = [envs] if envs else [[usual.env], *([name] for name in EXAMPLES.values())]
    for own, found, where in itertools.product(agents, methods, places):
        acts = all(registry.fits(own, env) for env in where)
        if acts and all(registry.feeds(own, replay) for replay in found):
            return Names(where[0], own, found[0], tuple(found))
    for where in places:
        if agent and all(registry.fits(agent, env) for env in where):
            return usual._replace(env=where[0])
    return usual
