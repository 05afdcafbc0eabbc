"""Facts about runs that decide whether a comparison tests anything."""

import pandas as pd

from experiments.runs import arms as arms_
from experiments.runs.run_config import RunConfig
from experiments.statistics import verdicts


def replay_ratio(config: RunConfig) -> str:
    """Return the agent steps per update and the replay ratio of a run in words."""
    steps = config.loop.learn_every * config.sizes.num_envs / config.loop.updates
    ratio = arms_.replays_per_transition(config)
    return f"{steps:g} agent step{'s' * (steps != 1)} per update, {ratio:g} replays per transition"


def facts_of(
    label: str, config: RunConfig, frame: pd.DataFrame, code: str, train_seconds: float | None
) -> verdicts.Facts:
    """Return the facts that the gate needs about an arm.

    Args:
      label: name of the arm.
      config: its configuration.
      frame: its metrics.
      code: version of the code that made them; "" compares with any version.
      train_seconds: compute of all seeds together, if known.
    """
    updates = frame.get("replay/sampler_updates")
    learns = arms_.learns(config)
    return verdicts.Facts(
        label=label,
        env=config.env,
        code=code,
        settings=arms_.settings(config),
        seeds=tuple(sorted(int(seed) for seed in frame["seed"].unique())),
        prioritises=not arms_.draws_evenly(config),
        learned=learns,
        effective_buffer=verdicts.mean_after(
            frame, "replayed/effective_buffer", config.loop.warmup
        ),
        sampler_updates=None
        if updates is None or not learns
        else float(frame.assign(n=updates).groupby("seed")["n"].max().mean()),
        train_seconds=train_seconds,
    )
