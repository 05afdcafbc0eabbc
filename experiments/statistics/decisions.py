"""Verdicts from paired seeds: the wins, ties and losses of an arm against its baseline decide.

Seed k of an arm is paired with seed k of its baseline, and wins, ties or loses by the primary
metric. There are two designs:

* A *fixed* design tests once, after a number of seeds that was chosen before the runs, by the exact
  sign test of the pairs that do not tie, with Clopper-Pearson intervals of the share of these pairs
  that the arm wins.
* A *sequential* design looks at the seeds again and again until a claim is decided. An ordinary
  test would err more often with every look. The statistic is therefore a test martingale, the
  *capital* of a gambler who bets against a null. It starts at 1, and under the null it ever reaches
  1/alpha with probability at most alpha (Ville's inequality). Its inverse is a p-value after any
  number of seeds. The nulls with small capital form a confidence sequence of the *paired
  probability of improvement* mu: the mean of 1 for a win, 1/2 for a tie and 0 for a loss.

`decide` is the only function that turns counts into verdicts.

References: Waudby-Smith and Ramdas 2024 (means of bounded variables by betting); Ramdas, Grünwald,
Vovk and Shafer 2023 (e-processes); Clopper and Pearson 1934; Holm 1979.
"""

import bisect
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, betaincinv, betaln

Verdict = Literal[
    "agrees", "disagrees", "no difference", "undecided", "not tested", "not comparable", "pilot",
    "no claim",
]  # fmt: skip
Direction = Literal["better", "at least as good", "worse"]
Interval = tuple[float, float]
Values = Sequence[float | None] | np.ndarray  # [seeds]

# Probability of any false "agrees" or "disagrees" in a family of claims.
ALPHA = 0.05
# Distance of a probability of improvement from 1/2 that counts as no difference, or as being at
# least as good.
MARGIN = 0.1
# Number of seeds below which there is no verdict.
FEWEST_SEEDS = 10

_BETS = np.arange(1, 200) / 200  # alternatives, each with the same share of the initial capital
_NULLS = 2000  # ends of confidence sequences are multiples of 1 / _NULLS
_ROUNDING = 1e-9  # tolerance of comparisons with 1/2 -+ margin
# Number of simulated studies, seeds between two looks, and largest number of seeds.
_TRIALS, _BATCH, _MOST = 400, 16, 10_000


class Counts(NamedTuple):
    """Numbers of pairs that an arm wins, ties and loses against its baseline."""

    wins: int = 0
    ties: int = 0
    losses: int = 0

    @property
    def pairs(self) -> int:
        return self.wins + self.ties + self.losses

    @property
    def mean(self) -> float:
        """Estimated paired probability of improvement, 1/2 without seeds."""
        return (self.wins + self.ties / 2) / self.pairs if self.pairs else 0.5

    @property
    def untied(self) -> "Counts":
        """The pairs that do not tie."""
        return Counts(self.wins, 0, self.losses)


class Evidence(NamedTuple):
    """A claim about an arm with the counts that decide it.

    Attributes:
      looks: counts of all seeds up to each look; a single look in a fixed design.
      direction: the claim.
      exceeds: whether a win must exceed a least effect. Then half of the pairs won means that the
        effect is the least effect, and "no difference" is not an answer.
      corrected: whether the claim belongs to the family over which p-values are corrected; not for
        a control.
      stopped: verdict that does not depend on the counts and its reason, or None. Such claims are
        not part of the family.
      tasks: number of pairs of a seed, one on each task.
    """

    looks: Sequence[Counts]
    direction: Direction = "better"
    exceeds: bool = False
    corrected: bool = True
    stopped: tuple[Verdict, str] | None = None
    tasks: int = 1


@dataclass(frozen=True)
class Decision:
    """Verdict about a claim with its numbers, JSON-able by `dataclasses.asdict`.

    The fields describe the look that decided, or the last look if none did.
    """

    verdict: Verdict
    reason: str  # one line with numbers
    counts: Counts
    seeds: int
    estimate: float  # share of untied pairs won, or mu in a sequential design
    interval: Interval  # of the estimate at the level; valid for all claims of the family together
    level: float  # 1 - alpha / (claims of the family)
    p_value: float  # corrected over the family (Holm)
    raw: float  # p-value before the correction
    expected: int | None = None  # seeds to decide with 80 % probability, if undecided and planned


