"""Components of replay methods."""

import dataclasses

from jaxreplay.option import Config, check_config_class
from jaxreplay.sampler import Sampler


@dataclasses.dataclass(frozen=True)
class ConfiguredSampler(Sampler):
    """Base class for samplers whose only field is a config.

    Subclasses override the type and the default value of `config`. Their modules export the class
    as `sampler`, so that `sampler(config)` creates a sampler.

    Raises:
      ValueError: If `config` is not an instance of the class of the default value.
    """

    config: Config = Config()

    def __post_init__(self) -> None:
        check_config_class(lambda config=type(self).config: config)(self.config)
