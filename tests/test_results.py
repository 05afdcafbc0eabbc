"""RESULTS.md agrees with the committed tables, and committed files are small."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from experiments.papers import figures, report, results, running, tables, verdict
from experiments.papers.entry import Layout
from experiments.papers.registry import ENTRIES
from experiments.runs import manifest
from experiments.statistics import decisions, paired, verdicts
from experiments.studies.study import BATCH

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
PAPERS = RESULTS / "papers"
SOURCES = {entry.source.name: entry.source for entry in ENTRIES.values() if entry.source}
COMMITTED = [
    name
    for name in SOURCES
    if (PAPERS / f"{name}.small.json").exists() or (PAPERS / f"{name}.small").exists()
]


def test_report_is_up_to_date_with_the_tables():
    """Update it with `python -m experiments.papers report --all --write RESULTS.md`."""
    text = report.everything(ENTRIES.values(), "small", PAPERS)
    assert (ROOT / "RESULTS.md").read_text() == text


def test_figures_of_the_report_exist():
    for entry in ENTRIES.values():
        data = tables.read(PAPERS, entry.source.name, "small") if entry.source else None
        if report.status(entry, "small", data) == "done" and entry.layout is not None:
            assert (PAPERS / f"{entry.id}.small.png").exists(), entry.id


@pytest.mark.parametrize("name", COMMITTED)
def test_tables_have_the_arms_and_configs_of_their_entries(name):
    source = SOURCES[name]
    data = tables.read(PAPERS, name, "small")
    assert data is not None and not running.stale(source, "small", data, other_code=True)
    if data.runs:
        wanted = {env: set(arms) for env, arms in source.points("small").items()}
        assert all(set(runs) <= wanted[env] for env, runs in data.runs.items())
        config = next(iter(data.runs.values()))
        assert all("config" in made and "versions" in made for made in config.values())


@pytest.mark.parametrize(
    "path", sorted(RESULTS.rglob("verdicts.json")), ids=lambda path: path.parent.name
)
def test_verdicts_follow_from_the_saved_numbers(path):
    saved = json.loads(path.read_text())
    arms, corrected = saved["arms"], {}
    if saved.get("looks"):  # sequential study: seeds were added until decisions
        higher, values = saved["primary"]["higher_is_better"], saved["values"]
        counts = {
            label: [
                decisions.count_pairs(
                    values[label][:seeds], values[arms[label]["baseline"]][:seeds], higher
                )
                for seeds, *_ in looks
            ]
            for label, looks in saved["looks"].items()
        }
        assert {label: [[own.seeds, *own] for own in looks] for label, looks in counts.items()} == (
            saved["looks"]
        )
        for label, decision in decisions.decide(counts, plan=False).items():
            answer = decisions.answer("better", decision.verdict, decision.interval)
            # Wins and losses do not determine whether an arm was tested.
            assert arms[label]["verdict"] in (answer, "not tested", "not comparable")
        return
    for label, arm in arms.items():
        pairs = arm["pairs"]
        signs = [1] * pairs["wins"] + [-1] * pairs["losses"]
        p_value = paired.sign_flip_test(pairs["differences"] or signs)
        assert pairs["p_value"] == pytest.approx(p_value)
        if pairs["p_holm"] is not None:
            corrected[label] = p_value
    corrected = paired.holm(corrected)
    for label, arm in arms.items():
        assert arm["pairs"]["p_holm"] == pytest.approx(corrected.get(label))
        if arm["quantity"] is not None:
            p_value = corrected.get(label, arm["pairs"]["p_value"])
            numbers = arm["interval"], arm["boundary"], p_value, arm["pairs"]["mean"]
            assert arm["verdict"] == verdicts.decide(arm["claim"], *numbers)[0]


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(RESULTS.rglob("verdicts.json")) if '"claims"' in path.read_text()],
    ids=lambda path: path.parent.name,
)
def test_verdicts_of_claims_follow_from_the_saved_values(path):
    saved = json.loads(path.read_text())
    assert saved["question"]["until_decided"] and saved["claims"]
    higher, families = saved["primary"]["higher_is_better"], {}
    for row in saved["claims"]:
        families.setdefault(row["family"], []).append(row)
    if saved["claims"][0]["arm"] not in saved["values"]:
        pytest.skip("the claims are over several tasks, and values are by task")
    for rows in families.values():
        looks = {}
        for row in rows:
            arm, base = (
                np.array([math.inf if x is None else x for x in saved["values"][row[side]]])
                for side in ("arm", "baseline")
            )
            at = range(BATCH, min(len(arm), len(base)) + 1, BATCH)
            looks[row["claim"]] = [decisions.count_pairs(arm[:n], base[:n], higher) for n in at]
        decided = decisions.decide(looks, plan=False)
        for row in rows:
            decision = decided[row["claim"]]
            answer = decisions.answer("better", decision.verdict, decision.interval)
            assert (row["verdict"], row["seeds"]) == (answer, decision.seeds)
            assert row["p"] == pytest.approx(decision.p_value)


@pytest.mark.parametrize(
    "folder",
    sorted(path.parent for path in RESULTS.rglob("manifest.json")),
    ids=lambda path: path.name,
)
def test_committed_results_match_their_manifests(folder):
    assert manifest.differing(folder) == []


def test_committed_files_are_small():
    sizes = {path: path.stat().st_size for path in PAPERS.rglob("*") if path.is_file()}
    assert sizes and max(sizes.values()) < 450_000
    assert sum(sizes.values()) < 15_000_000
    assert {path for path in sizes if path.suffix not in (".png", ".json", ".gz", ".csv")} == set()


def test_figures_and_report_have_the_same_verdicts():
    entry, data = ENTRIES["all.walk"], results.load("all.walk")
    shown = {}

    def layout(plotted, path):
        shown.update({row.label: row.judgement.verdict for row in plotted.judged().rows})

    figures.draw(dataclasses.replace(entry, layout=Layout(layout)), "small", data, Path("unused"))
    findings = verdict.findings(entry, "small", data)
    for claim, finding in zip(entry.claims, findings, strict=True):
        if claim.baseline.startswith("uniform"):
            assert shown[claim.arm] == finding.verdict
    assert shown["pal_every1"] == "no claim" and shown["ners_every1"] == "not tested"
