"""Runs on several devices; `test_sharding.py` runs these tests in a process with four of them."""

import functools
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from agents.ddpg import DDPGConfig, ddpg
from agents.discrete_sac import DiscreteSACConfig, discrete_sac
from agents.dqn import DQNConfig, dqn
from agents.ensemble_qr import EnsembleQRConfig, ensemble_qr
from agents.iql import IQLConfig, iql
from agents.naf import NAFConfig, naf
from agents.rainbow import RainbowConfig, rainbow
from agents.sac import SACConfig, sac
from agents.td3 import TD3Config, td3
from agents.td7 import TD7Config, td7
from agents.types import Continuous, Discrete
from experiments import environments, train
from experiments.runs.interrupt import Stopped
from experiments.studies.checkpoints import Checkpoint, Progress
from experiments.training import sharding
from experiments.training.config import LoopConfig, ReplaySizes
from experiments.training.drivers import CompiledDriver, Layout
from experiments.training.loop import make_program, make_train
from experiments.training.seeds import keys_of
from experiments.training.state import a_key
from jaxreplay import devices
from jaxreplay.methods import METHODS
from jaxreplay.types import Sample, Transition
from tests.experiments import tiny
from tests.refusals import assert_names, refusal, refused

SIZES = ReplaySizes(num_envs=4, capacity=64, batch_size=16)
LOOP = LoopConfig(steps=120, warmup=40, eval_every=40, eval_episodes=2, n_step=2)
COLLECTIVES = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
SLOW = pytest.mark.slow
CARTPOLE, PENDULUM = "gymnax/CartPole-v1", "gymnax/Pendulum-v1"
MAKE = {
    "dqn": (dqn, DQNConfig(hidden=(8,)), CARTPOLE),
    "rainbow": (rainbow, RainbowConfig(hidden=(8,)), CARTPOLE),
    "ensemble_qr": (ensemble_qr, EnsembleQRConfig(hidden=(8,), quantiles=4), CARTPOLE),
    "discrete_sac": (discrete_sac, DiscreteSACConfig(hidden=(8,)), CARTPOLE),
    "sac": (sac, SACConfig(hidden=(8,)), PENDULUM),
    "sac_delay": (sac, SACConfig(hidden=(8,), policy_delay=2), PENDULUM),
    "renorm": (sac, SACConfig(hidden=(8,), batch_renorm=True), PENDULUM),
    "reset": (sac, SACConfig(hidden=(8,), reset_every=10), PENDULUM),
    "td3": (td3, TD3Config(hidden=(8,)), PENDULUM),
    "td7": (td7, TD7Config(hidden=(8,)), PENDULUM),
    "ddpg": (ddpg, DDPGConfig(hidden=(8,)), PENDULUM),
    "naf": (naf, NAFConfig(hidden=(8,)), PENDULUM),
    "iql": (iql, IQLConfig(hidden=(8,)), PENDULUM),
}


def parts(agent, method, sizes=SIZES, **options):
    make, config, env = MAKE[agent]
    environment, entry = environments.make(env), METHODS[method]
    kind = "discrete" if env == CARTPOLE else "continuous"
    found = entry.method(entry.defaults(kind))
    made = make(config, environment.action_space, found.objective)
    replay = sizes.make(found.sampler, found.objective.candidates)
    return environment, made, replay, LoopConfig(**vars(LOOP) | options)


