"""Command lines that must be refused: every option with every kind of bad value, and worse."""

import importlib.util
import json
import math
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from experiments.environments.config import EnvironmentConfig
from experiments.runs.outputs import OutputConfig
from experiments.runs.registry import AGENTS, feeds
from experiments.runs.run_config import defaults
from experiments.training.config import LoopConfig, ReplaySizes
from jaxreplay.methods import METHODS
from jaxreplay.option import Option, options_of

TINY = shlex.split(
    "--steps 300 --warmup 100 --eval-every 100 --eval-episodes 1 --seeds 1 --inspect 0 "
    "--tensorboard false"
)
_DISCRETE, _CONTINUOUS = "gymnax/CartPole-v1", "gymnax/Pendulum-v1"


# Names, combinations, and sizes beyond any machine; one command line each.
_TRAIN = """
--replay perr
--replay ''
--replay os
--replay a.b.c
--agent dqnn
--agent td3
--agent json
--agent ''
--env CartPole
--env gymnax/
--env gymnax/CartPol-v1
--env gymnax/DeepSea-bsuite-1
--env walk/
--env walk/ten
--env walk/65
--env ''
--env gymnasium/no.such.module:Foo-v0
--env gymnasium/Foo-v0
--env atari/Pongg
--env brax/antt
--env nothing/x
--preset canonicall
--preset canonical --env gymnax/CartPole-v1
--preset lap_mujoco --env gymnax/CartPole-v1
--preset lap_atari --env gymnax/Pendulum-v1
--preset lap_mujoco --agent naf
--preset refer_racer --replay per
--agent rainbow --replay lap
--agent dqn --replay refer
--agent dqn --replay latest
--agent ppo --env gymnax/Pendulum-v1
--agent acer --env gymnax/Pendulum-v1
--agent racer --env gymnax/Pendulum-v1
--agent sac --env gymnax/Pendulum-v1 --replay latest
--seeds 0
--seeds -1
--seeds 1.5
--seeds 1000000000
--seeds ''
--seed -1
--seed 4294967296
--seed 2147483647 --seeds 2
--seed x
--capacity 2147483647
--capacity 2000000000 --seeds 64
--capacity 10 --batch-size 64
--num-envs 3 --capacity 100
--agent.hidden 1000000 1000000
--agent.hidden 100000 100000 --seeds 64
--steps 2000000000 --eval-every 1
--steps 100 --warmup 100
--warmup 10
--n-step 1000
--n-step 2 --agent sac --env gymnax/Pendulum-v1 --replay refer
--env.backend mjx
--frame-stack 4
--frames-on-host true
--replay-on host --replay ners
--agent.network nature
--env gymnax/Breakout-MinAtar --agent.network nature
--scale-observations true --env atari/Pong
--compilation-cache ''
--compilation-cache /dev/null/x
--compilation-cache
--help nothing
--replay per --replay.alpha
--replay per --replay.alpha 1 2
--alpha 1
--replay per --replay.alhpa 1
extra
--steps
--agent.double yes
--agent.hidden none
--overwrite true
--replay lap --replay.beta 0.5
--replay per --replay.kappa 1
--resume no/such/folder
--resume ''
--out ''
--out '  '
"""
_COMPARE = """
--replays per per=lap
--replays per per
--replays 1x=per
--replays agent=per
--replays
--replays per perr
--replays a=per --b.alpha 1
--replays per --per.alpha -1
--replays per --per.loss l3
--replays latest
--replays refer
--agent td3
--resume no/such
--out ''
--seeds 0
--preset canonical
--replays $x=per
--replays 'a b=per'
--replays =per=lap
--steps 1e15
--primary nothing
--primary last_0
--primary last_500
--baseline rank
--ungated ''
--ungated x
--control maybe
--learn-every 0
--learn-every 1 x
--learn-every
--seeds 2 --compilation-cache /dev/null/x
--help replays
--seeds 1
--replays control=per
--preset lap_mujoco
"""
_OTHERS = """
experiments.sweep --out OUT --grid replay.alpah=1
experiments.sweep --out OUT --grid replay.alpha
experiments.sweep --out OUT --grid =1
experiments.sweep --out OUT --grid replay.alpha=0.2,,0.4
experiments.sweep --out OUT --grid replay.alpha=0.2,0.2
experiments.sweep --out OUT --replays per --grid replay.alpha=0.2,-1
experiments.sweep --out OUT --replays per --grid replay.alpha=nan
experiments.sweep --out OUT --replays per --grid replay.alpha=0.2 replay.alpha=0.4
experiments.sweep --out OUT --replays per per=lap
experiments.sweep --out OUT --replays uniform --grid batch_size=64,1_000_000
experiments.sweep --out OUT --replays uniform --grid steps=10
experiments.sweep --out OUT --envs gymnasium/CartPole-v1
experiments.sweep --out OUT --envs gymnax/CartPol-v1
experiments.sweep --out OUT --envs walk/4 gymnax/Pendulum-v1
experiments.sweep --out OUT --seeds 0
experiments.sweep --out OUT --seed -1
experiments.sweep --out OUT --devices 0
experiments.sweep --out OUT --devices 1000
experiments.sweep --out OUT --width 0
experiments.sweep --out OUT --memory 1e-9
experiments.sweep --out OUT --primary steps_to_threshold --envs gymnax/Acrobot-v1
experiments.sweep --out OUT --primary last_999
experiments.sweep --out OUT --file no/such.toml
experiments.sweep --resume OUT
experiments.sweep --resume no/such
experiments.sweep --out ''
experiments.watch no/such/run
experiments.watch ''
experiments.watch OUT
experiments.watch OUT --seed 7
experiments.watch OUT --fps 0
experiments.watch OUT --fps 1000
experiments.watch OUT --max-steps 0
experiments.watch OUT --episode-seed -1
experiments.watch OUT --out film.txt
experiments.watch OUT --out ''
experiments.watch
experiments.watch OUT --replay os
experiments.watch OUT --compilation-cache ''
experiments.watch OUT --help fps
experiments.plot no/such/run --out OUT
experiments.plot OUT
experiments.plot --out OUT
experiments.plot OUT OUT --out OUT
experiments.plot a=OUT --out ''
experiments.plot OUT --out /dev/full
experiments.report
experiments.report no/such/run
experiments.report ''
experiments.report OUT
experiments.report OUT OUT
experiments.report a=OUT b=OUT
experiments.report a=OUT b=OUT --out pages.html
experiments.report OUT --out page.txt
experiments.report OUT --out ''
experiments.report OUT --out /dev/full
experiments.report OUT --out /dev/null/x.html
experiments.report OUT --titel x
experiments.papers.__main__ run nothing
experiments.papers.__main__ run per.fig1 --states 1
experiments.papers.__main__ run per.fig1 --seeds 1
experiments.papers.__main__ run per.fig1 --compilation-cache ''
"""


