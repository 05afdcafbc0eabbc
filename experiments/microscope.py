"""Look at the replay of a run, and at other methods: `python -m experiments.microscope --help`.

The command reads the last checkpoint of a run and trains nothing. It shows which transitions the
run's method draws, how stale the priorities are, and how gradients of batches differ from the
gradient of all transitions. Draws and gradients are also shown for every other method whose
priorities can be computed from the stored transitions.
"""

from experiments.cli import process

if __name__ == "__main__":
    process.run("experiments.microscope")

import argparse
import dataclasses
import hashlib
import io
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from experiments.cli import shared
from experiments.cli.parser import Parser, add_options, one_of, read_options
from experiments.files import disk
from experiments.runs import compilation, registry
from experiments.runs.log import show, waiting
from experiments.runs.run_config import RunConfig
from experiments.studies import policy
from experiments.studies.policy import Saved
from experiments.training.counting import counted
from experiments.training.demos import own_part
from experiments.training.phases import make_phases
from experiments.training.schedule import schedule
from jaxreplay import objectives
from jaxreplay.methods import METHODS
from jaxreplay.microscope import STORED, Look, Schedule, look
from jaxreplay.option import Config, option
from jaxreplay.sampler import Method

NAME = "microscope"  # name of the page, and of its folder in the folder of a run
ALL = "all"


@dataclasses.dataclass(frozen=True)
class Options(Config):
    """Options of the microscope, which looks at the replay of a run."""

    seed: int | None = option(None, "seed of the run; none: the run's first seed")
    warm: Literal["exact", "none"] = option(
        "exact",
        "priorities of methods that the run did not use: exact computes them; none leaves out "
        "methods with priorities",
    )
    gradients: int = option(4_096, "transitions whose gradients are computed", at_least=1)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    return shared.run_command(parser, lambda: _look(args), "give the same command again")


def _look(args: argparse.Namespace) -> None:
    out, options, began = args.out or args.run / NAME, read_options(args, Options()), time.time()
    named = {kind: getattr(args, kind) for kind in ("env", "agent", "replay")}
    study, config, seed = policy.chosen(args.run, named, options.seed)
    with compilation.cache_programs(args.compilation_cache):
        with waiting(f"loading the replay of seed {seed}"):
            fields = ["agent", "replay", *["draws"] * config.loop.count_draws]
            saved = policy.saved(args.run, study, seed, fields)
        with waiting("looking at it through other methods"):
            seen = through(saved, args.methods, options)
    _write(out, seen, saved, seed)
    seconds = sum(row["seconds"] for row in seen.methods.values())
    show(_summary(seen, config))
    show(f"results: {out}/ ({seconds:.1f} s for methods, {time.time() - began:.1f} s in all)")


def through(saved: Saved, names: Sequence[str], options: Options) -> Look:
    """Look at the replay of a run under the methods `names`; `ALL` means all methods."""
    config, (agent_state, whole) = saved.config, (saved.state[x] for x in ("agent", "replay"))
    replay, state, _ = own_part(saved.parts.replay, whole)
    plan = schedule(config.loop, replay.num_envs)
    chosen = METHODS if ALL in names else dict.fromkeys([*names, config.replay])
    made = {name: _method(config, name, plan.updates) for name in chosen}
    draws = saved.state.get("draws")
    agent = _observer(saved, made[config.replay])
    key = jax.random.key(0)
    gradient = agent.gradient
    return look(
        replay,
        state,
        lambda t: agent.feedback(agent_state, t, key),
        key=key,
        methods=made,
        own=config.replay,
        gradient=gradient and (lambda t, weights: gradient(agent_state, t, weights, key)),
        loss=agent.loss,
        counts=None if draws is None else counted(draws, state.ring),
        schedule=Schedule(config.loop.updates, config.loop.learn_every, plan.warmup_steps),
        warm=options.warm,
        gradients=options.gradients,
    )


def _method(config: RunConfig, name: str, updates: int) -> Method:
    """Return a method: the run's own with the options of the run, others with their defaults."""
    options = registry.replay_options(config.agent, name)
    if name == config.replay:
        options = config.replay_options
    return METHODS[name].method(options.for_run(updates))


def _observer(saved: Saved, own: Method) -> Any:
    """Return the run's agent with its own loss, and with the feedback that other methods read."""
    config, parts = saved.config, saved.parts
    offers = registry.AGENTS[config.agent].offers
    more = own.objective.requires.feedback | ({"reducible_loss"} & offers.feedback)
    needs = own.objective.requires._replace(feedback=more)
    objective = objectives.weighted()._replace(
        requires=needs, learned_weights=own.objective.learned_weights
    )
    make, space = registry.AGENTS[config.agent].make, parts.spec.action_space
    agent = make(config.agent_options, space, objective)
    return make_phases(space, agent, parts.replay, config.loop).agent


