"""SAC's delay, resets and presets, and options that exclude each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.sac import SACConfig, sac
from agents.types import Continuous
from experiments import environments
from experiments.runs.presets import PRESETS
from experiments.training.config import LoopConfig
from experiments.training.loop import make_program
from experiments.training.seeds import over_seeds
from jaxreplay import Replay
from jaxreplay.contrib import laber, relo
from jaxreplay.methods import refer, uniform
from tests.agents import tools
from tests.refusals import refused


def make(**options):
    """Return an agent with compiled functions, and its initial state."""
    agent = tools.compiled(sac(SACConfig(**{"hidden": (4,)} | options), Continuous(2)))
    return agent, tools.start(agent, tools.batch())


def test_dropout_is_active_in_values_and_targets():
    agent, state = make(dropout=0.5)
    t, keys = tools.batch().transition, jax.random.split(tools.KEY)
    one, two = (agent.feedback(state, t, key) for key in keys)
    assert tools.differs(one["q_value"], two["q_value"])
    assert tools.differs(one["target"][1:], two["target"][1:])


@pytest.fixture(scope="module")
def delayed():
    """Return states and metrics of six updates, with policy_delay 3 and reset_every 4."""
    agent, state = make(policy_delay=3, reset_every=4)
    states, metrics = [state], []
    for number in range(6):
        state, info = agent.update(state, tools.batch(), jax.random.key(number))
        states.append(state)
        metrics.append(info.metrics)
    return agent, states, metrics


def test_resets_happen_every_reset_every_updates_and_keep_the_clock(delayed):
    agent, states, _ = delayed
    for number, state in enumerate(states[1:], 1):
        assert state.clock.updates == number
        steps = state.critic_opt_state.inner[0].count
        assert steps == (0 if number == 4 else number % 4)
    key = jax.random.fold_in(jax.random.key(3), 4)  # key of the fourth update
    fresh = tools.start(agent, tools.batch(), key)
    tools.assert_close(
        states[4]._replace(clock=None), fresh._replace(clock=None), rtol=1e-6, atol=1e-7
    )
    assert tools.differs(fresh.actor, states[0].actor)


def test_actor_changes_every_policy_delay_updates(delayed):
    _, states, metrics = delayed
    for number in (1, 2, 3, 5, 6):  # the fourth update resets
        before, after = states[number - 1], states[number]
        due = number % 3 == 0
        assert tools.differs(before.actor, after.actor) == due
        assert tools.differs(before.log_alpha, after.log_alpha) == due
        assert tools.differs(before.target_critics, after.target_critics)
    assert [float(m["actor_loss"]) for m in metrics[:2]] == [0.0, 0.0]
    assert metrics[2]["actor_loss"] == metrics[3]["actor_loss"] != 0
    assert metrics[5]["actor_loss"] != metrics[4]["actor_loss"]


def test_clocks_continue_past_32_bits(delayed):
    agent, states, _ = delayed
    late = states[1]._replace(clock=states[1].clock._replace(updates=np.int32(2**31 - 1)))
    # Delay and resets coincide every 12 updates, and 2^31 - 1 is 7 modulo 12.
    late, _ = agent.update(late, tools.batch(), tools.KEY)
    assert int(late.clock.updates) > 2**30 and int(late.clock.updates) % 12 == 8
    assert late.critic_opt_state.inner[0].count == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["redq", "crossq", "droq", "simba", "sr_sac"])
def test_seeds_of_presets_can_be_vmapped(name):
    small = {"hidden": (4, 4), "critic_hidden": (4, 4), "policy_delay": 2}
    agent = sac(SACConfig(**PRESETS[name].agents["sac"] | small), Continuous(2))
    sample, keys, one = tools.batch(), jax.random.split(jax.random.key(1), 2), tools.compiled(agent)
    alone = [tools.start(one, sample, key) for key in keys]
    states = jax.tree.map(lambda *x: np.stack(x), *alone)
    together = jax.jit(jax.vmap(agent.update, in_axes=(0, None, 0)))
    for _ in range(3):
        states, infos = together(states, sample, keys)
        alone, own = zip(*(one.update(state, sample, key) for state, key in zip(alone, keys)))
    # Compare values: biases before batch normalisation have only gradients from rounding.
    for n in range(2):
        got = jax.tree.map(lambda x, n=n: x[n], infos)
        tools.assert_close(got.feedback, own[n].feedback, rtol=1e-2, atol=1e-3)
        tools.assert_close(
            got.metrics["actor_loss"], own[n].metrics["actor_loss"], rtol=1e-2, atol=1e-3
        )
    assert tools.differs(got.feedback, own[0].feedback)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"target_subset": 3}, ("target_subset", "3", "critics=2")),
        ({"network": "residual", "dropout": 0.1}, ("residual", "dropout")),
        ({"network": "residual", "layer_norm": True}, ("residual", "layer_norm")),
        ({"network": "residual", "batch_renorm": True}, ("residual", "batch_renorm")),
        ({"network": "residual", "hidden": (4, 8)}, ("hidden", "(4, 8)", "equal")),
        (
            {"network": "residual", "hidden": (4,), "critic_hidden": (4, 8)},
            ("critic_hidden", "(4, 8)", "equal"),
        ),
        ({"policy_delay": 2**17 - 1, "reset_every": 2**16}, ("policy_delay", "reset_every")),
    ],
)
def test_conflicting_options_are_refused(options, parts):
    with refused(*parts):
        SACConfig(**options)


def test_methods_without_effect_under_the_options_are_refused():
    space, lagging = Continuous(2), relo.method().objective
    with refused("reducible_loss", "target_network"):
        sac(SACConfig(target_network=False), space, lagging)
    for objective in (lagging, laber.method().objective, refer.method().objective):
        with refused("batch_renorm"):
            sac(SACConfig(batch_renorm=True), space, objective)
    agent, one = sac(SACConfig(batch_renorm=True), space), tools.batch(1)
    state = jax.eval_shape(agent.init, tools.KEY, one.transition.obs[0], one.transition.action[0])
    with refused("batch_renorm", "batch size", "2"):
        jax.eval_shape(agent.update, state, one, tools.KEY)


@pytest.mark.parametrize(
    "options",
    [
        {"critics": 3, "network": "residual", "policy_delay": 2, "reset_every": 4},
        {"batch_renorm": True, "target_network": False},
    ],
)
def test_options_accept_images_with_numbers(options):
    agent, vectors = sac(SACConfig(hidden=(4,), **options), Continuous(2)), tools.batch()
    obs = {"image": np.zeros((8, 4, 4, 1), np.uint8), "speed": vectors.transition.obs}
    sample, one = tools.change(vectors, obs=obs, next_obs=obs), jax.tree.map(lambda x: x[0], obs)
    state = jax.eval_shape(agent.init, tools.KEY, one, vectors.transition.action[0])
    assert jax.eval_shape(agent.update, state, sample, tools.KEY)[0] == state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "updates"),
    [
        ("redq", {"critics": 3, "policy_delay": 2}, 2),
        ("droq", {"policy_delay": 2}, 2),
        ("crossq_small", {"critic_hidden": (64, 64)}, 1),
        ("simba", {"hidden": (32,), "critic_hidden": (64,), "critic_learning_rate": 1e-3,
                   "actor_learning_rate": 1e-3}, 2),
        ("sr_sac", {"reset_every": 5_000, "actor_learning_rate": 1e-3,
                    "critic_learning_rate": 1e-3}, 2),
    ],
)  # fmt: skip
def test_presets_swing_the_pendulum_up(name, options, updates):
    task = environments.make("gymnax/Pendulum-v1")
    config = SACConfig(**{**PRESETS[name].agents["sac"], "hidden": (64, 64), **options})
    method, agent = uniform.method(), sac(config, task.action_space)
    replay = Replay(method.sampler, capacity=5_000, batch_size=128)
    loop = LoopConfig(steps=5_000, warmup=500, eval_every=5_000, updates=updates, inspect=0)
    program = make_program(task, agent, replay, loop)
    seeds = over_seeds(program)
    state = seeds.init(jax.vmap(jax.random.key)(jnp.arange(2)))
    for blocks in program.schedule.log_points:
        state, metrics = seeds.chunk(state, jnp.int32(blocks))
    assert np.mean(metrics["eval_return"]) > -250  # random actions reach -1200
