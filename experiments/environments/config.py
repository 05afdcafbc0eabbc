"""Options of environments."""

import dataclasses
from typing import Any

from jaxreplay.option import option


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
    """What can be said of any environment besides its name; families add to it."""

    max_steps: int | None = option(
        None, "agent steps until an episode is truncated; none: the environment's own limit"
    )

    def kwargs(self) -> dict[str, Any]:
        """Return what was set, as keyword arguments for `environments.make` or `make_host`."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}
