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


_SINCE = {
    "cer": "CER", "cer_per": "CER over PER", "reshuffled": "RR-C", "faded": "faded LAP",
    "curious": "curious replay", "relo": "ReLo",
}  # fmt: skip


def _since() -> tuple[Claim, ...]:
    return tuple(
        Claim(
            f"{name} solves the walk sooner than uniform replay, at an update per {every} steps",
            f"{label}_every{every}",
            f"uniform_every{every}",
        )
        for label, name in _SINCE.items()
        for every in (16, 4)
    )


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
    Entry(
        "all.since", "all",
        "The same walk with methods since PER, behaviour random: steps until solved",
        tasks.SINCE, Layout(layouts.forest), claims=_since(),
    ),
    Entry(
        "all.bitflip", "all",
        "BitFlip with 15 bits, whose goals are not reached by chance: final returns",
        tasks.HINDSIGHT, Layout(layouts.forest), claims=(
            Claim("HER ends higher than uniform replay", "her", "uniform"),
            Claim("HER over PER ends higher than uniform replay", "her_per", "uniform"),
            Claim(
                "HER over PER ends at least as high as HER", "her_per", "her", "at least as good"
            ),
        ),
        note=(
            "DQN with two layers of 64 units; HER with k = 4 and strategy future.",
            "HER reaches the optimum with and without PER, so that their final returns tie.",
        ),
    ),
)  # fmt: skip
