"""Invalid command lines and saved configs are refused in one line and change no file.

Every option of every config gets invalid values; the quick suite tests a part of them, the slow
suite all.
"""

import contextlib
import importlib
import io
import json
import math
import shlex

import pytest

from experiments.environments.types import EnvironmentConfig
from experiments.runs.registry import AGENTS, GOAL_EXAMPLES, feeds, suits
from experiments.runs.run_config import defaults
from experiments.studies import store
from experiments.studies.options import RunOutput, StudyOptions, Where
from experiments.training.config import LoopConfig, ReplaySizes
from jaxreplay.methods import METHODS
from jaxreplay.option import options_of
from tests.experiments import tiny

DISCRETE, CONTINUOUS = "gymnax/CartPole-v1", "gymnax/Pendulum-v1"
TINY = "--steps 300 --warmup 100 --eval-every 100 --eval-episodes 1 --seeds 1 --inspect 0 --out OUT"
# Names, combinations, and sizes that exceed any machine.
LINES = {
    f"experiments.train {TINY}": """
        --replay perr | --replay '' | --replay os | --replay a.b.c | --agent dqnn | --agent td3
        --agent json | --env CartPole | --env gymnax/ | --env gymnax/CartPol-v1 | --env walk/ten
        --env walk/65 | --env gymnasium/no.such.module:Foo-v0 | --env gymnasium/Foo-v0
        --env gymnax/DeepSea-bsuite-1 | --env atari/Pongg | --env brax/antt | --env nothing/x
        --preset canonicall | --preset lap_mujoco --agent naf | --preset refer_racer --replay per
        --agent rainbow --replay lap | --agent dqn --replay refer | --agent dqn --replay latest
        --agent ppo --env gymnax/Pendulum-v1 | --agent sac --env gymnax/Pendulum-v1 --replay latest
        --agent pqn | --agent pqn --replay latest --num-envs 2 --learn-every 2 --batch-size 4
        --seeds 1000000000 | --seed 4294967296 | --seed 2147483647 --seeds 2 | --seed x | --seed -1
        --capacity 2000000000 --seeds 64 | --capacity 10 --batch-size 64 | --capacity 2147483647
        --num-envs 3 --capacity 100 | --agent.hidden 1000000 1000000 | --steps 100 --warmup 100
        --agent.hidden 100000 100000 --seeds 64 | --steps 2000000000 --eval-every 1 | --warmup 10
        --n-step 1000 | --n-step 2 --agent sac --env gymnax/Pendulum-v1 --replay refer
        --env.backend mjx | --frame-stack 4 | --agent.hidden none --agent.dueling true
        --reward-noise-at failures
        --agent.network nature | --scale-observations true --env atari/Pong | --steps | extra
        --compilation-cache '' | --compilation-cache /dev/null/x | --help nothing | --alpha 1
        --replay per --replay.alpha | --replay per --replay.alpha 1 2 | --overwrite true
        --replay lap --replay.beta 0.5 | --replay per --replay.alhpa 1 | --out '' | --resume no/such
        --out /dev/full | --out /proc/x | --out /dev/null/x""",
    f"experiments.compare {TINY} --seeds 2": """
        --replays per per=lap | --replays per per | --replays 1x=per | --replays | --out ''
        --replays a=per --b.alpha 1 | --replays per --per.loss l3 | --replays latest | --agent td3
        --replays '$x=per' | --replays =per=lap | --primary nothing | --primary last_0 | --seeds 1
        --baseline rank | --ungated x | --control maybe | --learn-every 0 | --learn-every 1 x""",
    "experiments.watch": "no/such/run | '' | OUT --fps 0 | OUT --fps 1000 | OUT --out film.txt",
    "experiments.plot": "no/such/run --out OUT | OUT | --out OUT | OUT OUT --out OUT",
    "experiments.report": "'' | no/such/run | OUT OUT | OUT --out x.txt | OUT --titel x",
}
HAND = [
    [*shlex.split(command), *shlex.split(part)]
    for command, text in LINES.items()
    for line in text.strip().splitlines()
    for part in line.split(" | ")
]