class CommandLine(NamedTuple):
    """A command line that should be refused.

    Attributes:
      arguments: module and arguments; "OUT" stands for a folder.
      prepare: puts into the folder what has to be there before.
      exit_code: what it should end with: 2 for what the user wrote, 1 for what the machine has.
    """

    arguments: tuple[str, ...]
    prepare: Callable[[Path], None] = lambda out: None
    exit_code: int = 2


def all_lines() -> Iterator[CommandLine]:
    """Yield every command line."""
    yield from of_options()
    yield from by_hand()
    yield from of_folders()


def of_options() -> Iterator[CommandLine]:
    """Yield bad values of every option of every agent, method, loop, size and output."""
    shared = ["--agent", "dqn", "--env", _DISCRETE]
    for config in (LoopConfig, ReplaySizes, EnvironmentConfig, OutputConfig):
        prefix = "--env." if config is EnvironmentConfig else "--"
        yield from _of(config, prefix, shared)
    for name, entry in AGENTS.items():
        env = _DISCRETE if entry.actions == "discrete" else _CONTINUOUS
        replay = next(replay for replay in METHODS if feeds(name, replay))
        yield from _of(
            entry.config, "--agent.", ["--agent", name, "--env", env, "--replay", replay]
        )
    for name, entry in METHODS.items():
        agent = next(agent for agent in AGENTS if feeds(agent, name))
        env = _DISCRETE if AGENTS[agent].actions == "discrete" else _CONTINUOUS
        yield from _of(
            entry.config, "--replay.", ["--agent", agent, "--env", env, "--replay", name]
        )


def _of(config: type, prefix: str, others: list[str]) -> Iterator[CommandLine]:
    for entry in options_of(config):
        option = f"{prefix}{entry.name}".replace("_", "-")
        for value in _bad_values(entry):
            yield _train(*others, option, value)


def _bad_values(entry: Option) -> Iterator[str]:
    """Yield texts that an option must not take."""
    if entry.kind is bool:
        yield from ("yes please", "2", "")
        return
    if entry.choices or entry.kind is str:
        yield from ("no-such-name", "")
        return
    yield from ("x", "nan", "", "1e400", "-1e400", "0x10", "1;2")
    if entry.kind is int:
        yield from ("1.5", "1e15", str(2**63))
    elif entry.bounds.finite:
        yield from ("inf", "1e30")
    low, high = entry.bounds.ends()
    if low is not None:
        yield repr(math.floor(low - 1))
    if high is not None:
        yield repr(math.ceil(high + 1))


