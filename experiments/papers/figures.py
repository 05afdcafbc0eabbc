"""The figure of an entry: its layout over its table."""

import dataclasses
from pathlib import Path

from experiments.figures.judged import Judged
from experiments.papers import verdict
from experiments.papers.blocks import Compared, Plotted
from experiments.papers.entry import Claim, Entry
from experiments.papers.experiment import Experiment, SizeName
from experiments.papers.tables import Data
from experiments.studies import judge
from jaxreplay.methods import METHODS

_ENDINGS = ("_every", ",")  # of labels, before what is not the method


class NothingToShow(ValueError):
    """A table has no row of what a layout shows, as smaller sizes may."""


def path_of(entry: Entry, size: SizeName, folder: Path) -> Path:
    """Return where an entry's figure lies."""
    return folder / f"{entry.id}.{size}.png"


def draw(entry: Entry, size: SizeName, data: Data, path: Path) -> None:
    """Draw an entry's figure.

    Raises:
      NothingToShow: the table lacks what the layout shows.
    """
    assert entry.layout is not None
    frame = verdict.chosen(data.frame, entry.layout.where)
    frame = frame[frame["arm"].notna()]
    source = entry.source
    methods = {}
    if isinstance(source, Experiment):
        for arms in source.points(size).values():
            methods |= {label: arm.config.replay for label, arm in arms.items()}
    order = list(entry.arms or methods or dict.fromkeys(frame["arm"]))
    frame = frame[frame["arm"].isin(order)]
    if frame.empty:
        raise NothingToShow(f"the table at size {size} has no row of what it shows")
    if isinstance(source, Experiment):  # the table has its tasks by name
        envs = {env: number for number, env in enumerate(source.sizes[size].envs)}
        frame = frame.sort_values("env", key=lambda own: own.map(envs), kind="stable")
    methods = {arm: methods.get(arm) or _method(arm) for arm in order}
    about = f"{entry.id}: {entry.shows}"
    if isinstance(source, Experiment) and size != "paper":
        about += f" (size {size})"

    def judged(env: str) -> Compared:
        assert isinstance(source, Experiment)
        found = comparison(source, size, data, env)
        return found._replace(rows=_as_claimed(entry, size, data, found.rows))

    plotted = Plotted(frame, methods, about, judged, data.frame)
    entry.layout.draw(plotted, path, **entry.layout.options)


def _as_claimed(entry: Entry, size: SizeName, data: Data, rows: list[Judged]) -> list[Judged]:
    """Return arms with the verdicts of the entry's claims, so that figure and report agree.

    An arm that no claim is about, and that was tested, has none.
    """
    claimed = {
        (claim.arm, claim.baseline): finding
        for claim, finding in zip(entry.claims, verdict.findings(entry, size, data), strict=True)
        if isinstance(claim, Claim)
    }
    shown = []
    for row in rows:
        own = row.judgement
        if (finding := claimed.get((row.label, own.baseline))) is not None:
            own = dataclasses.replace(own, verdict=finding.verdict, reason=finding.reason)
        elif own.verdict != "not tested":
            own = dataclasses.replace(own, verdict="no claim", reason="no claim is about it")
        shown.append(row._replace(judgement=own))
    return shown


def comparison(source: Experiment, size: SizeName, data: Data, env: str) -> Compared:
    """Return the answer to an experiment's own question on a task: every arm with its baseline."""
    assert data.store is not None
    study = source.study(size)
    allowed = len(data.codes()) > 1  # the reports name them
    frames = judge.judged_frames(data.store, study)
    found = judge.judge(study, frames, data.store.made(), allowed, plan=False)
    several = f"{env} " if len(study.envs) > 1 else ""
    rows = [
        row._replace(label=row.label.removeprefix(several))
        for row in found.rows
        if found.members[row.label].point.env == env
    ]
    return Compared(rows, study.metric(env), study.baseline)


def _method(arm: str) -> str:
    """Return the method that an arm of a computation is named after, for its colour."""
    known = {"proportional": "per", "ours": "uniform"}
    word = arm
    for ending in _ENDINGS:
        word = word.partition(ending)[0]
    word = known.get(word, word)
    return word if word in METHODS else arm
