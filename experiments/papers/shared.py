"""No paper's: tasks on which what is replayed decides what is learned, at three replay ratios."""

from experiments.figures.style import NAMES
from experiments.papers import layouts, tasks
from experiments.papers.entry import Claim, Entry, Layout

_EVERY = (16, 4, 1)  # agent steps per update: 2, 8 and 32 replays per transition
_COMPARED = ("per", "rank", "lap", "pser")


def _claims(what: str) -> tuple[Claim, ...]:
    """Claim what the papers claim of their methods in general: better than uniform replay."""
    better = tuple(
        Claim(
            f"{NAMES[method]} solves {what} sooner than uniform replay, at an update per {every} "
            f"step{'s' * (every > 1)}",
            f"{method}_every{every}",
            f"uniform_every{every}",
        )
        for method in _COMPARED
        for every in _EVERY
    )
    same = tuple(
        Claim(
            f"PSER solves {what} sooner than PER, at an update per {every} step{'s' * (every > 1)}",
            f"pser_every{every}",
            f"per_every{every}",
        )
        for every in _EVERY
    )
    return better + same


ENTRIES = (
    Entry(
        "all.walk", "all",
        "The Blind Cliffwalk as an online task of ten states, behaviour random: steps until solved",
        tasks.WALK, Layout(layouts.forest), claims=_claims("the walk"),
        note=("One-hot states, DQN of 32 units; what is seen is the same for every method.",),
    ),
    Entry(
        "all.deepsea", "all",
        "DeepSea of 8 by 8, behaviour random: steps until solved",
        tasks.DEEPSEA, Layout(layouts.forest), claims=_claims("DeepSea"),
        note=("ERE's window is 500 steps at least.",),
    ),
)  # fmt: skip