def by_hand() -> Iterator[CommandLine]:
    """Yield what no option alone gets wrong: names, combinations, sizes beyond the machine."""
    for text in _TRAIN.strip().splitlines():
        yield _train(*shlex.split(text))
    if importlib.util.find_spec("wandb") is None:
        yield _train("--wandb", "true")
    for text in _COMPARE.strip().splitlines():
        yield CommandLine(("experiments.compare", *TINY, "--out", "OUT", *shlex.split(text)))
    for text in _OTHERS.strip().splitlines():
        yield CommandLine(tuple(shlex.split(text)))


def of_folders() -> Iterator[CommandLine]:
    """Yield folders that are not a run's, or no longer what a run wrote."""
    config = defaults(_DISCRETE, "dqn", "uniform").to_json()

    def holding(**files: str) -> Callable[[Path], None]:
        def prepare(out: Path) -> None:
            for name, text in files.items():
                path = out / name.replace("__", "/").replace("_DOT_", ".")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)

        return prepare

    def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
        saved = json.loads(json.dumps(config))
        change(saved)
        return holding(config_DOT_json=json.dumps(saved))

    for name in ("metrics_DOT_csv", "summary_DOT_json", "config_DOT_json", "replayed_DOT_png"):
        for more in ([], ["--overwrite"]):
            yield _train(*more, prepare=holding(**{name: "mine"}))
    for text in ("{", "[]", "null", '{"env": 1}', "\x00\x01", '{"env": "gymnax/CartPole-v1"}'):
        yield _resume(holding(config_DOT_json=text))
    for text in (
        "{",
        "[]",
        '{"format": 99}',
        '{"format": 2, "kind": "x", "output": {}, "runs": {}}',
    ):
        yield _resume(holding(manifest_DOT_json=text, config_DOT_json=json.dumps(config)))
    for section in ("loop", "sizes", "agent_options", "replay_options", "env_options"):
        yield _resume(edited(lambda c, s=section: c.pop(s)))
        yield _resume(edited(lambda c, s=section: c.update({s: 3})))
        for field in config[section]:
            yield _resume(edited(lambda c, s=section, f=field: c[s].pop(f)))
            yield _resume(edited(lambda c, s=section, f=field: c[s].update({f: {"a": 1}})))
    for env in ("gymnasium/evil.module:Foo-v0", "gymnax/Nothing", "x", "gymnasium/a.b.c.d:E-v1"):
        yield _resume(edited(lambda c, e=env: c.update(env=e)))
        yield CommandLine(("experiments.watch", "OUT"), edited(lambda c, e=env: c.update(env=e)))
    for field, value in (
        ("seeds", 0),
        ("seeds", "1"),
        ("seeds", True),
        ("seed", -1),
        ("agent", "x"),
    ):
        yield _resume(edited(lambda c, f=field, v=value: c.update({f: v})))
    yield _resume(edited(lambda c: None), "--overwrite")
    yield _resume(edited(lambda c: None), "--preset", "canonical")
    yield _resume(edited(lambda c: None), "--replay", "per")
    yield _resume(edited(lambda c: None), "--gamma", "0.5")
    yield _resume(edited(lambda c: None), "--out", "elsewhere")
    for name in ("metrics_DOT_csv", "timing_DOT_csv", "summary_DOT_json", "manifest_DOT_json"):
        for text in ("mine", "{", "[]", "seed,step\n0,x\n", "step,seconds\na,b\n"):
            both = {"config_DOT_json": json.dumps(config), name: text}
            yield CommandLine(("experiments.report", "OUT"), holding(**both))
    for text in ("{", "[]", "null", '{"../x": {}}', '{"uniform": {}}', '{"uniform": 3}'):
        both = {"comparison_DOT_md": "", "summary_DOT_json": text}
        yield CommandLine(("experiments.report", "OUT"), holding(**both))
    yield CommandLine(("experiments.report", "OUT"), holding(report_DOT_html="<p>mine"))
    ended = holding(config_DOT_json=json.dumps(config), summary_DOT_json="{}")
    yield _resume(ended)
    for out in ("/dev/full", "/proc/x", "/dev/null/x", "x" * 300):
        yield CommandLine(("experiments.train", *TINY, "--out", out))
        yield CommandLine(("experiments.compare", *TINY, "--out", out))


def _train(*arguments: str, prepare: Callable[[Path], None] = lambda out: None) -> CommandLine:
    return CommandLine(("experiments.train", *TINY, "--out", "OUT", *arguments), prepare)


def _resume(prepare: Callable[[Path], None], *arguments: str) -> CommandLine:
    return CommandLine(("experiments.train", "--resume", "OUT", *arguments), prepare)
