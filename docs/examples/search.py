"""Search for the settings of replay methods with Optuna, and compare the best ones on fresh seeds.

Optuna proposes a batch of settings for every method, a study trains them in one compiled program
each, and Optuna is told their scores. Settings that won by luck are found out by a last study, on
seeds that chose nothing. The command continues where it was interrupted: the trials of ended
studies are the same again.

  .venv/bin/python docs/examples/search.py
"""

from pathlib import Path

import numpy as np
import optuna

from experiments.studies import runner
from experiments.studies.definition import Arm, Study
from experiments.studies.options import Question, StudyOptions

OUT = Path("runs/search")
ENV, AGENT, METHODS = "walk/10", "dqn", ("per", "lap")
LOOP = {"steps": 40_000, "learn_every": 16}
BATCHES, AT_ONCE, SEEDS = 8, 8, 5  # for every method; scores are means over the seeds
SPACE = {
    "agent.learning_rate": optuna.distributions.FloatDistribution(1e-5, 1e-2, log=True),
    "replay.alpha": optuna.distributions.FloatDistribution(0.0, 1.0),
}


def train(study: Study, name: str) -> runner.Results:
    """Run a study, or what is missing of it."""
    out = OUT / name
    results = runner.run(study, out, resume=(out / "study.json").exists(), show=False)
    assert results is not None  # without a limit on the hours, no study ends early
    return results


def search(method: str) -> dict[str, float]:
    """Return the settings of a method with the best mean score."""
    sampler = optuna.samplers.TPESampler(seed=0, constant_liar=True)
    trials = optuna.create_study(direction="maximize", sampler=sampler)
    question, options = Question(control=False), StudyOptions(together=True, figures=False)
    for batch in range(BATCHES):
        asked = [trials.ask(SPACE) for _ in range(AT_ONCE)]
        grid = {name: [trial.params[name] for trial in asked] for name in SPACE}
        study = Study.make(
            ENV, AGENT, [method], seeds=SEEDS, loop=LOOP, grid=grid, question=question,
            options=options,
        )  # fmt: skip
        results = train(study, f"{method}_{batch}")
        scores = results.runs.groupby("point")["ranked"].mean()  # a seed that diverged is -inf
        for trial, point in zip(asked, study.points(), strict=True):
            trials.tell(trial, float(np.nan_to_num(scores[point.id])))
    return trials.best_params


def main() -> None:
    """Search, then compare the best settings of every method, and its defaults, with uniform."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    arms = {"uniform": Arm("uniform")}
    for method in METHODS:
        best = search(method)
        print(method, best)
        agent = {"learning_rate": best["agent.learning_rate"]}
        options = {"alpha": best["replay.alpha"]}
        arms |= {method: Arm(method), f"{method}_best": Arm(method, options, agent_options=agent)}
    fresh = Study.make(ENV, AGENT, arms, seeds=20, seed=1000, loop=LOOP)
    print(train(fresh, "fresh").verdicts()[["arm", "wins", "losses", "verdict"]])


if __name__ == "__main__":
    main()
