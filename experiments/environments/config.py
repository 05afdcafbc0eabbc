"""Options of environments."""

import dataclasses
from typing import Any

from jaxreplay.option import option


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
    """Options of every environment; families add their own."""

    max_steps: int | None = option(
        None, "agent steps until an episode is truncated; none: the environment's own limit"
    )

    def kwargs(self) -> dict[str, Any]:
        """Return the options that are set, as keyword arguments of `make` or `make_host`."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}