class Design(NamedTuple):
    """Statistical test of a design.

    Attributes:
      p_value: (counts at all looks, null) -> p-value, and on which side of the null the evidence
        is: 1, -1 or 0.
      interval: (counts, alpha) -> interval.
      estimate: counts -> the estimated quantity.
      quantity: name of the quantity.
      test: name of the p-value.
    """

    p_value: Callable[[Sequence[Counts], float], tuple[float, int]]
    interval: Callable[[Counts, float], Interval]
    estimate: Callable[[Counts], float]
    quantity: str
    test: str


def count_pairs(
    arm: Values, baseline: Values, higher_is_better: bool = True, effect: float = 0.0
) -> Counts:
    """Count the seeds in which an arm is better than its baseline.

    Seeds that diverged or never reached the threshold have the value None, NaN or infinity. They
    are worse than all seeds with a finite value. Two such seeds tie, whatever the effect.

    Args:
      arm: one value per seed.
      baseline: values of the same seeds in the same order.
      higher_is_better: direction of the primary metric.
      effect: smallest effect that counts, in the metric's unit; negative for a margin. A pair is a
        win if the arm is better by more than this, and a tie if it is better by exactly this.
    """
    sign = 1 if higher_is_better else -1
    signed = (sign * np.array(values, np.float64) for values in (arm, baseline))  # None is NaN
    x, y = (np.where(np.isfinite(values), values, -math.inf) for values in signed)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"arms of shape {x.shape} and {y.shape} make no pairs: give [seeds] each")
    with np.errstate(invalid="ignore"):
        gains = np.where(np.isfinite(x) | np.isfinite(y), x - y, effect)
    wins, losses = int((gains > effect).sum()), int((gains < effect).sum())
    return Counts(wins, len(gains) - wins - losses, losses)


def count_looks(
    arm: Values, baseline: Values, at: Sequence[int], effect: float = 0.0
) -> list[Counts]:
    """Return the counts at every look that has all of its seeds; higher values are better."""
    complete = [seeds for seeds in at if seeds <= min(len(arm), len(baseline))]
    return [count_pairs(arm[:n], baseline[:n], effect=effect) for n in complete]


def log_capital(counts: Iterable[ArrayLike], m: ArrayLike) -> np.ndarray:
    """Return the logarithm of the capital against the null mu = m.

    A bet on mean q multiplies the capital by q/m after a win, by (1 - q)/(1 - m) after a loss, and
    by the average of both after a tie. The capital is the mean over q = 1/200, ..., 199/200. It is
    log-convex in m and at most 1 at the observed mean, so the nulls with a capital below a limit
    form an interval around the observed mean.

    Args:
      counts: wins, ties and losses, as arrays that broadcast with m.
      m: null means in (0, 1).
    """
    wins, ties, losses = (np.asarray(number, np.float64)[..., None] for number in counts)
    null = np.asarray(m, np.float64)[..., None]
    win, loss = np.log(_BETS / null), np.log((1 - _BETS) / (1 - null))
    terms = wins * win + ties * (np.logaddexp(win, loss) - math.log(2)) + losses * loss
    top = terms.max(axis=-1, keepdims=True)  # the capital after thousands of wins would overflow
    return top[..., 0] + np.log(np.exp(terms - top).mean(axis=-1))


def log_sign_capital(counts: Iterable[ArrayLike]) -> np.ndarray:
    """Return the logarithm of the capital against mu = 1/2, with bets uniform on (0, 1).

    Ties have no effect, and the capital is 2^(W + L) B(1 + W, 1 + L) for W wins and L losses. It
    differs by about 1 % from the mean over the grid of `log_capital`.
    """
    wins, _, losses = (np.asarray(number, np.float64) for number in counts)
    return (wins + losses) * math.log(2) + betaln(1 + wins, 1 + losses)


