"""RESULTS.md agrees with the committed tables, and committed files are small."""

import dataclasses
import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from experiments.papers import archive, committed, figures, judging, running, summary
from experiments.papers.catalogue import ENTRIES
from experiments.papers.entry import Layout
from experiments.statistics import verdicts
from experiments.statistics.claims import CONTROL, Claim
from experiments.statistics.counts import count_looks
from experiments.statistics.evidence import Evidence
from experiments.studies.definition import BATCH

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
PAPERS = RESULTS / "papers"
SOURCES = {entry.source.name: entry.source for entry in ENTRIES.values() if entry.source}
COMMITTED = [
    name
    for name in SOURCES
    if (PAPERS / f"{name}.small.json").exists() or (PAPERS / f"{name}.small").exists()
]


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """Read every table once, because entries and tests share them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "read", functools.cache(archive.read))
        yield


def test_report_is_up_to_date_with_the_tables():
    """Update it with `python -m experiments.papers report --all --write RESULTS.md`."""
    text = summary.everything(ENTRIES.values(), "small", PAPERS)
    assert (ROOT / "RESULTS.md").read_text() == text


def test_figures_of_the_report_exist():
    for entry in ENTRIES.values():
        data = archive.read(PAPERS, entry.source.name, "small") if entry.source else None
        if summary.status(entry, "small", data) == "done" and entry.layout is not None:
            assert (PAPERS / f"{entry.id}.small.png").exists(), entry.id


@pytest.mark.parametrize("name", COMMITTED)
def test_tables_have_the_arms_and_configs_of_their_entries(name):
    source = SOURCES[name]
    data = archive.read(PAPERS, name, "small")
    assert data is not None and not running.stale(source, "small", data, other_code=True)
    if data.runs:
        wanted = {env: set(arms) for env, arms in source.points("small").items()}
        assert all(set(runs) <= wanted[env] for env, runs in data.runs.items())
        config = next(iter(data.runs.values()))
        assert all("config" in made and "versions" in made for made in config.values())


def decide(saved, rows):
    """Decide comparisons with the saved values; `rows` have arm, baseline and verdict by name."""
    sign = 1 if saved["primary"]["higher_is_better"] else -1
    sequential, evidence = saved["question"].get("until_decided", False), {}
    for name, row in rows.items():
        arm, base = (
            sign * np.array([math.nan if x is None else x for x in saved["values"][row[side]]])
            for side in ("name", "base")
        )
        seeds = min(len(arm), len(base))
        at = row.get("at") or ([*range(BATCH, seeds + 1, BATCH)] if sequential else [seeds])
        # Wins and losses do not determine whether an arm was tested.
        stopped = row["verdict"] in ("not tested", "not comparable")
        evidence[name] = Evidence(
            Claim(name, row["name"], row["base"], row["direction"]), count_looks(arm, base, at),
            corrected=CONTROL not in name,
            stopped=(row["verdict"], row["reason"]) if stopped else None,
        )  # fmt: skip
    return verdicts.decide(evidence, sequential, plan=False)


@pytest.mark.parametrize(
    "path", sorted(RESULTS.rglob("verdicts.json")), ids=lambda path: path.parent.name
)
def test_verdicts_follow_from_the_saved_values(path):
    saved = json.loads(path.read_text())
    families = {}
    for name, arm in saved["arms"].items():
        at = [seeds for seeds, *_ in saved["looks"][name]]
        families.setdefault("arms", {})[name] = arm | {
            "name": name, "base": arm["baseline"], "at": at, "direction": "either"
        }  # fmt: skip
    for row in saved.get("claims", ()):
        own = row | {"name": row["arm"], "base": row["baseline"], "p_value": row["p"]}
        own["direction"] = "better"  # as all committed claims state
        families.setdefault(row["family"], {})[row["claim"]] = own
    if any(row["name"] not in saved["values"] for own in families.values() for row in own.values()):
        pytest.skip("the claims are over several tasks, and values are by task")
    for rows in families.values():
        for name, found in decide(saved, rows).items():
            assert (found.verdict, found.seeds) == (rows[name]["verdict"], rows[name]["seeds"])
            assert rows[name]["p_value"] == pytest.approx(found.p_value)
            assert rows[name]["interval"] == pytest.approx(found.interval)


def test_committed_files_are_small():
    sizes = {path: path.stat().st_size for path in PAPERS.rglob("*") if path.is_file()}
    assert sizes and max(sizes.values()) < 450_000
    assert sum(sizes.values()) < 15_000_000
    assert {path for path in sizes if path.suffix not in (".png", ".json", ".gz", ".csv")} == set()


def test_figures_and_report_have_the_same_verdicts():
    entry, data = ENTRIES["all.walk"], committed.load("all.walk")
    shown = {}

    def layout(plotted, path):
        shown.update({row.label: row.verdict for row in plotted.judged().rows})

    figures.draw(dataclasses.replace(entry, layout=Layout(layout)), "small", data, Path("unused"))
    findings = judging.judge_entry(entry, "small", data)
    for claim, finding in zip(entry.claims, findings, strict=True):
        if claim.baseline.startswith("uniform"):
            assert shown[claim.arm] == finding.verdict
    assert shown["pal_every1"] == "no claim" and shown["ere_every16"] == "not tested"
