"""Test a replay method on a fixed set of small tasks: `python -m experiments.suite METHOD`.

METHOD is one of `experiments.compare --list`, or the module of a method of your own, such as
mypackage.mymethod. The method trains on every task that it fits, at two replay ratios, next to
uniform replay and PER. Seeds are added until it is decided whether the method is better than
uniform replay, and whether it is better than PER. OUT/suite.md has the verdicts next to the
verdicts on the built-in methods, and OUT/suite.json has the verdicts as data. The same command
continues an interrupted suite.
"""

from experiments.cli import process

if __name__ == "__main__":
    process.run("experiments.suite")

import dataclasses
import hashlib
import inspect
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments import environments
from experiments.cli import shared
from experiments.cli.parser import Parser
from experiments.figures.style import NAMES
from experiments.files import kinds
from experiments.files.disk import read_json, write_bytes, write_json
from experiments.papers.catalogue import EXPERIMENTS
from experiments.papers.entry import Arm, Experiment
from experiments.runs.log import say, show
from experiments.statistics.claims import Claim, mean_after
from experiments.statistics.markdown import markdown, number
from experiments.statistics.verdicts import Verdict
from experiments.studies import facts, judge, runner, store
from experiments.studies.definition import Study
from experiments.studies.options import Where
from experiments.studies.store import Store
from jaxreplay.methods import METHODS

_BASELINES = ("uniform", "per")
_HOURS = 1.5
_AGAIN = "the same command continues"
_KEPT = ("replayed/effective_buffer",)
OURS = Path(__file__).parent / "results" / "suite" / "suite.json"  # committed verdicts


class Task(NamedTuple):
    """A task of the suite: an experiment of size "small" with fewer arms and replay ratios."""

    experiment: str
    env: str
    every: tuple[int, int]  # agent steps between two learning phases, for two replay ratios
    most_seeds: int  # number of seeds at which undecided claims stop
    steps: int | None = None  # agent steps; by default, those of the experiment
    # agent steps in which epsilon falls, at both replay ratios; None: epsilon falls in the
    # experiment's number of updates
    epsilon_steps: int | None = None

    @property
    def source(self) -> Experiment:
        """The experiment that the task is part of."""
        return EXPERIMENTS[self.experiment]


# In order of cost, so that a limit on the hours loses as few verdicts as possible.
TASKS = (
    Task("walk_dqn", "walk/10", (4, 16), 128),
    Task("walk_dqn", "walk/14", (4, 16), 128),
    Task("deepsea_dqn", "gymnax/DeepSea-bsuite", (4, 16), 128),
    Task("bitflip_dqn", "goals/BitFlip-15", (1, 4), 64),
    Task("sparse_pendulum_td3", "sparse_pendulum/Pendulum-v0", (4, 8), 32, 110_000),
    Task("minatar_dqn", "gymnax/Breakout-MinAtar", (1, 4), 32, 40_000, 40_000),
    Task("minatar_dqn", "gymnax/SpaceInvaders-MinAtar", (1, 4), 32, 40_000, 40_000),
)


