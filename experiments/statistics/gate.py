"""The gate: a check that runs are evidence about a claim, before wins and losses are counted.

Results are not evidence about a method if its prioritised sampler drew almost uniformly, if its
learned sampler had hardly any updates, if no agent learned, if all values are the same, or if the
arms have different environments.
"""

import numpy as np

from experiments.statistics.claims import Outcome, Runs

# Effective share of the buffer, 1 / (N sum P^2), above which draws are practically uniform.
UNIFORM_BUFFER = 0.95
# Number of updates below which a learned sampler is still close to its initialization.
FEWEST_UPDATES = 500
# Share of the way from the first evaluation to a good return below which an agent hardly learned.
LEAST_PROGRESS = 0.1

_LIKE_UNIFORM = "not tested (behaved like uniform)"


def gate(arm: Runs, baseline: Runs, ungated: str | None = None) -> tuple[Outcome, str] | None:
    """Return the outcome of the gate with its reason, or None if the runs pass.

    Args:
      arm: runs of the arm of a claim on a task.
      baseline: runs of its baseline.
      ungated: reason to disable the gate, which then stops only arms that cannot be compared; None
        keeps the gate.
    """
    if arm.pair and baseline.pair:  # a contrast: both gains must be evidence
        return gate(*arm.pair, ungated) or gate(*baseline.pair, ungated)
    if reason := incomparable(arm, baseline):
        return "not comparable", reason
    if ungated is not None:
        return None
    for runs in (arm, baseline):
        if reason := why_untested(runs):
            return "not tested", reason if runs is arm else f"baseline {baseline.label} {reason}"
    if not learned(arm, baseline):
        most = max(runs.progress or 0.0 for runs in (arm, baseline))
        return "not tested", (
            f"not tested: agents hardly learned on {arm.env}, at most {most:.2g} of the way from "
            "the first evaluation to a good return"
        )
    return None


def incomparable(arm: Runs, baseline: Runs) -> str | None:
    """Return the reason why two arms cannot be compared seed by seed, or None."""
    missing = object()
    names = sorted({*arm.settings, *baseline.settings})
    for name, of_arm, of_baseline in (
        ("environments", arm.env, baseline.env),
        ("versions of the code", arm.code, baseline.code),
        *(
            (name, *(runs.settings.get(name, missing) for runs in (arm, baseline)))
            for name in names
        ),
    ):
        if of_arm != of_baseline:
            shown = " and ".join("none" if x is missing else str(x) for x in (of_arm, of_baseline))
            return f"not comparable: different {name}, {shown}"
    return None


def why_untested(runs: Runs) -> str | None:
    """Return the reason why an arm does not test its method, or None.

    Methods such as PAL, which draw uniformly and change the loss instead, pass the gate.
    """
    if runs.prioritises:
        if (share := runs.effective_buffer) is None:
            return "not tested: its effective buffer was not recorded"
        if share > UNIFORM_BUFFER:
            return f"{_LIKE_UNIFORM}: effective buffer {share:.3g} is above {UNIFORM_BUFFER:g}"
    if runs.learned:
        if (updates := runs.sampler_updates) is None:
            return "not tested: the updates of its network were not recorded"
        if updates < FEWEST_UPDATES:
            times = f"updated {updates:.0f} times, fewer than {FEWEST_UPDATES}"
            return f"{_LIKE_UNIFORM}: its network was {times}"
    return None


def learned(arm: Runs, baseline: Runs) -> bool:
    """Return True if the agent of either arm learned, or if no good return is known."""
    progress = [runs.progress for runs in (arm, baseline) if runs.progress is not None]
    return not progress or max(progress) >= LEAST_PROGRESS


def at_limit(pairs: list[tuple[Runs, Runs]]) -> tuple[Outcome, str] | None:
    """Return an outcome and its reason if, on every task, all values are equal or none is finite.

    The values of a task are those of all seeds of both arms. Otherwise, return None.
    """
    values = np.array([])
    for arm, baseline in pairs:
        values = np.concatenate([arm.values, baseline.values]).astype(float)
        if np.isfinite(values).any() and not (values == values[0]).all():
            return None
    lost = not np.isfinite(values).any()
    what = "no seed has a number" if lost else f"all values are {abs(values[0]):.4g}"
    return "not tested", (
        f"not tested: {what} in {len(pairs[-1][0].values)} seeds of both arms, a floor or ceiling "
        "of the metric"
    )
