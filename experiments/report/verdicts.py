"""The section of verdicts: whether each arm was tested, and the result, seed by seed."""

from experiments.figures import judged
from experiments.report.blocks import Lines, Section, Table
from experiments.report.swept import Swept
from experiments.statistics import verdicts
from experiments.studies.study import Study


def section(swept: Swept) -> Section | None:
    """Return the verdicts of a study with their numbers, or None if nothing was compared."""
    if swept.findings is None or not swept.findings.rows:
        return None
    rows, metric, study = swept.findings.rows, swept.metric, swept.study
    assert isinstance(study, Study)  # as it has findings
    blocks = [
        Table(judged.cells(rows, metric.unit)),
        Lines([f"{row.label}: {row.judgement.reason}" for row in rows]),
    ]
    intro = (
        f"Primary metric, fixed before anything ran: {metric.name} ({metric.help}). Every arm is "
        f"compared with {study.baseline}, seed by seed; "
        "positive differences are better for the arm. An arm is tested if it used at most "
        f"{verdicts.UNIFORM_BUFFER:g} of the buffer, and a learned sampler if its network was "
        f"updated {verdicts.FEWEST_UPDATES} times."
    )
    return Section("verdicts", "Verdicts", intro, blocks)