def anytime_p(looks: Sequence[Counts], m: float = 0.5) -> tuple[float, int]:
    """Return the p-value of mu = m after some looks, 1 / (largest capital) and at most 1.

    Returns:
      The p-value, and the side of m on which the observed mean is at the look with the largest
      capital: 1, -1 or 0.
    """
    logs, sides = _evidence(np.transpose(np.array(looks, np.float64).reshape(-1, 3)), m)
    best = int(logs.argmax()) if len(logs) else 0
    if not len(logs) or logs[best] <= 0:
        return 1.0, 0
    return float(np.exp(-logs[best])), int(sides[best])


def _evidence(counts: np.ndarray, m: float) -> tuple[np.ndarray, np.ndarray]:
    """Return log capital and side of m, `[...]` each, of counts `[3, ...]`.

    Where more than half of the pairs tie, ties alone are no evidence for mu > m < 1/2: the capital
    is the smaller one of all pairs and of the untied pairs, and 0 if their means are on different
    sides. The smaller one of two capitals is valid if one is.
    """
    wins, ties, losses = counts
    if m == 0.5:
        return log_sign_capital(counts), np.sign(wins - losses)
    whole, untied = log_capital(counts, m), log_capital((wins, 0 * ties, losses), m)
    side = np.sign(wins + ties / 2 - m * (wins + ties + losses))
    own = np.sign(wins - m * (wins + losses))
    tied = 2 * ties > wins + ties + losses
    smaller = np.where(side == own, np.minimum(whole, untied), 0.0)
    return np.where(tied, smaller, whole), side


def confidence_sequence(counts: Counts, alpha: float = ALPHA) -> Interval:
    """Return the confidence sequence of mu at one look: all m with a capital below 1/alpha.

    With probability at least 1 - alpha, the intervals of all looks contain mu. Ends are the
    outermost multiples of 1/2000 in the interval; 0.0005 and 0.9995 mean that a side is open.
    """

    def outside(step: int) -> bool:
        return bool(log_capital(counts, step / _NULLS) >= -math.log(alpha))

    # The mean itself is always inside.
    centre = min(max(round(counts.mean * _NULLS), 1), _NULLS - 1)
    below, above = range(1, centre), range(centre + 1, _NULLS)
    low = 1 + bisect.bisect_left(below, True, key=lambda step: not outside(step))
    high = centre + bisect.bisect_left(above, True, key=outside)
    return low / _NULLS, high / _NULLS


def sign_test(looks: Sequence[Counts], m: float = 0.5) -> tuple[float, int]:
    """Return the exact two-sided p-value that an arm wins a share m of the untied pairs.

    The p-value is twice the smaller tail of the binomial distribution, at most 1. It is valid for
    a single look with a number of seeds that was fixed before the runs.

    Returns:
      The p-value, and the side of m on which the observed share is: 1, -1 or 0.
    """
    wins, _, losses = looks[-1]
    pairs = wins + losses
    tails = bdtr(wins, pairs, m), bdtr(losses, pairs, 1 - m)
    side = int(wins > m * pairs) - int(wins < m * pairs)
    return float(min(1.0, 2 * min(tails))), side


def clopper_pearson(counts: Counts, alpha: float = ALPHA) -> Interval:
    """Return the exact interval at level 1 - alpha of the share of untied pairs that an arm wins.

    The interval excludes m exactly if `sign_test` of m gives a p-value of at most alpha.
    """
    wins, _, losses = counts
    low = float(betaincinv(wins, losses + 1, alpha / 2)) if wins else 0.0
    high = float(betaincinv(wins + 1, losses, 1 - alpha / 2)) if losses else 1.0
    return low, high


def share_won(counts: Counts) -> float:
    """Return the share of untied pairs that an arm wins, 1/2 without any."""
    return counts.untied.mean