RUNS = [("sac_delay", "per", {"scale_rewards": True, "scale_observations": True})]
MORE = [
    ("dqn", "uniform", {}), ("dqn", "per", {}), ("dqn", "lap", {}), ("dqn", "pal", {}),
    ("dqn", "eper", {}), ("dqn", "pser", {"n_step": 1}), ("dqn", "relo", {}),
    ("rainbow", "per", {}), ("discrete_sac", "per", {}), ("sac", "per", {}), ("td3", "lap", {}),
    ("ddpg", "per", {}), ("naf", "uniform", {}), ("iql", "uniform", {}),
    ("ensemble_qr", "uper", {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("agent", "method", "options"),
    RUNS + [pytest.param(*run, marks=pytest.mark.slow) for run in MORE],
)
def test_devices_agree_on_agents_and_metrics(agent, method, options):
    """Every device computes the same parameters and metrics, bit for bit, from its own part."""
    train = make_train(*parts(agent, method, mesh=4, **options))
    state, metrics = jax.jit(train)(jax.random.key(0))
    for leaf in jax.tree.leaves((state.agent, metrics)):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(copies) == 4
        for copy in copies[1:]:
            np.testing.assert_array_equal(copy, copies[0])
    obs = jax.tree.leaves(state.obs)[0]  # devices have environments of their own
    assert obs.shape[:2] == (4, 1) and len(np.unique(obs, axis=0)) == 4
    metrics.pop("train_return")  # NaN if no episode ended
    assert all(np.isfinite(values).all() for values in metrics.values())
    assert metrics["step"].tolist() == [80, 120]
    assert (metrics["replay/dropped"] == 0).all()


def batch_of(space, size=16):
    keys = jax.random.split(jax.random.key(3), 6)
    draw = functools.partial(jax.random.normal, shape=(size, 3))
    action = jnp.arange(size) % 2
    if isinstance(space, Continuous):
        action = jnp.tanh(jax.random.normal(keys[5], (size, space.size)))
    no = jnp.zeros(size, bool)
    transition = Transition(
        draw(keys[0]), action, jax.random.normal(keys[1], (size,)), jnp.full(size, 0.9),
        draw(keys[2]), no, no,
    )  # fmt: skip
    zeros = jnp.zeros(size, jnp.int32)
    weights = jax.random.uniform(keys[3], (size,))
    return Sample(jnp.arange(size), transition, weights, zeros)


SAME = [
    (dqn, DQNConfig(hidden=(8,), max_grad_norm=0.1), "pal"),
    (dqn, DQNConfig(hidden=(8,)), "eper"),
    (ensemble_qr, EnsembleQRConfig(hidden=(8,), quantiles=4), "uper"),
    (discrete_sac, DiscreteSACConfig(hidden=(8,)), "per"),
    (td3, TD3Config(hidden=(8,), target_noise=0.0, policy_delay=1), "lap"),
    (ddpg, DDPGConfig(hidden=(8,)), "per"),
    (naf, NAFConfig(hidden=(8,)), "uniform"),
    (iql, IQLConfig(hidden=(8,)), "uniform"),
]


@pytest.mark.parametrize(("make", "config", "method"), SAME)
def test_a_divided_batch_gives_the_update_of_the_whole_batch(make, config, method):
    """Agents without random numbers in their updates; the parameters, and the gradient's norm."""
    discrete = make in (dqn, discrete_sac, ensemble_qr)
    space = Discrete(2) if discrete else Continuous(2)
    objective = METHODS[method].method().objective
    agent, batch = make(config, space, objective), batch_of(space)
    state = agent.init(jax.random.key(0), jnp.zeros(3), batch.transition.action[0])

    def update(state, batch):
        state, info = agent.update(state, batch, jax.random.key(1))
        return state, info.metrics["grad_norm"], info.feedback["td_error"]

    mesh = sharding.make_mesh(jax.devices())
    part = P(devices.AXIS)
    divided = jax.shard_map(
        update, mesh=mesh, in_specs=(P(), part), out_specs=(P(), P(), part), check_vma=False
    )
    whole, found = jax.jit(update)(state, batch), jax.jit(divided)(state, batch)
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)
    pairs = zip(jax.tree.leaves(whole[0]), jax.tree.leaves(state), strict=True)
    assert max(np.abs(np.float64(x) - np.float64(y)).max() for x, y in pairs) > 1e-4


def driver_of(program, seeds):
    layout = Layout(len(seeds), len(seeds), (program.mesh,))
    driver = CompiledDriver(program, keys_of(seeds), layout)
    driver.prepare()
    return driver


def data_of(tree):
    def plain(leaf):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    return jax.tree.map(plain, tree)


@pytest.mark.slow  # test_commands_train_resume_and_refuse also resumes a run
def test_checkpoints_resume_bit_for_bit_on_as_many_devices(tmp_path):
    program, checkpoint = (
        make_program(*parts("dqn", "per", mesh=2)),
        Checkpoint(tmp_path, [("x", 7)]),
    )
    driver = driver_of(program, [3, 4])
    state, first = driver.chunk(driver.init(), 5)
    checkpoint.write(Progress([first]), 60, driver.to_save(state))
    state, second = driver.chunk(state, 5)
    other = driver_of(program, [3, 4])
    found = checkpoint.read(other)
    assert found is not None
    again, metrics = other.chunk(other.resume(found[1]), 5)
    for left, right in ((again, state), (metrics, second)):
        jax.tree.map(np.testing.assert_array_equal, data_of(left), data_of(right))
    assert second["eval_return"].shape == (2,)
    four = driver_of(make_program(*parts("dqn", "per", mesh=4)), [3, 4])
    with refused("state", error=Stopped):
        checkpoint.read(four)


def test_seeds_share_counters_on_several_devices():
    program = make_program(*parts("dqn", "per", mesh=2))
    axes = CompiledDriver(program, keys_of([0, 1]), Layout(2, 2, (program.mesh,))).axes
    assert (axes.rows, axes.updates, axes.replay.ring.steps_added) == (None, None, None)
    assert axes.replay.sampler.updates is None and axes.replay.sampler.max_leaf == 0


def messages(program):
    """Compile a program; return the messages between devices in an iteration of its loop."""
    state = jax.eval_shape(program.init, a_key())
    shapes = jax.tree.map(
        lambda x, spec: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=NamedSharding(program.mesh, spec)
        ),
        (state, jax.ShapeDtypeStruct((), jnp.int32)),
        (sharding.specs_of(state), P()),
    )
    text = jax.jit(program.chunk).lower(*shapes).compile().as_text()
    found, name = {}, ""
    for line in text.splitlines():
        if begins := re.match(r"(?:ENTRY )?%([\w.-]+) \(", line):
            name = begins[1]
        sent = re.findall(rf" (?:{COLLECTIVES})(?:-start)?\(", line)
        found[name] = found.get(name, 0) + len(sent)
    return max(found[name] for name in re.findall(r"body=%([\w.-]+)", text))