def _write(out: Path, seen: Look, saved: Saved, seed: int) -> None:
    """Write the results of a look, as tables, figures and a page, into the folder `out`."""
    from experiments.figures import looks, page  # matplotlib takes half a second to import

    config = saved.config
    out.mkdir(parents=True, exist_ok=True)
    title = f"{config.agent} with {config.replay} on {config.env}, seed {seed}"
    card, cells = _card(seen, _own(seen, config)), seen.cells()
    head = page.Head(f"Replay microscope: {title}", [("agent steps", f"{saved.step:,}")], [])
    content = io.BytesIO()
    arrays: dict[str, Any] = {_key(name): values for name, values in seen.slots.items()}
    np.savez_compressed(content, **arrays)
    disk.write_bytes(out / "slots.npz", content.getvalue())
    disk.write_bytes(out / "methods.csv", seen.frame().to_csv(float_format="%.6g").encode())
    known = verdicts(config.env, seen.run["replay volume"])
    parts = [f"# {head.title}", f"{saved.step:,} agent steps.", _markdown(card)]
    parts += ["Committed verdicts at the nearest replay volume:", _markdown(known)] if known else []
    text = "\n\n".join([*parts, f"{seen.table()}\n"])
    disk.write_bytes(out / f"{NAME}.md", text.encode())
    facts = {
        "env": config.env, "agent": config.agent, "replay": config.replay, "seed": seed,
        "step": saved.step, "gradients": seen.gradients, "run": _finite(seen.run),
        "forecasts": sorted(seen.forecasts),
        "methods": {name: _finite(row) for name, row in seen.methods.items()},
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
        "digest": digest(seen),
    }  # fmt: skip
    disk.write_json(out / f"{NAME}.json", facts)
    looks.write(seen, out, title)
    page.write(out / f"{NAME}.html", looks.render(seen, head, cells, card, known))


def digest(seen: Look) -> str:
    """Return a digest of the arrays in a `Look`."""
    found = hashlib.sha256()
    for name, values in sorted(seen.slots.items()):
        found.update(name.encode())
        found.update(np.ascontiguousarray(values).tobytes())
    return found.hexdigest()[:16]


def _key(name: str) -> str:
    return name.replace(", ", "_").replace(" ", "_")


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for JSON, which has no infinity and no NaN."""
    return {
        name: value if isinstance(value, str) else float(value) if math.isfinite(value) else None
        for name, value in values.items()
    }


def _card(seen: Look, row: Mapping[str, Any]) -> list[list[str]]:
    """Return the cells of the table of a run."""
    rows = [["quantity", "value"]]
    for name in ("expected age", "recency", "entropy", "effective buffer"):
        rows.append([name, _shown(row[name])])
    for name, value in seen.run.items():
        note = " (forecast of uniform replay)" if name in seen.forecasts else ""
        rows.append([f"{name}{note}", _shown(value)])
    return rows


def _shown(value: float) -> str:
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "not reached"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _markdown(cells: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], f"| --- |{' ---: |' * (len(cells[0]) - 1)}", *lines[1:]])


def _own(seen: Look, config: RunConfig) -> Mapping[str, Any]:
    """Return the row of the run's own method, with its stored priorities if it has any."""
    name = f"{config.replay}{STORED}"
    return seen.methods[name if name in seen.methods else config.replay]


def verdicts(env: str, volume: float) -> list[list[str]]:
    """Return the committed verdicts on a task at the nearest replay volume, with a header.

    The list is empty for a task that the suite does not have.
    """
    from experiments.suite import OURS

    rows = [row for row in disk.read_json(OURS) if row["task"] == env]
    if not rows or not volume > 0:
        return []
    ratios = {row["replay ratio"] for row in rows}
    nearest = min(ratios, key=lambda ratio: (abs(math.log(float(ratio) / volume)), float(ratio)))
    names = ("method", "replay ratio", "against uniform replay", "effective buffer")
    return [
        list(names),
        *([row[name] for name in names] for row in rows if row["replay ratio"] == nearest),
    ]


def _summary(seen: Look, config: RunConfig) -> str:
    row = _own(seen, config)
    parts = [f"{config.env}, {config.agent} with {config.replay}"]
    parts.append(f"effective buffer {_shown(row['effective buffer'])}")
    if "staleness" in seen.run:
        parts.append(f"staleness {_shown(seen.run['staleness'])}")
    parts.append(f"noise {_shown(row['noise / uniform'])} times that of uniform replay")
    return ", ".join(parts)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m experiments.microscope", description=__doc__,
        epilog="Example: python -m experiments.microscope runs/x --methods per lap --out look",
    )  # fmt: skip
    parser.add_argument("run", type=shared.folder, metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--methods", nargs="+", type=one_of("replay", [ALL, *METHODS]), default=[ALL],
        metavar="NAME", help="methods besides the run's own and uniform replay [default all]",
    )  # fmt: skip
    shared.add_own_modules(parser)
    add_options(parser, Options, group="look")
    parser.add_argument(
        "--out", type=shared.folder, metavar="DIR",
        help="folder for results [default RUN/microscope]",
    )  # fmt: skip
    shared.add_compilation_cache(parser)
    return parser