FIXED = Design(
    sign_test, clopper_pearson, share_won, "share of untied pairs won", "sign test p"
)  # fmt: skip
SEQUENTIAL = Design(
    anytime_p, confidence_sequence, lambda counts: counts.mean,
    "paired probability of improvement", "anytime p",
)  # fmt: skip


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values by label, corrected for their number m (Holm 1979).

    The smallest p-value is multiplied by m, the next by m - 1 and so on; results are then made
    monotone and clipped to 1. A threshold of 0.05 limits the probability of any false rejection.
    """
    corrected, so_far = {}, 0.0
    for rank, label in enumerate(sorted(p_values, key=p_values.__getitem__)):
        so_far = max(so_far, (len(p_values) - rank) * p_values[label])
        corrected[label] = min(so_far, 1.0)
    return {label: corrected[label] for label in p_values}


def benjamini_hochberg(p_values: Sequence[float], rate: float = ALPHA) -> list[bool]:
    """Return which of some p-values are significant at a false discovery rate (1995)."""
    ranked = np.sort(p_values)
    below = ranked <= rate * np.arange(1, len(ranked) + 1) / max(len(ranked), 1)
    limit = ranked[below].max(initial=-1.0)
    return [bool(p <= limit) for p in p_values]


def decide(
    claims: Mapping[str, Evidence],
    design: Design = SEQUENTIAL,
    margin: float = MARGIN,
    *,
    alpha: float = ALPHA,
    plan: bool = True,
) -> dict[str, Decision]:
    """Decide every claim at the first look that has enough evidence.

    A claim "agrees" or "disagrees" if its p-value, corrected over the family by Holm's method, is
    below alpha; the sign is that of the evidence of the p-value. The null of "better" and "worse"
    is that wins and losses are equally likely, and the null of "at least as good" that the arm
    wins with probability 1/2 - margin. The verdict "no difference" needs an interval inside
    (1/2 - margin, 1/2 + margin); where more than half of the pairs tie, it also needs such an
    interval of the untied pairs. There is no verdict from fewer than ten seeds.

    Later looks of a decided claim are ignored and may be missing, so that decisions do not change
    if the study is interrupted or gets more seeds.

    Args:
      claims: the family of claims, by name. Looks must have the same numbers of seeds in all of
        them.
      design: `FIXED` or `SEQUENTIAL`.
      margin: see above, in (0, 1/2).
      alpha: probability that any claim falsely agrees or disagrees; that of an error of any
        interval is another alpha.
      plan: whether to estimate the seeds that undecided claims need (up to 0.5 s per claim).

    Returns:
      The decision about each claim.
    """
    family = [name for name, own in claims.items() if own.corrected and own.stopped is None]
    share = {name: alpha / max(len(family), 1) if name in family else alpha for name in claims}
    found: dict[str, Decision] = {}
    used: dict[str, Sequence[Counts]] = {}
    for look in range(1, max((len(own.looks) for own in claims.values()), default=0) + 1):
        open_ = [name for name in claims if name not in found or not _ends(found[name])]
        used |= {name: claims[name].looks[:look] for name in open_}
        tests = {
            name: design.p_value(used[name], _null(own, margin)) for name, own in claims.items()
        }
        corrected = {name: p for name, (p, _) in tests.items()}
        corrected |= holm({name: tests[name][0] for name in family})
        for name in open_:
            found[name] = _decide_at_look(
                claims[name], used[name][-1], *tests[name], corrected[name], design, margin, alpha,
                share[name], len(family) if name in family else 0,
            )  # fmt: skip
    for name, decision in found.items() if plan and design is SEQUENTIAL else ():
        if not _ends(decision):
            found[name] = _with_plan(decision, claims[name], share[name], margin)
    return found


def _ends(decision: Decision) -> bool:
    """Return whether a decision is final."""
    return decision.verdict not in ("undecided", "pilot")


def _null(claim: Evidence, margin: float) -> float:
    return 0.5 - margin if claim.direction == "at least as good" and not claim.exceeds else 0.5


def _decide_at_look(
    claim: Evidence, counts: Counts, raw: float, side: int, p: float, design: Design,
    margin: float, alpha: float, share: float, family: int,
) -> Decision:  # fmt: skip
    interval, seeds = design.interval(counts, share), counts.pairs // claim.tasks
    verdict: Verdict = "undecided"
    if claim.stopped is not None:
        verdict = claim.stopped[0]
    elif seeds < FEWEST_SEEDS:
        verdict = "pilot"
    elif p < alpha and side:
        verdict = "agrees" if (side < 0) == (claim.direction == "worse") else "disagrees"
    elif claim.direction != "at least as good" and not claim.exceeds:
        intervals = [interval]
        if 2 * counts.ties > counts.pairs:
            intervals.append(design.interval(counts.untied, share))
        if all(_is_inside(own, margin) for own in intervals):
            verdict = "no difference"
    estimate = design.estimate(counts)
    low, high = interval
    if claim.stopped is not None:
        reason = claim.stopped[1]
    else:
        where = "" if claim.tasks == 1 else f" on {claim.tasks} tasks"
        reason = (
            f"{counts.wins}/{counts.losses}/{counts.ties} of {seeds} seeds{where}; "
            f"{design.quantity} {estimate:.3g} [{low:.3g}, {high:.3g}] at "
            f"{100 * (1 - share):.3g} %; {design.test} = {shown_p(p)}"
            + (f" (Holm over {family})" if family > 1 else "")
        )
    return Decision(verdict, reason, counts, seeds, estimate, interval, 1 - share, p, raw)


def _is_inside(interval: Interval, margin: float) -> bool:
    low, high = interval
    return low > 0.5 - margin + _ROUNDING and high < 0.5 + margin - _ROUNDING


def _with_plan(decision: Decision, claim: Evidence, share: float, margin: float) -> Decision:
    counts = decision.counts
    more = seeds_needed(
        counts, share, margin, _null(claim, margin), claim.direction != "at least as good"
        and not claim.exceeds, seen=counts,
    )  # fmt: skip
    if more is None:
        return decision
    more = math.ceil(more / claim.tasks)
    reason = f"{decision.reason}; about {more:,} more seeds to decide"
    return replace(decision, reason=reason, expected=decision.seeds + more)


def shown_p(p: float) -> str:
    """Return a p-value with two digits, or with more if rounding would move it to alpha."""
    texts = (f"{p:.{digits}g}" for digits in range(2, 17))
    return next((text for text in texts if (float(text) < ALPHA) == (p < ALPHA)), str(p))


@functools.lru_cache(maxsize=1024)  # reports repeat calls with the same counts
def seeds_needed(
    pilot: Counts,
    alpha: float = ALPHA,
    margin: float = MARGIN,
    null: float = 0.5,
    equivalence: bool = True,
    *,
    seen: Counts = Counts(),
    chance: float = 0.8,
) -> int | None:
    """Return the number of further pairs that decide a sequential claim with probability `chance`.

    Studies are simulated with a fixed seed. The rates of wins, ties and losses of each are drawn
    from their posterior under a Dirichlet(1, 1, 1) prior, so that three wins out of three do not
    imply a fourth. Simulated looks are 16 seeds apart at first and 6 % apart later, so the result
    may be too large by as much.

    Args:
      pilot: observed or guessed counts, from which the rates are estimated.
      alpha: alpha of the study, divided by its number of claims.
      margin: as in `decide`.
      null: null of the claim.
      equivalence: whether "no difference" is an answer.
      seen: counts so far.
      chance: probability of a decision.

    Returns:
      A multiple of 16, or None if 10,000 seeds are too few.
    """
    rng = np.random.default_rng(0)
    rates = rng.dirichlet(np.array(pilot) + 1.0, _TRIALS)[:, None]
    spaced = np.geomspace(_BATCH, _MOST, 120)
    at = np.unique(np.ceil(spaced / _BATCH - _ROUNDING).astype(int)) * _BATCH
    drawn = rng.multinomial(np.diff(at, prepend=0), rates, (_TRIALS, len(at)))
    undecided = np.array(seen) + drawn.cumsum(axis=1)  # [trials, looks, 3]
    for look, further in enumerate(at):
        decided = _decides(undecided[:, look].T, alpha, margin, null, equivalence)
        undecided = undecided[~decided]
        if len(undecided) <= (1 - chance) * _TRIALS + _ROUNDING:
            return int(further)
    return None


def _decides(
    counts: np.ndarray, alpha: float, margin: float, null: float, equivalence: bool
) -> np.ndarray:
    """Return `[trials]`, whether counts `[3, trials]` decide a study of one claim."""
    limit = -math.log(alpha)
    decided = _evidence(counts, null)[0] >= limit
    if not equivalence:
        return decided
    wins, ties, losses = counts
    # Where more than half of the pairs tie, the untied pairs give the wider interval.
    kept = np.where(2 * ties > counts.sum(axis=0), 0, ties)
    ends = [log_capital((wins, kept, losses), 0.5 + side * margin) for side in (-1, 1)]
    return decided | ((ends[0] >= limit) & (ends[1] >= limit))
