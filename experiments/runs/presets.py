"""Published settings by name: alternative defaults for the options of a run."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Preset(NamedTuple):
    """What a preset sets, by section of a run; options given explicitly still win."""

    about: str  # one line
    agents: tuple[str, ...]  # that it is for
    sections: Mapping[str, Mapping[str, Any]]  # section of a RunConfig -> option -> value
    # Groups of replay options; a group is set only if the chosen method has all of its options.
    replay: tuple[Mapping[str, Any], ...] = ()
    environment: Mapping[str, Any] = MappingProxyType({})  # set where the family has the option


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        # Hessel et al. 2018, Tab. 1, in agent steps of 4 frames. Its target network is copied
        # every 32 000 frames, 8 000 steps: every 2 000 updates. Gradients are not clipped.
        "canonical": Preset(
            "Rainbow for Atari, 200 million frames (Hessel et al. 2018)",
            ("rainbow",),
            {
                "loop": {
                    "steps": 50_000_000,
                    "n_step": 3,
                    "gamma": 0.99,
                    "warmup": 20_000,
                    "random_warmup": False,
                    "learn_every": 4,
                    "eval_every": 250_000,  # with whole games instead of 500 thousand frames
                    "eval_episodes": 10,
                    "eval_epsilon": 0.001,
                },
                "sizes": {"capacity": 1_000_000, "batch_size": 32},
                "agent_options": {
                    "double": True,
                    "dueling": True,
                    "noisy": True,
                    "sigma": 0.5,
                    "atoms": 51,
                    "v_min": -10.0,
                    "v_max": 10.0,
                    "network": "nature",
                    "learning_rate": 6.25e-5,
                    "adam_eps": 1.5e-4,
                    "max_grad_norm": 0.0,
                    "target_every": 2_000,
                },
            },
            ({"alpha": 0.5}, {"beta": 0.4, "beta_end": 1.0}),
        ),
        # van Hasselt et al. 2019, as in the code of Oh et al. 2021.
        "data_efficient": Preset(
            "Rainbow for Atari, 100 thousand agent steps (van Hasselt et al. 2019; Oh et al. 2021)",
            ("rainbow",),
            {
                "loop": {
                    "steps": 100_000,
                    "n_step": 20,
                    "gamma": 0.99,
                    "warmup": 1_600,
                    "random_warmup": False,
                    "learn_every": 1,
                    "eval_every": 1_000,
                    "eval_episodes": 5,
                    "eval_epsilon": 0.001,
                },
                "sizes": {"capacity": 100_000, "batch_size": 32},
                "agent_options": {
                    "double": True,
                    "dueling": True,
                    "noisy": True,
                    "sigma": 0.1,
                    "atoms": 51,
                    "v_min": -10.0,
                    "v_max": 10.0,
                    "network": "data_efficient",
                    "learning_rate": 1e-4,
                    "adam_eps": 1.5e-4,
                    "max_grad_norm": 10.0,
                    "target_every": 2_000,
                },
            },
            ({"alpha": 0.5}, {"beta": 0.4, "beta_end": 1.0}),
            MappingProxyType({"protocol": "ners"}),
        ),
    }
)


def apply(name: str, config: Any) -> Any:
    """Return a RunConfig with a preset's values in place of its own.

    Raises:
      ValueError: the preset is for other agents.
    """
    preset = PRESETS[name]
    if config.agent not in preset.agents:
        fitting = [other for other, entry in PRESETS.items() if config.agent in entry.agents]
        instead = f"one of {', '.join(fitting)}, or " if fitting else ""
        raise ValueError(
            f"preset '{name}' is for agent {' or '.join(preset.agents)}, not '{config.agent}': "
            f"use {instead}--agent {preset.agents[0]}, or leave out --preset"
        )
    parts = {
        section: dataclasses.replace(getattr(config, section), **values)
        for section, values in preset.sections.items()
    }
    has = {field.name for field in dataclasses.fields(config.replay_options)}
    options = {k: v for group in preset.replay if set(group) <= has for k, v in group.items()}
    replay_options = dataclasses.replace(config.replay_options, **options)
    return dataclasses.replace(
        config,
        env_options=_with_known(config.env_options, preset.environment),
        replay_options=replay_options,
        **parts,
    )


def _with_known(options: Any, values: Mapping[str, Any]) -> Any:
    """Return `options` with those `values` that are fields of it."""
    has = {field.name for field in dataclasses.fields(options)}
    return dataclasses.replace(options, **{k: v for k, v in values.items() if k in has})
