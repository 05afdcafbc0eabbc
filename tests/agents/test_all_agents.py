"""Properties that every agent has."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.acer import ACERConfig, acer
from agents.ddpg import DDPGConfig, ddpg
from agents.discrete_sac import DiscreteSACConfig, discrete_sac
from agents.dqn import DQNConfig, dqn
from agents.iql import IQLConfig, iql
from agents.naf import NAFConfig, naf
from agents.ppo import PPOConfig, ppo
from agents.racer import RACERConfig, racer
from agents.rainbow import RainbowConfig, rainbow
from agents.sac import SACConfig, sac
from agents.tabular import TabularConfig, tabular
from agents.td3 import TD3Config, td3
from agents.td7 import TD7Config, td7
from agents.types import Agent, Continuous, Discrete
from jaxreplay import objectives
from jaxreplay.contrib import la3p, sil
from jaxreplay.methods import lap, pal, per
from jaxreplay.types import Requirements, Sample
from tests.refusals import refused

ROWS = 8
HIDDEN = (16, 16)


class Case(NamedTuple):
    """An agent with compiled functions; all tests share it, which saves compilations."""

    name: str
    agent: Agent
    act: Any
    greedy: Any
    update: Any
    state: Any
    sample: Sample


@functools.cache
def _agents() -> dict[str, Agent]:
    q = DQNConfig(hidden=HIDDEN, learning_rate=1e-2, dueling=True)
    # Other tests cover noise; the support fits the rewards.
    c51 = RainbowConfig(
        hidden=HIDDEN, learning_rate=1e-2, noisy=False, v_min=-4.0, v_max=4.0, atoms=21
    )
    rates = {"actor_learning_rate": 3e-3, "critic_learning_rate": 1e-2}
    return {
        "dqn": dqn(q, Discrete(3)),
        "rainbow": rainbow(c51, Discrete(3)),
        "qr_dqn": rainbow(dataclasses.replace(c51, head="quantile", quantiles=8), Discrete(3)),
        "iqn": rainbow(dataclasses.replace(c51, head="implicit", quantiles=8), Discrete(3)),
        "discrete_sac": discrete_sac(
            DiscreteSACConfig(hidden=HIDDEN, initial_alpha=0.01, **rates), Discrete(3)
        ),
        "td3": td3(TD3Config(HIDDEN, **rates), Continuous(2)),
        "td7": td7(TD7Config(HIDDEN, **rates, embedding=16, target_every=4), Continuous(2)),
        "sac": sac(SACConfig(HIDDEN, **rates, initial_alpha=0.01), Continuous(2)),
        "iql": iql(IQLConfig(HIDDEN, **rates, value_learning_rate=1e-2), Continuous(2)),
        "ddpg": ddpg(DDPGConfig(HIDDEN, **rates), Continuous(2)),
        "naf": naf(NAFConfig(HIDDEN, learning_rate=1e-2), Continuous(2)),
    }


DISTRIBUTIONAL = ("rainbow", "qr_dqn", "iqn")  # td_error is a loss
DISCRETE = ("dqn", *DISTRIBUTIONAL, "discrete_sac")
BOUNDED = (*DISCRETE, "td3", "td7", "sac", "iql")  # actions are always within the space


NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if name in ("qr_dqn", "td7") else name
    for name in (*DISCRETE, "td3", "td7", "sac", "iql", "ddpg", "naf")
]


@pytest.fixture(scope="module", params=NAMES)
def case(request, make_sample) -> Case:
    agent = _agents()[request.param]
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, ROWS, 4)).astype(np.float32)
    action = rng.uniform(-1, 1, (ROWS, 2)).astype(np.float32)
    if request.param in DISCRETE:
        action = rng.integers(0, 3, ROWS).astype(np.int32)
    sample = make_sample(obs, action, rng.normal(size=ROWS), np.full(ROWS, 0.9), next_obs)
    init = jax.jit(agent.init)
    state = init(jax.random.key(0), sample.transition.obs[0], sample.transition.action[0])
    if request.param == "td7":  # initial bounds of 0 would clip the bootstrap value
        state = state._replace(bounds=jnp.float32([-100, 100]))
    act, greedy, update = (jax.jit(f) for f in (agent.act, agent.greedy, agent.update))
    return Case(request.param, agent, act, greedy, update, state, sample)


TRAIN_ROWS, TRAIN_STEPS = 128, 100


@functools.cache
def trainer(name):
    """Return a compiled function that learns from one batch, one step for each key.

    With `TRAIN_ROWS` rows and `TRAIN_STEPS` keys everywhere, all tests share one program.
    """
    agent = _agents()[name]

    def body(carry, key):
        state, sample = carry
        state, info = agent.update(state, sample, key)
        return (state, sample), info.feedback

    @jax.jit
    def train(state, sample, keys):
        (state, _), feedback = jax.lax.scan(body, (state, sample), keys)
        return state, feedback

    return train


def change(sample: Sample, **fields) -> Sample:
    return sample._replace(transition=sample.transition._replace(**fields))


def assert_same(left, right) -> None:
    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_agents_fit_the_rewards_of_a_fixed_batch(case):
    sample = change(case.sample, discount=np.zeros(ROWS, np.float32))
    # Repeated rows leave the mean loss unchanged.
    sample = jax.tree.map(lambda x: np.concatenate([x] * (TRAIN_ROWS // ROWS)), sample)
    state, errors = case.state, []
    for keys in jax.random.split(jax.random.key(1), (3, TRAIN_STEPS)):
        state, feedback = trainer(case.name)(state, sample, keys)
        td = np.subtract(feedback["target"], feedback["q_value"])
        errors.extend(np.abs(td).mean(axis=1))
    assert errors[-1] < errors[0] / 10


def test_update_is_pure_and_compiles_once(case):
    key = jax.random.key(1)
    before = jax.tree.map(np.array, case.state)
    first = case.update(case.state, case.sample, key)
    assert_same(first, case.update(case.state, case.sample, key))
    assert_same(case.state, before)
    case.update(first[0], case.sample, key)
    assert case.update._cache_size() <= 1


def test_state_keeps_its_types(case):
    after, info = case.update(case.state, case.sample, jax.random.key(1))
    types = lambda tree: jax.tree.map(jax.typeof, tree)
    assert jax.tree.structure(after) == jax.tree.structure(case.state)
    assert types(after) == types(case.state)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(case.state))
    assert set(info.feedback) == {"td_error", "q_value", "target"}
    for leaf in info.feedback.values():
        assert leaf.shape == (ROWS,) and leaf.dtype == jnp.float32
    for leaf in info.metrics.values():
        assert leaf.shape == () and leaf.dtype == jnp.float32


def test_actions_lie_in_the_space(case):
    obs = case.sample.transition.obs
    action, _ = case.act(case.state, obs, jax.random.key(1))
    greedy = case.greedy(case.state, obs)
    for got in (action, greedy):
        assert jax.typeof(got) == jax.typeof(case.sample.transition.action)
        if case.name in BOUNDED:
            assert (np.abs(got) <= (1 if got.ndim == 2 else 2)).all()
    other, _ = case.act(case.state, obs, jax.random.key(2))
    assert (np.asarray(other) != action).any()


def test_truncation_bootstraps_and_termination_does_not(case):
    """The discount alone decides: with 0 the next observation has no effect."""
    discount = np.where(np.arange(ROWS) < ROWS // 2, 0.0, case.sample.transition.discount)
    elsewhere = case.sample.transition.next_obs + 1.0
    one = change(case.sample, discount=np.float32(discount))
    two = change(one, next_obs=elsewhere)
    td = [
        np.asarray(case.update(case.state, sample, jax.random.key(1))[1].feedback["td_error"])
        for sample in (one, two)
    ]
    # Probabilities that move to one atom sum to 1 only up to rounding.
    rtol = 1e-6 if case.name == "rainbow" else 0
    np.testing.assert_allclose(td[0][: ROWS // 2], td[1][: ROWS // 2], rtol=rtol)
    assert (td[0] != td[1])[ROWS // 2 :].all()


def test_rows_of_zero_weight_do_not_change_the_update(case):
    first, second = np.eye(ROWS, dtype=np.float32)[:2]
    one = case.sample._replace(weights=1 - first)
    two = change(one, reward=one.transition.reward + 5 * first)
    key = jax.random.key(1)
    (state_one, info_one), (state_two, info_two) = (
        case.update(case.state, sample, key) for sample in (one, two)
    )
    assert_same(state_one, state_two)
    errors = (np.asarray(info.feedback["td_error"]) for info in (info_one, info_two))
    assert np.not_equal(*errors)[0]
    three = change(one, reward=one.transition.reward + 5 * second)
    moved = jax.tree.map(
        lambda a, b: bool(np.not_equal(a, b).any()),
        case.update(case.state, three, key)[0],
        state_one,
    )
    assert any(jax.tree.leaves(moved))


def test_feedback_is_computed_before_the_update(case):
    zero = change(case.sample, discount=np.zeros(ROWS, np.float32))
    _, info = case.update(case.state, zero, jax.random.key(1))
    if case.name not in DISTRIBUTIONAL:
        # Without bootstrapping, td = reward - Q of one critic, and q_value is the minimum.
        q = zero.transition.reward - np.asarray(info.feedback["td_error"])
        assert (q - np.asarray(info.feedback["q_value"]) > -1e-5).all()
    after, again = case.update(case.state, zero, jax.random.key(2))
    if case.name != "iqn":  # its q_value is a mean over fractions drawn with the key
        np.testing.assert_array_equal(info.feedback["q_value"], again.feedback["q_value"])
    _, later = case.update(after, zero, jax.random.key(2))
    assert np.not_equal(later.feedback["q_value"], info.feedback["q_value"]).all()


def test_seeds_can_be_vmapped(case):
    keys = jax.random.split(jax.random.key(3), 2)
    obs, action = case.sample.transition.obs[0], case.sample.transition.action[0]
    states = jax.jit(jax.vmap(lambda key: case.agent.init(key, obs, action)))(keys)
    together = jax.jit(jax.vmap(case.agent.update, in_axes=(0, None, 0)))
    after, _ = together(states, case.sample, keys)
    td = np.asarray(together(after, case.sample, keys)[1].feedback["td_error"])
    for i in range(2):
        state = jax.tree.map(lambda leaf: np.asarray(leaf)[i], states)
        state, _ = case.update(state, case.sample, keys[i])
        _, alone = case.update(state, case.sample, keys[i])
        np.testing.assert_allclose(td[i], alone.feedback["td_error"], rtol=1e-3, atol=1e-4)
    assert not np.allclose(td[0], td[1])


@pytest.mark.parametrize(
    "name", ["td3", pytest.param("td7", marks=pytest.mark.slow), "sac", "ddpg", "naf"]
)
def test_agents_solve_a_continuous_bandit(make_sample, name):
    """The reward is quadratic with its maximum at (0.5, -0.3)."""
    best = np.float32([0.5, -0.3])
    agent = _agents()[name]
    action = np.random.default_rng(0).uniform(-1, 1, (TRAIN_ROWS, 2)).astype(np.float32)
    obs = np.ones((TRAIN_ROWS, 4), np.float32)
    reward = -np.square(action - best).sum(axis=1)
    sample = make_sample(obs, action, reward, np.zeros(TRAIN_ROWS), obs)
    state = jax.jit(agent.init)(jax.random.key(1), obs[0], action[0])
    for keys in jax.random.split(jax.random.key(2), (10, TRAIN_STEPS)):
        state, _ = trainer(name)(state, sample, keys)
    regret = np.square(jax.jit(agent.greedy)(state, obs[:1])[0] - best).sum()
    assert regret < 0.05  # random actions have 1 on average


def test_feedback_function_agrees_with_the_update(case):
    key = jax.random.key(4)
    feedback = case.update(case.state, case.sample, key)[1].feedback
    found = jax.jit(case.agent.feedback)(case.state, case.sample.transition, key)
    assert set(found) == set(feedback)
    np.testing.assert_allclose(found["q_value"], feedback["q_value"], rtol=1e-5)
    for name, values in found.items():  # targets of stochastic agents use other draws
        assert values.shape == feedback[name].shape and np.isfinite(values).all()


MADE = {
    Discrete: (
        (dqn, DQNConfig), (rainbow, RainbowConfig), (discrete_sac, DiscreteSACConfig),
        (tabular, TabularConfig),
    ),
    Continuous: (
        (td3, TD3Config), (td7, TD7Config), (sac, SACConfig), (iql, IQLConfig),
        (ddpg, DDPGConfig), (naf, NAFConfig), (racer, RACERConfig), (acer, ACERConfig),
        (ppo, PPOConfig),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("make", "config", "space", "needed"),
    [
        *[(make, config, Continuous(2), "discrete") for make, config in MADE[Discrete]],
        *[(make, config, Discrete(2), "continuous") for make, config in MADE[Continuous]],
    ],
)
def test_agents_reject_the_other_kind_of_action_space(make, config, space, needed):
    with refused(needed, space):
        make(config(), space)


@pytest.mark.parametrize(
    ("make", "config", "kind"),
    [(make, config, kind) for kind, agents in MADE.items() for make, config in agents],
)
def test_agents_reject_invalid_spaces_and_objectives(make, config, kind):
    size = kind._fields[0]
    with refused("3", kind.__name__):
        make(config(), 3)
    for count in (0, 2.5, True):
        with refused(kind(count), size, "1"):
            make(config(), kind(count))
    with refused("objective", "Method", ".objective"):
        make(config(), kind(2), per.method())
    with refused("objective", "str"):
        make(config(), kind(2), "per")


@pytest.mark.parametrize(
    ("make", "config", "space", "agent"),
    [
        (dqn, DQNConfig, Discrete(2), "DQN"),
        (rainbow, RainbowConfig, Discrete(2), "Rainbow"),
        (discrete_sac, DiscreteSACConfig, Discrete(2), "discrete SAC"),
        (tabular, TabularConfig, Discrete(2), "tabular"),
        (td3, TD3Config, Continuous(2), "TD3"),
        (td7, TD7Config, Continuous(2), "TD7"),
        (iql, IQLConfig, Continuous(2), "IQL"),
        (acer, ACERConfig, Continuous(2), "ACER"),
        (ppo, PPOConfig, Continuous(2), "PPO"),
    ],
)
def test_agents_without_densities_reject_objectives_that_need_them(make, config, space, agent):
    with refused(agent, "density", "log_ratio"):
        make(config(), space, objectives.plain()._replace(requires=Requirements(density=True)))


@pytest.mark.parametrize("method", [lap, pal, la3p, sil])
@pytest.mark.parametrize(
    ("make", "config", "space", "agent"),
    [
        (rainbow, RainbowConfig, Discrete(2), "Rainbow"),
        (racer, RACERConfig, Continuous(2), "RACER"),
        (acer, ACERConfig, Continuous(2), "ACER"),
        (ppo, PPOConfig, Continuous(2), "PPO"),
    ],
)
def test_agents_without_scalar_errors_reject_losses_of_them(make, config, space, agent, method):
    with refused(agent, "scalar TD errors"):
        make(config(), space, method.method().objective)


@pytest.mark.parametrize(
    "name", ["dqn", "rainbow", "td3", pytest.param("td7", marks=pytest.mark.slow)]
)
def test_update_clocks_continue_past_32_bits(name, make_sample):
    """Events of every third update keep their period, and schedules keep their final value."""
    agent = {
        "dqn": dqn(DQNConfig(hidden=HIDDEN, target_every=3), Discrete(3)),
        "rainbow": rainbow(RainbowConfig(hidden=HIDDEN, target_every=3), Discrete(3)),
        "td3": td3(TD3Config(HIDDEN, policy_delay=3), Continuous(2)),
        "td7": td7(TD7Config(HIDDEN, policy_delay=3, target_every=3), Continuous(2)),
    }[name]
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, ROWS, 4)).astype(np.float32)
    action = rng.uniform(-1, 1, (ROWS, 2)).astype(np.float32)
    if name in DISCRETE:
        action = rng.integers(0, 3, ROWS).astype(np.int32)
    sample = make_sample(obs, action, rng.normal(size=ROWS), np.full(ROWS, 0.9), next_obs)
    state = agent.init(jax.random.key(0), obs[0], action[0])
    update, states = jax.jit(agent.update), []
    for updates in (2**30 + 1, 2**31 - 3):  # both are 2 modulo 3 and past the end of every schedule
        late = state._replace(updates=jnp.int32(updates))
        for number in range(7):
            late = update(late, sample, jax.random.key(number))[0]
        assert int(late.updates) > 2**30
        states.append(late._replace(updates=None))
    assert_same(*states)
