"""Tables of the Blind Cliffwalk: updates that replay methods need, measured and in theory."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from experiments.papers import cliffwalk, cliffwalk_theory
from experiments.papers.cliffwalk import Method
from experiments.papers.entry import Request, Row

SOURCES = ("experiments/papers/cliffwalk*.py",)
_POINTS = 150  # number of points on a thinned error curve, at most
_CURVES = 10  # number of seeds with an error curve, at most


def updates_by_size(request: Request) -> pd.DataFrame:
    """Return updates until convergence per size of the memory, and error curves for the largest.

    Schaul et al. 2016, Fig. 1 and 2 and App. B.1. The value is infinite for a seed that did not
    converge. The oracle, which looks only one update ahead, can end in a cycle if Q is linear with
    a shared constant.

    Returns:
      Rows with columns kind, values ("table" or "linear"), n, size (transitions in the memory),
      arm, seed and value. Rows of kind "updates" have the number of updates as their value, rows of
      kind "error" the mean squared error after the updates in column `updates`.
    """
    rows = []
    methods, states = request.options["methods"], request.options["states"]
    for values, n, name in itertools.product(("table", "linear"), states, methods):
        about = {"values": values, "n": n, "size": 2 ** (n + 1) - 2, "arm": name}
        rows += _learned(request, about, f"{name}, {values}", values == "linear", n == max(states))
    return pd.DataFrame(rows)


def errors_by_start(request: Request) -> pd.DataFrame:
    """Return updates and error curves for each number of states.

    Brittain et al. 2019, Fig. 2 and 7. Initial priorities are maximal or epsilon, depending on the
    method. The number of seeds may differ between methods. The table has the columns of
    `updates_by_size` except `values` and `size`; column `n` is the number of states.
    """
    rows = []
    for n, name in itertools.product(request.options["states"], request.options["methods"]):
        rows += _learned(request, {"n": n, "arm": name}, name)
    return pd.DataFrame(rows)


def _learned(
    request: Request, about: Row, title: str, linear: bool = False, with_errors: bool = True
) -> list[Row]:
    """Return the rows of one arm: updates and, with `with_errors`, error curves."""
    n, name = about["n"], about["arm"]
    seeds = request.options["seeds"]
    seeds = seeds if isinstance(seeds, int) else seeds[name]

    def learn() -> list[Row]:
        curve = _run(request, n, name, cliffwalk.METHODS[name], seeds, linear)
        rows = _converged(curve.updates, {"kind": "updates", **about})
        return rows + _errors(curve, {"kind": "error", **about}) if with_errors else rows

    return request.part(f"{title}, n = {n}", learn)


def settings_of_pser(request: Request) -> pd.DataFrame:
    """Return updates until convergence of PER and PSER over a grid of PSER's settings.

    Each setting of PSER also has rows of PER with the same exponent and initial priorities. Columns
    are n, start, alpha, rho, window, eta, arm, seed and value.
    """
    options, rows = request.options, []

    def updates(n: int, title: str, method: Method) -> list[Row]:
        return request.part(
            f"{title}, n = {n}",
            lambda: _converged(_run(request, n, title, method, options["seeds"]).updates, {}),
        )

    grid = itertools.product(options["decays"], options["etas"])
    decays = [{"rho": rho, "window": window, "eta": eta} for (rho, window), eta in grid]
    for n, start, alpha in itertools.product(
        options["states"], options["starts"], options["alphas"]
    ):
        at = f"{start}, alpha {alpha}"
        of_per = updates(n, f"per, {at}", cliffwalk.prioritised("per", start, alpha=alpha))
        for decay in decays:
            method = cliffwalk.prioritised("pser", start, alpha=alpha, **decay)
            of_pser = updates(n, f"pser, {at}, {decay}", method)
            for arm, counts in (("per", of_per), ("pser", of_pser)):
                about = {"n": n, "start": start, "alpha": alpha, **decay, "arm": arm}
                rows += [{**about, **count} for count in counts]
    return pd.DataFrame(rows)


def expected_updates(request: Request) -> pd.DataFrame:
    """Return expected updates until the whole path is learned, at learning rate 1 (Theorem 1).

    Brittain et al. 2019, Sec. 3.1. The table contains closed forms and simulations; the value of a
    seed is the mean of 100 simulations. The expression for PSER is exact only for an idealised
    process. With priorities from the error after the update, PSER's updates grow like PER's. With
    priorities from the error before the update, they stay close to the expression.

    Returns:
      Rows with columns rho, n, arm, seed and value, followed by rows for claims of type `Exact`.
    """
    states, batches = request.options["states"], request.options["seeds"]
    rng, rows = np.random.default_rng(0), []
    for n in states:
        request.say(f"Theorem 1: n = {n}")
        for rho in request.options["rhos"]:
            values = {
                "PER (Eq. 15)": [cliffwalk_theory.expected_per(n)] * batches,
                "PSER (Eq. 16)": [cliffwalk_theory.expected_pser(n, rho)] * batches,
            }
            for process in ("per-post", "per-pre", "pser-idealised", "pser-pre", "pser-post"):
                found = cliffwalk_theory.simulate(n, process, rho, rng, 100 * batches)
                values[f"simulated: {process}"] = found.reshape(batches, -1).mean(axis=1)
            rows += [
                {"rho": rho, "n": n, "arm": arm, "seed": seed, "value": value}
                for arm, own in values.items()
                for seed, value in enumerate(own)
            ]
    frame = pd.DataFrame(rows)
    return pd.concat([frame, _against_theory(frame)], ignore_index=True)


def _against_theory(frame: pd.DataFrame) -> pd.DataFrame:
    """Return simulated means, closed forms, and four standard errors as the tolerance."""
    rows = []
    for arm, theory in (
        ("simulated: per-post", "PER (Eq. 15)"),
        ("simulated: pser-idealised", "PSER (Eq. 16)"),
        ("simulated: pser-post", "PSER (Eq. 16)"),
        ("simulated: pser-pre", "PSER (Eq. 16)"),
    ):
        for (rho, n), group in frame.groupby(["rho", "n"]):
            own = group.loc[group["arm"] == arm, "value"]
            expected = group.loc[group["arm"] == theory, "value"].iloc[0]
            error = 4 * own.std(ddof=1) / np.sqrt(len(own))
            rows.append(
                {"claim": arm, "rho": rho, "n": n, "found": own.mean(), "expected": expected,
                 "tolerance": max(error, 1e-9)}
            )  # fmt: skip
    return pd.DataFrame(rows)


def _converged(updates: np.ndarray, about: Mapping[str, Any]) -> list[Row]:
    return [
        {**about, "seed": seed, "value": float(count) if count >= 0 else np.inf}
        for seed, count in enumerate(updates)
    ]


def _errors(curve: cliffwalk.Curve, about: Mapping[str, Any]) -> list[Row]:
    """Return the rows of error curves, thinned to the same updates for curves of all lengths."""
    grid = np.unique(np.geomspace(1, 1e6, num=_POINTS).astype(int)) - 1
    return [
        {**about, "updates": int(i) * cliffwalk.CHUNK, "seed": seed, "value": float(error)}
        for i in grid[grid < len(curve.errors)]
        for seed, error in enumerate(curve.errors[i, :_CURVES])
    ]


def _run(
    request: Request, n: int, title: str, method: Method, seeds: int, linear: bool = False
) -> cliffwalk.Curve:
    title = f"{title}, {'linear' if linear else 'table'}, n = {n}"
    curve = cliffwalk.run(
        n,
        method,
        seeds,
        linear,
        max_updates=max(20_000, (40 if title.startswith("uniform") else 10) * 2 ** (n + 1)),
        report=lambda updates, error: request.say(
            f"{title}: {updates:,} updates, error {error:.2g}"
        ),
    )
    converged = curve.updates[curve.updates >= 0]
    after = f"{np.median(converged):,.0f}" if len(converged) else "-"
    request.say(f"{title}: {len(converged)} of {seeds} converged, after {after} updates (median)")
    return curve
