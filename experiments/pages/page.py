"""A page from its source: sections in their order, rendered into one file that needs no network."""

import re
from collections.abc import Sequence
from pathlib import Path

import jinja2
import markupsafe

from experiments.analysis.files import write_bytes
from experiments.installation.commands import missing
from experiments.pages import (
    against_settings,
    best,
    blocks,
    costs,
    groups,
    head,
    plots,
    settings,
    source,
    training,
    verdicts,
)
from experiments.pages.blocks import Plot, Section
from experiments.pages.head import Head
from experiments.pages.source import Source
from experiments.pages.swept import Swept
from experiments.runs.log import say
from jaxreplay.saving import check_writable

NAME = "report.html"
MARK = '<meta name="generator" content="jaxreplay experiments.report">'  # such files are ours
_BEGINNING = 1000  # bytes in which the mark stands
_TEMPLATES = Path(__file__).with_name("templates")


def write_comparison(folder: Path) -> str:
    """Write the page of a comparison into its folder.

    Returns:
      One line to print: where the page is, or why there is none. What was trained is not lost for
      a page that could not be made.
    """
    path = folder / NAME
    try:
        return write(source.comparison(folder), path)
    except ValueError as error:
        return f"report:  none: {error}"


def write_run(folder: Path) -> str:
    """Write the page of a run into its folder; return one line as `write_comparison` does."""
    path = folder / NAME
    try:
        return write(source.runs({folder.name: folder}, other_code=True), path)
    except ValueError as error:
        return f"report:  none: {error}"


def write_sweep(swept: Swept) -> str:
    """Write the page of a sweep into its folder; return one line as `write_comparison` does."""
    try:
        return write(swept, swept.store.folder / NAME)
    except ValueError as error:
        return f"report:  none: {error}"


def write(shown: Source | Swept, path: Path, title: str | None = None) -> str:
    """Write a page whole or not at all; return one line that says where it is.

    Raises:
      ValueError: a file that is not ours is in the way.
      OSError: the disk is full, or the folder is gone.
    """
    check_path(path)
    for remark in shown.remarks:
        say(remark)
    # Names of files whose letters the locale lacks are bytes in disguise: they are written as such.
    content = render(shown, title).encode(errors="surrogateescape")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)
    return f"report:  {path} ({len(content) / 1e6:.1f} MB)"


def check_path(path: Path) -> None:
    """Refuse a path that a page can't be written to; change nothing.

    Raises:
      ValueError: one line: it has another ending, is a folder, a link, or a file that is not ours;
        or plotly is not installed.
    """
    if lacks := missing(path.name, {"plotly": "report"}):
        raise ValueError(lacks)
    if path.suffix != ".html":
        raise ValueError(f"{path} is no .html file: use this ending")
    check_writable(path, "give the name of a file, or choose another --out")
    above = next(each for each in path.parents if each.exists())
    if not above.is_dir():
        raise ValueError(f"{above} is not a folder: choose another --out")
    if path.exists():
        with path.open("rb") as file:
            if MARK.encode() not in file.read(_BEGINNING):
                raise ValueError(f"{path} was not written by this command: choose another --out")


def sections(shown: Source | Swept) -> list[Section]:
    """Return the sections that there is something for."""
    found = _of_study(shown) if isinstance(shown, Swept) else _of_runs(shown)
    return [section for section in found if section is not None]


def _of_study(swept: Swept) -> list[Section | None]:
    if swept.tried is None:
        found, scores = best.best(swept), [against_settings.section(swept)]
    else:
        found = best.of_search(swept)
        scores = [against_settings.tried(swept), against_settings.searched_settings(swept)]
    own = groups.of_study(swept)
    return [
        verdicts.of_study(swept),
        found,
        best.tasks(swept),
        *scores,
        training.curves(own),
        *_of_training(own),
        costs.of_study(swept),
        settings.failures(swept),
        settings.of_study(swept),
    ]


def _of_runs(shown: Source) -> list[Section | None]:
    own = groups.groups(shown)
    arms, unfinished = shown.arms, any(arm.summary is None for arm in shown.arms.values())
    timing = {label: arm.timing for label, arm in arms.items() if arm.timing is not None}
    summaries = {label: arm.summary for label, arm in arms.items() if arm.summary is not None}
    return [
        verdicts.section(shown, own),
        training.curves(own),
        training.scores(own, groups.last(shown), unfinished),
        blocks.films({label: arm.film for label, arm in arms.items() if arm.film}),
        *_of_training(own),
        costs.of_runs(timing, summaries, own),
        settings.of_runs(shown),
    ]


def _of_training(own: Sequence[groups.Group]) -> list[Section | None]:
    return [
        training.replayed(own),
        training.priorities(own),
        training.of_method(own),
        training.of_agent(own),
    ]


def render(shown: Source | Swept, title: str | None = None) -> str:
    """Return the page; it depends on nothing but its source.

    Everything that comes from files is escaped: by the template where it is text, and as JSON where
    plots have it.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["plot"] = _plot
    return environment.get_template("page.html").render(
        mark=markupsafe.Markup(MARK),
        head=_head(shown, title),
        sections=sections(shown),
        style=_asset("page.css"),
        script=_asset("page.js"),
        plotly=_library(),
    )


def _head(shown: Source | Swept, title: str | None) -> Head:
    if isinstance(shown, Swept):
        return head.of_study(shown, title)
    return head.of_runs(shown, title)


def _plot(plot: Plot) -> markupsafe.Markup:
    return markupsafe.Markup(plots.to_script({"data": plot.data, "layout": plot.layout}))


def _library() -> markupsafe.Markup:
    """Return plotly's JavaScript, whole: its package holds no smaller part of it."""
    import plotly.offline  # slow to import

    return markupsafe.Markup(plotly.offline.get_plotlyjs())


def _asset(name: str) -> markupsafe.Markup:
    text = (_TEMPLATES / name).read_text(encoding="utf-8")
    return markupsafe.Markup(re.sub(r"\n\s*", "\n", text))