def bad_values(entry):
    """Yield texts that an option must reject."""
    if entry.kind is bool:
        yield from ("yes please", "2", "")
    elif entry.choices or entry.kind is str:
        yield from ("no-such-name", "")
    else:
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


def option_lines():
    """Yield invalid values of every option of agents, methods, loop, sizes and outputs."""

    def env_of(agent, replay):
        actions = AGENTS[agent].actions
        own = DISCRETE if actions == "discrete" else CONTINUOUS
        return own if suits(replay, own) else GOAL_EXAMPLES[actions]

    configs = [("--", config, "dqn", "uniform") for config in (LoopConfig, ReplaySizes)]
    configs += [("--", config, "dqn", "uniform") for config in (RunOutput, StudyOptions, Where)]
    configs += [("--env.", EnvironmentConfig, "dqn", "uniform")]
    for agent, entry in AGENTS.items():
        replay = next(replay for replay in METHODS if feeds(agent, replay))
        configs.append(("--agent.", entry.config, agent, replay))
    for replay, entry in METHODS.items():
        agent = next(agent for agent in AGENTS if feeds(agent, replay))
        configs.append(("--replay.", entry.config, agent, replay))
    for prefix, config, agent, replay in configs:
        names = ["--agent", agent, "--env", env_of(agent, replay), "--replay", replay]
        for entry in options_of(config):
            for value in bad_values(entry):
                option = f"{prefix}{entry.name}".replace("_", "-")
                yield ["experiments.train", *shlex.split(TINY), *names, option, value]


def thinned(cases, stride):
    """Mark all but every `stride`-th case as slow."""
    return [
        pytest.param(case, marks=pytest.mark.slow if number % stride else ())
        for number, case in enumerate(cases)
    ]


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused(line, folder, before=None):
    """Run a command in this process; assert a one-line error, exit code 2 and unchanged files."""
    out, text, code = folder / "out", io.StringIO(), 0
    for name, content in (before or {}).items():
        out.mkdir(exist_ok=True)
        (out / name).write_text(content)
    kept = files(folder)
    module, *arguments = [str(out) if word == "OUT" else word for word in line]
    output = contextlib.redirect_stdout(text), contextlib.redirect_stderr(text)
    with output[0], output[1], contextlib.chdir(folder):
        try:
            code = importlib.import_module(module).main(arguments)
        except SystemExit as error:
            code = error.code
    answer = text.getvalue().strip()
    assert code == 2 and answer.startswith("error: ") and "\n" not in answer, (code, answer[-300:])
    assert files(folder) == kept


@pytest.mark.parametrize("line", thinned([*option_lines()], 61), ids=lambda x: " ".join(x)[-60:])
def test_invalid_values_of_options_are_refused(line, tmp_path):
    assert_refused(line, tmp_path)


@pytest.mark.parametrize("line", thinned(HAND, 9), ids=lambda x: " ".join(x)[-60:])
def test_invalid_names_and_combinations_are_refused(line, tmp_path):
    assert_refused(line, tmp_path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return the content of the study.json of a run that has just begun."""
    folder = tmp_path_factory.mktemp("run")
    study = tiny.study_of(defaults(DISCRETE, "dqn", "uniform"))
    store.begin(folder, study, study.points(), {}).write()
    return json.loads((folder / "study.json").read_text())


SECTIONS = ("loop", "sizes", "agent_options", "replay_options", "env_options")
DEFAULTS = defaults(DISCRETE, "dqn", "uniform").to_json()
CHANGES = [(section, None, lost) for section in SECTIONS for lost in (False, True)]
CHANGES += [(section, field, False) for section in SECTIONS for field in DEFAULTS[section]]


@pytest.mark.parametrize("change", thinned(CHANGES, 7), ids=str)
def test_saved_configs_with_an_invalid_field_are_refused(change, saved, tmp_path):
    """A section is lost, or a section or a field is of another kind."""
    section, field, is_lost = change
    saved = json.loads(json.dumps(saved))
    (arms,) = saved["study"]["bases"].values()
    (config,) = arms.values()
    if is_lost:
        del config[section]
    elif field is None:
        config[section] = 3
    else:
        config[section][field] = {"a": 1}
    line = ["experiments.train", "--resume", "OUT"]
    assert_refused(line, tmp_path, {"study.json": json.dumps(saved)})
