"""Batches with demonstrations from a file, and offline runs."""

import dataclasses
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.dqn import DQNConfig, dqn
from agents.iql import IQLConfig, iql
from agents.sac import SACConfig, sac
from agents.td3 import TD3Config, td3
from agents.types import Continuous, Discrete
from experiments import environments
from experiments.runs.assembly import assemble
from experiments.runs.run_config import defaults
from experiments.studies import policy, runner, store
from experiments.training import demos
from experiments.training.config import LoopConfig, ReplaySizes
from experiments.training.loop import make_program, make_train
from experiments.training.seeds import over_seeds
from jaxreplay import Replay, SharedObservations, Transition, ring, save
from jaxreplay.contrib import cer, la3p
from jaxreplay.methods import ere, latest, per, sequences, uniform
from jaxreplay.saving import array_file
from tests.experiments import tiny
from tests.refusals import assert_names, refused

STORED, SHARE = 50, 0.25
EXAMPLE = Transition(
    jnp.zeros(4), jnp.zeros((), jnp.int32), jnp.zeros(()), jnp.zeros(()), jnp.zeros(4),
    jnp.zeros((), bool), jnp.zeros((), bool),
)  # fmt: skip


def stored(path, rows, reward):
    """Save rows of walk/4 with a reward; return the replay, its state and the path."""
    replay = Replay(uniform.sampler(), capacity=64, batch_size=1)
    state = replay.init(jax.random.key(0), EXAMPLE)
    row = jax.tree.map(lambda x: x[None], EXAMPLE._replace(reward=jnp.float32(reward)))
    for _ in range(rows):
        state = replay.add(state, row)
    return replay, state, str(save(replay, state, path))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return a file of walk/4 transitions with reward 9, which no step of the task has."""
    return stored(tmp_path_factory.mktemp("demos") / "file.safetensors", STORED, 9.0)[2]


def program(path, method, share=SHARE, inspect=2, **loop):
    task = environments.make("walk/4")
    agent = dqn(DQNConfig(hidden=(8,)), Discrete(2), method.objective)
    replay = Replay(method.sampler, capacity=80, batch_size=16)
    replay = demos.with_demos(replay, path, share)
    loop = {"steps": 80, "warmup": 40, "eval_every": 20, "eval_episodes": 1} | loop
    return replay, make_program(task, agent, replay, LoopConfig(**loop, inspect=inspect))


def test_every_batch_contains_the_given_share_of_the_file(path):
    replay, made = program(path, per.method())
    state, metrics = jax.jit(made.chunk)(jax.jit(made.init)(jax.random.key(0)), 20)
    batch = jax.jit(replay.sample)(state.replay, jax.random.key(1))
    np.testing.assert_array_equal(batch.transition.reward == 9.0, np.arange(16) >= 12)
    assert int(ring.size(state.replay.first.ring)) == 60
    assert int(ring.size(state.replay.second.ring)) == STORED  # nothing was added
    assert not (ring.contents(state.replay.first.ring).reward == 9.0).any()
    # Metrics describe the agent's own experience.
    assert metrics["stored/age"] < 60 and metrics["replayed/age"] < 60
    assert metrics["replayed/effective_buffer"] < 0.999
    assert {"replay/first/dropped", "replay/second/dropped"} <= metrics.keys()


def test_seeds_share_the_file_and_equal_single_seeds(path):
    _, made = program(path, uniform.method(), inspect=0)
    seeds = over_seeds(made)
    assert seeds.axes.replay.second.ring.words is None  # one copy for all
    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    _, together = seeds.chunk(seeds.init(keys), jnp.int32(20))
    for seed in range(3):
        _, alone = seeds.chunk(seeds.init(keys[seed : seed + 1]), jnp.int32(20))
        assert alone["eval_return"][0] == together["eval_return"][seed]


def recorded(path, method):
    return program(path, method, 1.0, steps=40, warmup=0)


def test_offline_runs_learn_from_the_file_only(path):
    replay, made = recorded(path, per.method())
    start = jax.jit(made.init)(jax.random.key(0))
    state, metrics = jax.jit(made.chunk)(start, 20)
    assert int(state.updates) == int(state.rows) == 20  # updates start with the first step
    batch = jax.jit(replay.sample)(state.replay, jax.random.key(1))
    assert (batch.transition.reward == 9.0).all()
    for found, before in zip(
        jax.tree.leaves(state.replay.ring), jax.tree.leaves(start.replay.ring), strict=True
    ):
        np.testing.assert_array_equal(found, before)  # nothing was stored
    assert int(ring.size(state.replay.ring)) == replay.capacity == STORED
    same = jax.tree.map(np.array_equal, state.replay.sampler, start.replay.sampler)
    assert not all(jax.tree.leaves(same))  # priorities follow feedback
    for name, values in metrics.items():
        assert np.isfinite(values).all() or name == "train_return", name


def test_offline_runs_reject_unsupported_methods(path):
    own = Replay(uniform.sampler(), capacity=80, batch_size=16)
    on_new = per.sampler(per.PERConfig(initial="td"))
    for sampler in (latest.sampler(), on_new, ere.sampler(), cer.sampler()):
        with refused("--demos", "--replay"):
            demos.with_demos(dataclasses.replace(own, sampler=sampler, batch_size=40), path, 1.0)
    with refused("--demos", path, "--batch-size", "64", STORED):
        demos.with_demos(dataclasses.replace(own, batch_size=64), path, 1.0)
    with refused("demos_share", "--demos"):
        ReplaySizes(capacity=80, batch_size=8, demos_share=1.0).make(uniform.sampler())
    sizes = ReplaySizes(capacity=80, batch_size=8, num_envs=4, demos=path, demos_share=1.0)
    replay = sizes.make(uniform.sampler(), candidates=2)  # as LaBER draws
    assert (replay.capacity, replay.batch_size, replay.num_envs) == (48, 16, 4)


def test_options_of_a_run_select_demonstrations(path):
    config = defaults("walk/4", "dqn", "per")
    config = dataclasses.replace(
        config, sizes=dataclasses.replace(config.sizes, demos=path, demos_share=0.5)
    )
    replay = assemble(config).replay
    assert (replay.first.batch_size, replay.second.batch_size, replay.second.capacity) == (
        32, 32, STORED,
    )  # fmt: skip


def test_studies_resume_only_with_the_same_file(tmp_path):
    replay, state, path = stored(tmp_path / "file", 1, 0.0)
    config, out = defaults("walk/4", "dqn", "uniform"), tmp_path / "run"
    sizes = dataclasses.replace(config.sizes, demos=path, batch_size=2)
    study = tiny.study_of(dataclasses.replace(config, sizes=sizes))
    points = study.points()
    out.mkdir()
    store.begin(out, study, points, {}).write()
    store.resume(out, study, points)
    save(replay, replay.update(state, replay.sample(state, jax.random.key(0))), path)
    store.resume(out, study, points)  # the file changed, but not its transitions
    changed = jax.tree.map(lambda x: x[None], EXAMPLE._replace(reward=jnp.ones(())))
    save(replay, replay.add(replay.init(jax.random.key(0), EXAMPLE), changed), path)
    for use in (
        lambda: store.resume(out, study, points),
        lambda: runner.run(study, out, resume=True),
        lambda: policy.load(out, study, 0),
    ):
        with refused("--out", path, out):
            use()
    store.begin(out, study, points, {}).write()  # as with --overwrite
    store.resume(out, study, points)


def test_incompatible_files_and_replays_are_refused(path, tmp_path):
    own = Replay(uniform.sampler(), capacity=80, batch_size=16)
    with refused(tmp_path / "none"):
        demos.with_demos(own, str(tmp_path / "none"), SHARE)
    (tmp_path / "text").write_text("text")
    with refused(tmp_path / "text"):
        demos.with_demos(own, str(tmp_path / "text"), SHARE)
    with refused("share", "0.01"):
        demos.with_demos(own, path, 0.01)
    with refused("--demos", "--frame-stack"):
        demos.with_demos(dataclasses.replace(own, storage=SharedObservations()), path, SHARE)
    on_new = per.sampler(per.PERConfig(initial="td"))
    for sampler in (latest.sampler(), on_new, la3p.sampler(), sequences.sampler()):
        replay = Replay(sampler, capacity=800, batch_size=15)
        with refused("--demos"):
            demos.with_demos(replay, path, SHARE)
    sizes = ReplaySizes(capacity=80, batch_size=8, demos=path)
    with refused("--demos"):
        sizes.make(uniform.sampler(), candidates=4)  # as LaBER draws
    task = environments.make("walk/10")  # has other observations
    agent = dqn(DQNConfig(hidden=(8,)), Discrete(2))
    replay = demos.with_demos(own, path, SHARE)
    other = make_program(task, agent, replay, LoopConfig(steps=80, warmup=40))
    with refused(path, "obs"):
        jax.eval_shape(other.init, jax.random.key(0))
    empty = Replay(uniform.sampler(), capacity=8, batch_size=1)
    saved = save(empty, empty.init(jax.random.key(0), EXAMPLE), tmp_path / "empty")
    with refused("--demos", saved):
        demos.with_demos(own, str(saved), SHARE)


@pytest.mark.parametrize("share", [SHARE, 1.0])
def test_actions_that_the_task_lacks_are_refused(share, tmp_path):
    replay = Replay(uniform.sampler(), capacity=64, batch_size=1)
    state = replay.init(jax.random.key(0), EXAMPLE)
    row, add = jax.tree.map(lambda x: x[None], EXAMPLE), jax.jit(replay.add)
    for action in [1, 2] * 32:  # of Discrete(2, start=1)
        state = add(state, row._replace(action=np.full(1, action, np.int32)))
    path = str(save(replay, state, tmp_path / "file"))
    config = defaults("walk/4", "dqn", "uniform")
    sizes = dataclasses.replace(config.sizes, demos=path, demos_share=share, batch_size=16)
    config = dataclasses.replace(config, sizes=sizes)
    with refused(path, "[0, 1]", "32", "64", "1", "2"):
        runner.run(tiny.study_of(config), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def transitions(discount, action):
    return EXAMPLE._replace(discount=np.float32(discount), action=np.float32(action))


DISCRETE, CONTINUOUS = (demos.TransitionSpec(x, 0.9, 3) for x in (Discrete(2), Continuous(1)))
FILES = [
    ([0.729, 0.81, 0.9, 0.0], [0.0, 1.0], DISCRETE, ()),
    ([0.0, 0.0], [0.0], DISCRETE, ()),  # no transition bootstraps
    ([0.9, 0.9, 0.0], [0.0], DISCRETE, ("0.9", "3", "0.729")),
    ([0.99**3, 0.99], [0.0], DISCRETE, ("0.9", "0.970299", "0.99")),
    ([0.729], [[-1.0], [1.0]], CONTINUOUS, ()),
    ([0.729], [[-2.0], [1.5]], CONTINUOUS, ("-2", "1.5", "[-1, 1]")),
]


@pytest.mark.parametrize(("discount", "action", "task", "parts"), FILES)
def test_other_discounts_steps_and_ranges_are_noticed(discount, action, task, parts):
    found = demos.differences(transitions(discount, action), task)
    assert len(found) == bool(parts)
    assert_names(" ".join(found), *parts)


def test_differences_are_warned_of(path):  # whose discounts are 0
    replay = Replay(uniform.sampler(), capacity=64, batch_size=1)
    state = replay.init(jax.random.key(0), EXAMPLE)
    row = jax.tree.map(lambda x: x[None], EXAMPLE._replace(discount=jnp.float32(0.5)))
    for _ in range(16):
        state = replay.add(state, row)
    other = str(save(replay, state, Path(path).parent / "other"))
    own = Replay(uniform.sampler(), capacity=80, batch_size=16)
    with pytest.warns(UserWarning, match=r"other.*0\.5"):
        demos.with_demos(own, other, SHARE, DISCRETE).init(jax.random.key(0), EXAMPLE)
    with warnings.catch_warnings(action="error"):
        demos.with_demos(own, path, SHARE, DISCRETE).init(jax.random.key(0), EXAMPLE)


WORDS = {
    "one_axis": lambda words: words[:, 0],
    "three_axes": lambda words: words[:, None],
    "no_axis": lambda words: words[0, 0],
    "bytes": lambda words: words.astype(np.uint8),
    "halves": lambda words: words.astype(np.uint16),
    "floats": lambda words: words.astype(np.float32),
    "narrower": lambda words: words[:, 1:],
    "empty": lambda words: words[:, :0],
    "shorter": lambda words: words[1:],
}
STEPS = {
    "many": np.zeros(3, np.int32), "byte": np.int8(3), "float": np.float32(3),
    "negative": np.int32(-1), "wide": np.zeros((), np.int64),
}  # fmt: skip
SIZES = {"capacity": (10**12, 0, -1), "num_envs": (0, -1, 7, 2**40)}


@pytest.mark.parametrize(
    ("part", "value"),
    [
        *(("words", name) for name in WORDS),
        *(("steps_added", name) for name in STEPS),
        *((name, value) for name, own in SIZES.items() for value in own),
    ],
)
def test_arrays_of_other_shapes_and_dtypes_are_refused(part, value, tmp_path):
    """The checksums of these files are valid."""
    replay, state, _ = stored(tmp_path / "file", 3, 0.0)
    if part == "words":
        changed = {part: WORDS[value](np.asarray(state.ring.words))}
    else:
        changed = {part: STEPS[value]} if part == "steps_added" else {}
    state = state._replace(ring=state.ring.replace(**changed))
    about = {"format": 1, "version": "1", "capacity": 64, "num_envs": 1} | {
        name: value for name in SIZES if name == part
    }
    row = [[field.name, f"{field.dtype}{list(field.shape)}".replace(" ", "")]
           for field in state.ring.layout.fields]  # fmt: skip
    path = tmp_path / "crafted"
    array_file.write(state, path, tmp_path / "part", "jaxreplay.replay", about | {"row": row})
    with refused(path):
        made = demos.with_demos(replay, str(path), 1.0)
        made.init(jax.random.key(0), EXAMPLE)


@pytest.mark.slow
def test_agents_learn_a_policy_offline(tmp_path):
    """Data are all 10 000 steps of SAC on Pendulum; a random policy returns about -1 200."""
    task = environments.make("gymnax/Pendulum-v1")
    made = sac(SACConfig(hidden=(64, 64)), task.action_space)
    replay = Replay(uniform.sampler(), capacity=10_000, batch_size=128)
    config = LoopConfig(steps=10_000, eval_every=10_000, inspect=0)
    state, _ = jax.jit(make_train(task, made, replay, config))(jax.random.key(0))
    path = str(save(replay, state.replay, tmp_path / "pendulum.safetensors"))
    offline = demos.with_demos(replay, path, 1.0)
    for made, scaled, bound in (
        (iql(IQLConfig(hidden=(64, 64)), task.action_space), False, -600),
        (td3(TD3Config(hidden=(64, 64), bc_alpha=2.5), task.action_space), True, -950),
    ):
        config = LoopConfig(
            steps=6_000, warmup=0, eval_every=2_000, inspect=0, scale_observations=scaled
        )
        train = jax.jit(make_train(task, made, offline, config))
        assert train(jax.random.key(1))[1]["eval_return"].max() > bound
