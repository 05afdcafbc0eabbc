"""HTML pages: the order of the sections, and rendering into one file that works offline."""

import re
from collections.abc import Callable
from pathlib import Path

import jinja2
import markupsafe

from experiments.cli import shared
from experiments.environments.extras import lacking_extra
from experiments.figures.elements import Panel
from experiments.report import (
    best,
    blocks,
    costs,
    head,
    plots,
    settings,
    source,
    training,
)
from experiments.report.blocks import Section
from experiments.report.source import Source
from experiments.runs.log import escaped, say
from experiments.storage.files import write_bytes
from experiments.studies.results import Results
from jaxreplay.saving import check_writable

NAME = "report.html"
MARK = '<meta name="generator" content="jaxreplay experiments.report">'  # identifies pages
_BEGINNING = 1000  # number of bytes in which the mark must occur
_TEMPLATES = Path(__file__).with_name("templates")


def write_run(folder: Path) -> str:
    """Write the page of a run into its folder.

    Returns:
      One line to print, with the path or the reason why there is no page. Errors are not raised,
      so that they cannot stop the run.
    """
    label = shared.shown(folder.name)
    return _written(folder, lambda: source.runs({label: folder}, other_code=True))


def write_study(results: Results) -> str:
    """Write the page of a study into its folder; return one line, as in `write_run`."""
    return _written(results.store.folder, lambda: results)


def _written(folder: Path, read: Callable[[], Source | Results]) -> str:
    try:
        return write(read(), folder / NAME)
    except ValueError as error:
        return f"report:  none: {error}"


def write(shown: Source | Results, path: Path, title: str | None = None) -> str:
    """Write a page atomically; return one line with its path.

    Raises:
      ValueError: the path is taken by a file that is not such a page.
      OSError: the disk is full, or the folder does not exist.
    """
    check_path(path)
    for remark in shown.remarks:
        say(remark)
    content = render(shown, title).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)
    return f"report:  {path} ({len(content) / 1e6:.1f} MB)"


def check_path(path: Path) -> None:
    """Check that a page can be written to a path, without changing any file.

    Raises:
      ValueError: the suffix is wrong, the path is a folder, a link or another file, or plotly is
        not installed.
    """
    if lacks := lacking_extra(path.name, {"plotly": "report"}):
        raise ValueError(lacks)
    if path.suffix != ".html":
        raise ValueError(f"{path} must end in .html")
    check_writable(path, "give the name of a file, or choose another --out")
    above = next(each for each in path.parents if each.exists())
    if not above.is_dir():
        raise ValueError(f"{above} is not a folder: choose another --out")
    if path.exists():
        with path.open("rb") as file:
            if MARK.encode() not in file.read(_BEGINNING):
                raise ValueError(f"{path} was not written by this command: choose another --out")


def sections(shown: Source | Results) -> list[Section]:
    """Return the sections that have content, in their order."""
    found = _of_study(shown) if isinstance(shown, Results) else _of_runs(shown)
    return [section for section in found if section is not None]


def _of_study(results: Results) -> list[Section | None]:
    has_best = results.has_choice or results.findings is None
    found, scores = best.best(results) if has_best else None, []
    if results.trials is not None:
        scores = [best.trials(results), best.searched_settings(results)]
    elif has_best:
        scores = [best.against_settings(results)]
    own = training.groups_of_study(results)
    return [
        training.verdicts(results),
        training.comparison(results),
        found,
        best.tasks(results) if found is not None else None,
        *scores,
        training.curves(own),
        *training.metrics(own),
        costs.of_study(results),
        settings.failures(results),
        settings.of_study(results),
    ]


def _of_runs(shown: Source) -> list[Section | None]:
    own = training.group_of_runs(shown)
    arms, unfinished = shown.arms, any(arm.summary is None for arm in shown.arms.values())
    timing = {label: arm.timing for label, arm in arms.items() if arm.timing is not None}
    summaries = {label: arm.summary for label, arm in arms.items() if arm.summary is not None}
    return [
        training.curves([own]),
        training.scores(own.styles, training.summaries(shown), unfinished),
        blocks.films({label: arm.film for label, arm in arms.items() if arm.film}),
        *training.metrics([own]),
        costs.of_runs(timing, summaries, own.styles),
        settings.of_runs(shown),
    ]


def render(shown: Source | Results, title: str | None = None) -> str:
    """Return the HTML of a page, which is a function of its content only.

    The template escapes markup and control characters of all texts, and plots are escaped JSON.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: escaped(value) if type(value) is str else value,
    )
    environment.filters["plot"] = _plot
    environment.filters["plain"] = plots.plain
    environment.filters["dashes"] = plots.SVG_DASHES.__getitem__
    return environment.get_template("page.html").render(
        mark=markupsafe.Markup(MARK),
        head=(head.of_study if isinstance(shown, Results) else head.of_runs)(shown, title),
        sections=sections(shown),
        style=_asset("page.css"),
        script=_asset("page.js"),
        plotly=_library(),
    )


def _plot(panel: Panel) -> markupsafe.Markup:
    return markupsafe.Markup(plots.to_script(plots.to_plotly(panel)))


def _library() -> markupsafe.Markup:
    """Return plotly's full JavaScript; its package has no smaller bundle."""
    import plotly.offline  # slow to import

    return markupsafe.Markup(plotly.offline.get_plotlyjs())


def _asset(name: str) -> markupsafe.Markup:
    text = (_TEMPLATES / name).read_text(encoding="utf-8")
    return markupsafe.Markup(re.sub(r"\n\s*", "\n", text))