@pytest.mark.parametrize(
    ("agent", "method", "most"),
    [
        ("dqn", "per", 2),
        pytest.param("dqn", "lap", 1, marks=pytest.mark.slow),
        pytest.param("sac", "per", 3, marks=pytest.mark.slow),
    ],
)
def test_an_update_needs_few_messages(agent, method, most):
    """All gradients, sums of metrics and the new maximum are one message."""
    assert 1 <= messages(make_program(*parts(agent, method, mesh=4, inspect=0))) <= most


def test_metrics_are_those_of_all_transitions():
    """Metrics of the last log point, against NumPy on the transitions of all devices."""
    program = make_program(*parts("dqn", "per", mesh=4, inspect=4))
    state, metrics = jax.jit(program.chunk)(jax.jit(program.init)(jax.random.key(0)), 20)
    ring = state.replay.ring
    assert ring.words.shape[:2] == (4, 16)
    np.testing.assert_allclose(
        metrics["replay/max_priority"], np.max(state.replay.sampler.max_leaf), rtol=1e-6
    )
    assert len(np.unique(state.replay.sampler.max_leaf)) == 1
    assert 0 < metrics["replayed/effective_buffer"] <= 1
    odds = sum(metrics[f"replayed/odds_{i}"] for i in range(10))
    np.testing.assert_allclose(odds, 1.0, rtol=1e-5)


@pytest.mark.parametrize(
    ("agent", "method", "change", "words"),
    [
        ("dqn", "per", {"mesh": 8}, ("mesh", "8", "4")),
        ("dqn", "per", {"mesh": 3}, ("num_envs", "4", "3")),
        ("dqn", "rank", {"mesh": 2}, ("mesh", "2", "Rank")),
        ("dqn", "cer", {"mesh": 2}, ("mesh", "2", "CombinedExperience")),
        ("dqn", "laber", {"mesh": 2, "warmup": 80}, ("candidates",)),
        ("dqn", "discor", {"mesh": 2}, ("weights",)),
        ("td7", "lap", {"mesh": 2}, ("mesh", "agent")),
        # As td7, these divide their batch without saying so.
        *(
            pytest.param(name, "uniform", {"mesh": 2, "n_step": 1}, ("mesh", "agent"), marks=SLOW)
            for name in ("renorm", "reset")
        ),
    ],
)
def test_runs_that_devices_cannot_divide_are_refused(agent, method, change, words):
    with refused(*words):
        driver_of(make_program(*parts(agent, method, **change)), [0])


