"""The section of a search's page with what it found: best settings, on seeds that chose nothing."""

import numpy as np

from experiments.pages import sweep_scores
from experiments.pages.blocks import Section, Table
from experiments.pages.swept import Swept
from experiments.studies import search_report
from experiments.studies.report import shown


def best(swept: Swept) -> Section | None:
    """Return every method's best settings and its defaults; None: no fresh seed has ended."""
    if not swept.rows:
        return None
    header = [
        "method", "best settings", "on the seeds that chose", "on fresh seeds",
        "by default, on fresh seeds", "wins/losses/ties",
    ]  # fmt: skip
    several = len(swept.envs) > 1
    cells = []
    results = search_report.results(swept.store, swept.study)
    for found in results:
        row = swept.row(found.env, found.label)
        cells.append([f"{found.env} {found.label}" if several else found.label])
        if found.best is None or row is None:
            default = "-" if row is None else shown(row.shown)
            cells[-1] += [_why_none(swept, found), "-", "-", default, "-"]
            continue
        complete = not np.isnan(found.defaults).any()
        cells[-1] += [
            swept.point_settings(found.best), shown(row.chosen), shown(row.shown),
            shown(row.default), search_report.compared(found, swept.study) if complete else "-",
        ]  # fmt: skip
    metric = swept.metric
    better = "higher" if metric.higher_is_better else "lower"
    asked = swept.store.facts["search"]["asked"]
    fresh = len(asked["fresh_seeds"])
    intro = (
        f"Scores: {metric.name} ({metric.help}; {better} is better), IQM over seeds [95 % "
        "bootstrap interval]. The best of many settings on the seeds that chose it is partly luck. "
        f"So it runs again on {fresh} fresh seed{'s' * (fresh > 1)}, beside the defaults (hollow); "
        "on how many of these it beats them, loses and ties stands at the end."
    )
    blocks = [Table([header, *cells]), sweep_scores.drawn(swept)]
    if any(each.lost.any() or each.defaults_lost.any() for each in results):
        intro += " A seed that diverged is worse than any that did not."
    return Section("best", "At their best, and by default", intro, blocks)


def _why_none(swept: Swept, found: search_report.Result) -> str:
    """Return why a method has no best settings to show."""
    if found.best is not None:
        return "not all fresh seeds have ended"
    tried = swept.tried
    own = tried[(tried["env"] == found.env) & (tried["replay"] == found.label)]
    return "none to choose" if own.empty else "every trial failed"