def study_of(task: Task, methods: Mapping[str, str], smoke: bool = False) -> Study:
    """Return the study of a task.

    Args:
      task: the task.
      methods: methods to test, by label.
      smoke: whether to train for a few updates, without verdicts.

    Raises:
      ValueError: If a method does not fit the task.
    """
    chosen = task.source.sizes["smoke" if smoke else "small"]
    ratios = task.every[:1] if smoke else task.every
    loop = dict(chosen.loop)
    if task.steps is not None and not smoke:
        loop["steps"] = task.steps
    arms = {}
    for label, method in {**{base: base for base in _BASELINES}, **methods}.items():
        arm = Arm(method)
        arms[label] = task.source.arms.get(label, arm) if method == label else arm
    question = dataclasses.replace(task.source.question, control=False)
    axis = ratios
    if task.epsilon_steps is not None:  # arms of two ratios have different options
        axis, question = (), dataclasses.replace(question, baseline=None)
        rows = task.epsilon_steps // chosen.sizes["num_envs"]
        arms = {
            f"{label}_every{every}": dataclasses.replace(
                arm,
                loop={**arm.loop, "learn_every": every},
                agent_options={**arm.agent_options, "epsilon_updates": rows // every},
            )
            for label, arm in arms.items()
            for every in ratios
        }
    size = dataclasses.replace(
        chosen, envs=(task.env,), loop=loop, arms=(), every=axis,
        seeds=2 if smoke else 16, most_seeds=0 if smoke else task.most_seeds,
    )  # fmt: skip
    source = dataclasses.replace(
        task.source, name=_name(task), arms=arms, small=size, paper=None, columns=_KEPT,
        question=question,
    )  # fmt: skip
    # Each method has its own family of claims, as if it were tested alone.
    claims = {
        label: tuple(
            Claim(
                f"{label} against {base}, learning every {every}",
                f"{label}_every{every}",
                f"{base}_every{every}",
                direction="either",
            )
            for base in _BASELINES
            for every in ratios
            if label != base
        )
        for label in methods
    }
    return source.study("small", claims)


def _name(task: Task) -> str:
    return task.env.replace("/", "_")


def unfit(task: Task, methods: Mapping[str, str]) -> dict[str, str]:
    """Return the methods that do not fit a task, as label -> reason."""
    reasons = {}
    for label, method in methods.items():
        try:
            study_of(task, {label: method}).check()
        except ValueError as error:
            reasons[label] = str(error)
    return reasons


def run(
    methods: Mapping[str, str],
    out: str | Path,
    *,
    smoke: bool = False,
    hours: float = _HOURS,
    devices: int | None = None,
) -> str:
    """Run the suite in a folder within a limit of hours; return its report in Markdown.

    Args:
      methods: methods to test, by label.
      out: folder of the studies and of the report.
      smoke: whether to train for a few updates, without verdicts.
      hours: limit for all tasks together.
      devices: number of cores or accelerators, by default all.

    Raises:
      ValueError: If no method fits any task, a task's package is not installed, or the folder
        contains another suite.
      Stopped: If the user interrupts the suite, or runs fail. Ended runs are kept.
    """
    out, end = Path(out), time.monotonic() + 3600 * hours
    for method in methods.values():
        METHODS[method].method(METHODS[method].config())  # raises errors of the method itself
    _check_sources(methods, out)
    studies, reasons = {}, {}
    for task in TASKS:
        reasons[task.env] = unfit(task, methods)
        fit = {label: name for label, name in methods.items() if label not in reasons[task.env]}
        if fit:
            studies[task.env] = study_of(task, fit, smoke)
    if not studies:
        raise ValueError(next(iter(reasons[TASKS[0].env].values())))
    for env in studies:
        if lacks := environments.missing(env):
            raise ValueError(lacks)
    for task in TASKS:
        for label, reason in reasons[task.env].items():
            say(f"{task.env} without {label}: {reason}")
        if task.env not in studies:
            continue
        left = (end - time.monotonic()) / 3600
        if left <= 0:
            say(f"the {hours:.2g} hours are over: {_AGAIN}")
            break
        say(f"{task.env}:")
        folder = out / _name(task)
        where = Where(hours=left, devices="auto" if devices is None else str(devices))
        resume = store.paths(folder)[1].exists()
        own = studies[task.env]
        if runner.run(own, folder, resume=resume, where=where, show=False, again=_AGAIN) is None:
            break  # the hours are over
    found = {
        task.env: store.read(out / _name(task))
        for task in TASKS
        if task.env in studies and store.paths(out / _name(task))[1].exists()
    }
    rows = results(studies, found)
    text = report(rows, methods)
    write_json(out / "suite.json", rows)
    write_bytes(out / "suite.md", text.encode())
    return text


def _check_sources(methods: Mapping[str, str], out: Path) -> None:
    """Record methods and sources; raise ValueError if the folder has other methods or sources."""
    sources = {
        label: hashlib.sha256(inspect.getsource(inspect.getmodule(made)).encode()).hexdigest()
        for label, method in methods.items()
        if (made := METHODS[method].method) is not None
    }
    path = out / "methods.json"
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_json(path, {"methods": dict(methods), "sources": sources})
        return
    names = kinds.dict_of(kinds.text)
    saved = read_json(path, {"methods": names, "sources": names})
    if saved["methods"] != dict(methods):
        raise ValueError(
            f"{out} has a suite of other methods ({', '.join(saved['methods'])}): "
            "choose another --out"
        )
    for label, digest in sources.items():
        if saved["sources"].get(label) != digest:
            raise ValueError(
                f"{label} has changed since the results in {out} were made, and seeds of both "
                "versions must not be counted together: choose another --out"
            )


def results(studies: Mapping[str, Study], found: Mapping[str, Store]) -> list[dict[str, str]]:
    """Return the verdicts of a suite: a row for each task, method and replay ratio.

    Args:
      studies: study of every task, by name.
      found: results of the tasks that were run, by name.
    """
    rows = []
    for task in [task for task in TASKS if task.env in found]:
        study, results_ = studies[task.env], found[task.env]
        frames = judge.judged_frames(results_, study)
        findings = judge.judge(study, frames, results_.made(), plan=False)
        verdicts = [own for family in findings.families.values() for own in family]
        points = {point.name: point for point in study.points()}
        for name in dict.fromkeys(own.claim.arm for own in verdicts):
            label, every = name.rsplit("_every", 1)
            if points[name].id not in frames:
                continue
            point, base = points[name], points[f"{_BASELINES[0]}_every{every}"]
            cells = {own.claim.baseline: _cell(own) for own in verdicts if own.claim.arm == name}
            warmup = point.config.loop.warmup
            used = mean_after(frames[point.id], _KEPT[0], warmup)
            rows.append({
                "task": task.env, "method": label,
                "replay ratio": number(facts.replays_per_transition(point.config)),
                **{
                    f"against {NAMES[own]}": cells.get(f"{own}_every{every}", "-")
                    for own in _BASELINES
                },
                "effective buffer": "-" if used is None else number(used),
                "time relative to uniform": _relative_time(results_, point.id, base.id),
            })  # fmt: skip
    return rows


def report(rows: Sequence[Mapping[str, str]], methods: Iterable[str]) -> str:
    """Return a suite's results in Markdown, with the committed results of built-in methods."""
    cells = [list(rows[0]), *(list(row.values()) for row in rows)] if rows else []
    results = f"{markdown(cells)}\n{_ABOUT}" if rows else "No task has ended yet.\n"
    return f"# {', '.join(methods)} on the replay suite\n\n{results}{_of_ours()}"


_ABOUT = """\
Each verdict is followed by wins, losses and ties over paired seeds, which are added until it is \
decided. *No difference*: the probability of improvement is within 0.1 \
of one half, also without the ties. *Not tested*: it drew almost uniformly (effective buffer above \
0.95), agents hardly learned, or all seeds tie. The last column is the time of training divided by \
that of uniform replay in the same study.
"""


def _cell(found: Verdict) -> str:
    if not found.looks:
        return found.reason
    counts = found.counts
    return f"{found.verdict} ({counts.wins}/{counts.losses}/{counts.ties})"


def _relative_time(results: Store, point: str, base: str) -> str:
    """Return the time of a run divided by the time of a baseline run, without compilation."""
    seconds = {}
    for own in (point, base):
        per_run = [
            (cost["seconds"] - cost["compiling"]) / sum(map(len, cost["runs"].values()))
            for cost in results.facts["costs"]
            if own in cost["runs"]
        ]
        seconds[own] = float(np.median(per_run)) if per_run else float("nan")
    return number(seconds[point] / seconds[base])


def _of_ours() -> str:
    """Return the committed verdicts of the built-in methods against uniform replay."""
    if not OURS.exists():
        return ""
    against = f"against {NAMES[_BASELINES[0]]}"
    cells = {
        (row["method"], f"{row['task']}, {row['replay ratio']}"): row[against]
        for row in read_json(OURS)
    }
    methods, columns = (list(dict.fromkeys(each)) for each in zip(*cells, strict=True))
    body = [[name, *(cells.get((name, each), "-") for each in columns)] for name in methods]
    table = markdown([["method", *columns], *body])
    about = "Wins, losses and ties on each task and replay ratio."
    return f"\n## Methods here, against uniform replay\n\n<!-- ours -->\n\n{about}\n\n{table}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = Parser(prog="python -m experiments.suite", description=__doc__)
    parser.add_argument(
        "methods", nargs="+", type=shared.labelled, metavar="METHOD",
        help="name or module of a method, or LABEL=METHOD",
    )  # fmt: skip
    parser.add_argument(
        "--size", choices=("smoke", "small"), default="small",
        help="smoke: two seeds and a few updates, to see that the method runs [default small]",
    )  # fmt: skip
    parser.add_argument(
        "--hours", type=float, default=_HOURS, metavar="NUMBER",
        help=f"limit for all tasks together; the same command continues [default {_HOURS:g}]",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=shared.folder, default=Path("runs/suite"), metavar="DIR",
        help="folder for results [default runs/suite]",
    )  # fmt: skip
    shared.add_devices(parser)
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)

    def command() -> None:
        shared.check_labels(args.methods)
        methods = dict(args.methods)
        smoke = args.size == "smoke"
        show(run(methods, args.out, smoke=smoke, hours=args.hours, devices=args.devices))

    return shared.run_command(parser, command, "give the same command again")
