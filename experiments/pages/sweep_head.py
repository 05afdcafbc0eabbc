"""The head of a sweep's page: what was swept, how far that has come, what to be careful about."""

from experiments.analysis.verdicts import FEWEST_SEEDS
from experiments.pages.head import Head, span
from experiments.pages.swept import Swept


def head(swept: Swept, title: str | None) -> Head:
    """Return the head of a page; without a title it is named after agents and tasks."""
    frame = swept.store.frame
    agents = ", ".join(dict.fromkeys(map(str, frame["agent"])))
    points = swept.store.facts["points"].values()
    facts = [
        ("agent", agents),
        ("environments" if len(swept.envs) > 1 else "environment", ", ".join(swept.envs)),
        ("replay", ", ".join(swept.methods)),
        ("settings", ", ".join(swept.settings) or "none"),
        ("runs", f"{len(swept.table):,} ({len(points):,} points)"),
        ("seeds", _seeds(swept)),
        ("agent steps", span(frame.groupby("point")["step"].max().tolist())),
        ("scores", swept.metric.name),
    ]
    verb = "swept"
    if swept.tried is not None:
        verb = "searched"
        facts.insert(3, ("search", swept.store.facts["search"]["asked"]["search"]))
    return Head(title or f"{agents} {verb} on {', '.join(swept.envs)}", facts, warnings(swept))


def warnings(swept: Swept) -> list[str]:
    """Return what a reader must know before believing the numbers, a line each."""
    lines = list(swept.remarks)
    failed, ended = len(swept.store.facts["failed"]), len(swept.table)
    if swept.tried is not None:
        lines += _unfinished_search(swept)
    elif ended < swept.asked:
        lines.append(f"{ended:,} of {swept.asked:,} runs have ended.")
    if failed:
        lines.append(f"{failed} run{'s' * (failed > 1)} failed.")
    if lost := int((swept.table["diverged"] > 0).sum()):
        lines.append(f"{lost} run{'s' * (lost > 1)} diverged.")
    fewest = min((row.shown.seeds for row in swept.rows), default=0)
    if fewest < FEWEST_SEEDS and (swept.rows or swept.tried is None):
        lines.append(
            f"Best settings are shown on {fewest} seed{'s' * (fewest != 1)}: differences between "
            f"methods want a comparison of at least {FEWEST_SEEDS}, with the settings named before "
            "it runs."
        )
    if "+" in swept.code:
        lines.append(
            f"Several versions of the code or settings of JAX made these results: {swept.code}."
        )
    return lines


def _seeds(swept: Swept) -> str:
    points = swept.store.facts["points"].values()
    if swept.tried is None:
        return span([point["config"]["seeds"] for point in points])
    asked = swept.store.facts["search"]["asked"]
    return f"{len(asked['seeds']):,} that choose, {len(asked['fresh_seeds']):,} fresh"


def _unfinished_search(swept: Swept) -> list[str]:
    """Return what a search has yet to do."""
    asked = swept.store.facts["search"]["asked"]
    lines = []
    for env, labels in asked["space"].items():
        for label, space in labels.items():
            own = swept.tried[(swept.tried["env"] == env) & (swept.tried["replay"] == label)]
            if space and len(own) < asked["trials"]:
                lines.append(
                    f"{env} {label}: {len(own):,} of {asked['trials']:,} trials have ended."
                )
            elif swept.row(env, label) is None:
                lines.append(f"{env} {label}: not all fresh seeds have ended.")
    return lines
