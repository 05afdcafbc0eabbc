"""Sections of a sweep's page: what it took, what failed, and what repeats it."""

from experiments.pages import commands, settings
from experiments.pages.blocks import Code, Lines, Section, Table
from experiments.pages.swept import Swept
from experiments.runs.run_config import up_to_date
from experiments.studies import costs
from experiments.studies.costs import Cost

_MOST_NAMED = 20  # runs


def compute(swept: Swept) -> Section:
    """Return runs, steps, seconds and compilation of every method on every task."""
    found = costs.by_method(swept.store)
    header = [
        "", "runs", "agent steps", "updates", "device seconds", "seconds per run",
        "compilation (s)", "of all time",
    ]  # fmt: skip
    several = len(swept.envs) > 1
    rows = [
        _row(f"{env} {label}" if several else label, cost) for (env, label), cost in found.items()
    ]
    total = Cost(*(sum(each) for each in zip(*found.values(), strict=True)))
    intro = (
        "Seconds are those of one device, shared out between the runs that went together; "
        "compilation is what they waited for their training loop to be compiled, or loaded where "
        "it was kept."
    )
    return Section("time", "Compute", intro, [Table([header, *rows, _row("all", total)])])


def failures(swept: Swept) -> Section | None:
    """Return runs that failed, diverged, or have yet to run; None: all is well."""
    lines = [f"Failed: {name}: {why}" for name, why in swept.store.facts["failed"].items()]
    lost = swept.table[swept.table["diverged"] > 0]
    lines += [f"Diverged: {row.point}, seed {row.seed}" for row in lost.itertuples()]
    if len(lines) > _MOST_NAMED:
        lines = [*lines[:_MOST_NAMED], f"and {len(lines) - _MOST_NAMED} more"]
    if not lines:
        return None
    intro = (
        "Runs that diverged are among the scores, and compared as the worst there is; those that "
        "failed are not among them."
    )
    if swept.tried is not None:
        intro = "A trial with a run that failed or diverged has no score."
    return Section("failures", "What went wrong", intro, [Lines(lines)])


def repeat(swept: Swept) -> Section:
    """Return what all runs share, what made them, and the command of the sweep."""
    facts = swept.store.facts
    versions = [facts["versions"].get(key, "-") for key in ("device", "python", "jax")]
    header = ["device", "Python", "jax", "code"]
    configs = {name: up_to_date(point["config"]) for name, point in facts["points"].items()}
    shared, _ = settings.split({name: settings.flat(own) for name, own in configs.items()})
    gone = {name: value for own in configs.values() for name, value in commands.gone(own).items()}
    blocks: list[Table | Lines | Code] = [
        Table([header, [*map(str, versions), swept.code]], "Device and versions"),
        Table([["option", "value"], *shared.items()], "What all runs share", folded=True),
    ]
    if gone:
        blocks.append(
            Lines([settings.said_gone(f"{name} {value}" for name, value in gone.items())])
        )
    blocks.append(Code([commands.of_study(facts["study"])]))
    intro = "The last lines repeat it, with the version of the code that is named here."
    return Section("settings", "Configuration", intro, blocks)


def _row(name: str, cost: Cost) -> list[str]:
    share = f"{100 * cost.compiling / cost.seconds:.0f} %" if cost.seconds else "-"
    return [
        name, f"{cost.runs:,}", f"{cost.steps:,}", f"{cost.updates:,}", f"{cost.seconds:,.0f}",
        f"{cost.seconds / max(cost.runs, 1):,.2f}", f"{cost.compiling:,.0f}", share,
    ]  # fmt: skip
