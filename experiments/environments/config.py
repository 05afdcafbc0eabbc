"""Options of environments."""

import dataclasses

from jaxreplay.option import Config, option


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig(Config):
    """Options of every environment; families add their own."""

    max_steps: int | None = option(
        None,
        "agent steps until an episode is truncated; none: the environment's own limit",
        at_least=1,
    )
