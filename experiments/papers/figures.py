"""Draw the figures of entries from their tables."""

import dataclasses
from pathlib import Path

from experiments.papers import judging
from experiments.papers.aggregates import Compared, Plotted
from experiments.papers.archive import Data, select_rows
from experiments.papers.entry import Claim, Entry, Experiment, SizeName
from experiments.studies import judge
from jaxreplay.methods import METHODS


class NothingToShow(ValueError):
    """Raised if a table has no row that the figure shows, which can happen in small sizes."""


def path_of(entry: Entry, size: SizeName, folder: Path) -> Path:
    """Return the path of the figure of an entry."""
    return folder / f"{entry.id}.{size}.png"


def draw(entry: Entry, size: SizeName, data: Data, path: Path) -> None:
    """Draw the figure of an entry and write it as a PNG.

    Raises:
      NothingToShow: the table has no row that the layout shows.
    """
    assert entry.layout is not None
    frame = select_rows(data.frame, entry.layout.where)
    frame = frame[frame["arm"].notna()]
    source = entry.source
    methods = {}
    if isinstance(source, Experiment):
        for arms in source.points(size).values():
            methods |= {label: arm.config.replay for label, arm in arms.items()}
    order = list(entry.arms or methods or dict.fromkeys(frame["arm"]))
    frame = frame[frame["arm"].isin(order)]
    if frame.empty:
        raise NothingToShow(f"the table at size {size} has no row that the figure shows")
    if isinstance(source, Experiment):  # the table is sorted by the name of the task
        envs = {env: number for number, env in enumerate(source.sizes[size].envs)}
        frame = frame.sort_values("env", key=lambda own: own.map(envs), kind="stable")
    methods = {arm: methods.get(arm) or _method(arm) for arm in order}
    about = f"{entry.id}: {entry.shows}"
    if isinstance(source, Experiment) and size != "paper":
        about += f" (size {size})"

    plotted = Plotted(frame, methods, about, lambda: _compared(entry, size, data), data.frame)
    entry.layout.draw(plotted, path, **entry.layout.options)


def _compared(entry: Entry, size: SizeName, data: Data) -> Compared:
    """Return the comparison of an experiment's arms with the baseline on its only task.

    An arm that a claim of the entry compares with the baseline has the verdict about this claim, so
    that figure and report agree. Other arms have the verdict "no claim", unless they were not
    tested.
    """
    assert isinstance(entry.source, Experiment) and data.store is not None
    answers = judging.judge_entry(entry, size, data)
    claimed = {
        (claim.arm, claim.baseline): answer
        for claim, answer in zip(entry.claims, answers, strict=True)
        if isinstance(claim, Claim) and not claim.beside
    }
    study = entry.source.study(size)
    (env,) = study.envs
    allowed = len(data.codes()) > 1  # reports list the versions
    frames = judge.judged_frames(data.store, study)
    rows = []
    for row in judge.judge(study, frames, data.store.made(), allowed, plan=False).rows:
        if (answer := claimed.get((row.label, row.claim.baseline))) is not None:
            row = dataclasses.replace(row, verdict=answer.verdict, reason=answer.reason)
        elif row.verdict != "not tested":
            row = dataclasses.replace(row, verdict="no claim", reason="no claim is about it")
        rows.append(row)
    return Compared(rows, answers, study.metric(env), study.baseline)


def _method(arm: str) -> str:
    """Return the replay method in the name of an arm, or the arm itself; it decides the colour."""
    known = {"proportional": "per", "ours": "uniform"}
    word = arm.partition("_every")[0].partition(",")[0]
    word = known.get(word, word)
    return word if word in METHODS else arm
