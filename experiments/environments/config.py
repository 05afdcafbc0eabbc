"""Options of environments."""

import dataclasses

from jaxreplay.option import Config, option


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig(Config):
    """What can be said of any environment besides its name; families add to it."""

    max_steps: int | None = option(
        None,
        "agent steps until an episode is truncated; none: the environment's own limit",
        at_least=1,
    )
