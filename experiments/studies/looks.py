"""The figure of a sequential study: wins minus losses over seeds, with the boundary."""

import math
import os

import numpy as np

from experiments.figures.style import FAINT, INK, make_figure, plain, save, styles_of, tidy
from experiments.statistics import decisions, verdicts
from experiments.statistics.decisions import Counts
from experiments.statistics.verdicts import CONTROL
from experiments.studies.judge import Findings
from experiments.studies.study import Study


def draw(study: Study, findings: Findings, path: str | os.PathLike) -> None:
    """Plot wins minus losses after every seed as PNG; marks are the looks that decided.

    The dashed lines are the boundary at level alpha / arms without ties, beyond which an arm is
    better or worse whatever the other arms are. Ties and Holm's method only move it inwards.
    """
    arms = {name: own for name, own in findings.members.items() if name in findings.looks}
    methods = {name: member.point.config.replay for name, member in arms.items()}
    styles = styles_of(methods)
    figure = make_figure(8.6, 4.2)
    axes = figure.subplots()
    most = 2
    for name, member in arms.items():
        higher = study.metric(member.point.env).higher_is_better
        decision = findings.found[name].decision
        assert decision is not None
        seeds = decision.seeds
        own, base = (
            findings.values[each].to_numpy(float)[:seeds] for each in (name, member.baseline)
        )
        counts = [decisions.count_pairs(own[:n], base[:n], higher) for n in range(seeds + 1)]
        lead = [each.wins - each.losses for each in counts]
        axes.plot(range(seeds + 1), lead, drawstyle="steps-post", label=plain(name), **styles[name])
        if decision.verdict != "undecided":
            axes.plot([seeds], lead[-1:], "o", color=styles[name]["color"])
        most = max(most, seeds)
    claims = sum(member.point.label != CONTROL for member in arms.values())
    x = np.arange(1, most + 1)
    edge = np.array([_boundary(n, verdicts.ALPHA / max(claims, 1)) for n in x], float)
    for sign in (1, -1):
        axes.plot(x, sign * edge, color=FAINT, linewidth=1.0, linestyle=(0, (4, 3)))
    axes.axhline(0, color=FAINT, linewidth=0.8)
    axes.set_xlabel("seeds")
    axes.set_ylabel("wins minus losses")
    axes.set_title(plain(f"against {study.baseline}, {', '.join(study.envs)}"), color=INK)
    # Beside the lines, which may be anywhere.
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    tidy(axes)
    save(figure, path)


def _boundary(seeds: int, alpha: float) -> float:
    """Return the least wins minus losses that reject mu = 1/2 after `seeds` pairs; NaN if none."""
    for lead in range(seeds % 2, seeds + 1, 2):
        wins = (seeds + lead) // 2
        if decisions.log_sign_capital(Counts(wins, 0, seeds - wins)) >= -math.log(alpha):
            return lead
    return math.nan