def with_own_numbers(agent):
    """Let every device initialise its own agent."""

    def init(*args):
        number = jax.lax.axis_index(devices.AXIS)
        return jax.tree.map(lambda x: x + number.astype(x.dtype), agent.init(*args))

    return agent._replace(init=init)


def with_own_evaluations(agent):
    """Let the number of a device pass through a jitted function without other inputs."""
    own = jax.jit(lambda: jax.lax.axis_index(devices.AXIS) % 2)
    return agent._replace(greedy=lambda *args: agent.greedy(*args) ^ own())


def with_rare_message(agent):
    """Send a message only where a device's own batch asks for it."""

    def update(state, batch, key):
        asked = batch.transition.reward.sum() > 0
        jax.lax.cond(asked, lambda x: jax.lax.psum(x, devices.AXIS), lambda x: x, 1.0)
        return agent.update(state, batch, key)

    return agent._replace(update=update)


def with_rare_iteration(agent):
    """Send as many messages as a device's own actions ask for."""

    def act(state, obs, *others):
        turns = jnp.abs(jax.tree.leaves(obs)[0]).sum().astype(jnp.int32)
        jax.lax.fori_loop(0, turns, lambda _, x: jax.lax.pmax(x, devices.AXIS), 1.0)
        return agent.act(state, obs, *others)

    return agent._replace(act=act)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_own_numbers, ("agent",)),
        (with_own_evaluations, ("eval_",)),
        (with_rare_message, ("branch", "psum")),
        (with_rare_iteration, ("iterations", "pmax")),
    ],
)
def test_agents_on_which_devices_may_disagree_are_refused(change, words):
    environment, agent, replay, config = parts("dqn", "uniform", mesh=2)
    program = make_program(environment, change(agent), replay, config)
    with refused("mesh", *words):
        driver_of(program, [0])


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"num_envs": 3}, ("num_envs", "3", "2", "4")),
        ({"batch_size": 15}, ("batch_size", "15", "2", "16")),
    ],
)
def test_sizes_that_devices_cannot_divide_are_refused(sizes, words):
    sizes = ReplaySizes(**{"num_envs": 4, "capacity": 60, "batch_size": 16} | sizes)
    with refused(*words):
        make_program(*parts("dqn", "per", sizes, mesh=2))


def test_meshes_are_checked():
    several = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    with refused("mesh", "'a'", "'b'"):
        make_program(*parts("dqn", "per"), several)
    with refused("mesh", "3", "4"):
        make_program(*parts("dqn", "per", mesh=3), Mesh(np.array(jax.devices()), ("a",)))
    two = Mesh(np.array(jax.devices()[2:]), ("any name",))
    program = make_program(*parts("dqn", "per"), two)
    assert program.mesh is not None and list(program.mesh.devices) == jax.devices()[2:]


def test_commands_train_resume_and_refuse(tmp_path, capsys):
    options = [
        *tiny.TINY, "--env", "walk/4", "--replay", "per", "--steps", "320", "--warmup", "96",
        "--num-envs", "4", "--capacity", "256", "--mesh", "4", "--figures", "false",
        "--tensorboard", "false", "--checkpoint-every", "0",
    ]  # fmt: skip
    whole, out, calls, before = tmp_path / "whole", tmp_path / "run", [], CompiledDriver.chunk

    def chunk(driver, state, blocks):
        assert driver._program.mesh.size == 4
        calls.append(blocks)
        if len(calls) == 3:  # as if killed here
            shutil.copytree(whole, out)
        return before(driver, state, blocks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompiledDriver, "chunk", chunk)
        assert train.main([*options, "--out", str(whole)]) == 0
        first = len(calls)
        assert train.main(["--resume", str(out)]) == 0
    assert len(calls) < 2 * first, "the checkpoint was not read"
    for name in ("metrics.csv", "study.csv.gz"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    for wrong, names in (
        (["--resume", str(out), "--mesh", "2"], ("mesh", "--out")),
        ([*options, "--mesh", "8", "--out", "wrong"], ("mesh", "8", "4")),
        ([*options, "--capacity", "258"], ("capacity", "258", "260")),
        ([*options, "--replay", "rank"], ("mesh", "Rank")),
    ):
        assert_names(refusal(capsys, train.main, *wrong), *names)
