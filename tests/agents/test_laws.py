"""Laws of every agent, in one table."""

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
from agents.ensemble_qr import EnsembleQRConfig, ensemble_qr
from agents.gaussian import Behaviour
from agents.iql import IQLConfig, iql
from agents.naf import NAFConfig, naf
from agents.ppo import PPOConfig, ppo
from agents.pqn import PQNConfig, pqn
from agents.r2d2 import Memory, R2D2Config, r2d2
from agents.racer import RACERConfig, racer
from agents.rainbow import RainbowConfig, rainbow
from agents.sac import SACConfig, sac
from agents.tabular import TabularConfig, tabular
from agents.td3 import TD3Config, td3
from agents.td7 import TD7Config, td7
from agents.types import Agent, Continuous, Discrete
from jaxreplay import objectives
from jaxreplay.contrib import la3p, laber, sil
from jaxreplay.methods import lap, pal, per, refer, sequences, windows
from jaxreplay.types import Requirements, Sample, Transition
from tests.agents import tools
from tests.refusals import refused

ROWS, HIDDEN = 8, (8,)
_Q = {"hidden": HIDDEN, "learning_rate": 1e-2, "target_every": 3, "max_grad_norm": 0.0}
_C51 = _Q | {"noisy": False, "v_min": -4.0, "v_max": 4.0, "atoms": 21, "quantiles": 8}
_TWO = {"hidden": HIDDEN, "actor_learning_rate": 3e-3, "critic_learning_rate": 1e-2}
_OLD = {"hidden": HIDDEN, "actor_learning_rate": 3e-3, "critic_learning_rate": 1e-2}
_DELAY = {"policy_delay": 3, "target_noise": 0.0}
# Target networks differ from the online networks: they follow slowly or are copied rarely.
AGENTS = {
    "tabular": (tabular, TabularConfig(), Discrete(3)),
    "dqn": (dqn, DQNConfig(**_Q, tau=0.5, dueling=True), Discrete(3)),
    "rainbow": (rainbow, RainbowConfig(**_C51), Discrete(3)),
    "qr_dqn": (rainbow, RainbowConfig(**_C51, head="quantile"), Discrete(3)),
    "iqn": (rainbow, RainbowConfig(**_C51, head="implicit", embedding=8), Discrete(3)),
    "ensemble_qr": (ensemble_qr, EnsembleQRConfig(**_Q, tau=0.5, quantiles=8), Discrete(3)),
    "r2d2": (r2d2, R2D2Config(**_Q, tau=0.5, memory=4, n_step=1), Discrete(3)),
    "discrete_sac": (discrete_sac, DiscreteSACConfig(**_TWO, initial_alpha=0.01), Discrete(3)),
    "td3": (td3, TD3Config(**_TWO, **_DELAY, tau=0.5), Continuous(2)),
    "td7": (td7, TD7Config(**_TWO, **_DELAY, embedding=4, target_every=3), Continuous(2)),
    "sac": (sac, SACConfig(**_TWO, tau=0.5, initial_alpha=0.01), Continuous(2)),
    "iql": (iql, IQLConfig(**_TWO, tau=0.5, value_learning_rate=1e-2), Continuous(2)),
    "ddpg": (ddpg, DDPGConfig(**_OLD, tau=0.1), Continuous(2)),
    "naf": (naf, NAFConfig(hidden=HIDDEN, learning_rate=1e-2, tau=0.1), Continuous(2)),
    "racer": (racer, RACERConfig(hidden=HIDDEN, learning_rate=1e-3), Continuous(2)),
    "acer": (acer, ACERConfig(**_OLD), Continuous(2)),
    "ppo": (ppo, PPOConfig(**_OLD, epochs=2, minibatch=4), Continuous(2)),
    "pqn": (pqn, PQNConfig(hidden=HIDDEN, learning_rate=1e-2, minibatches=2), Discrete(3)),
}
CRITIC = {"iql": ".value_opt_state", "tabular": ".weights"}  # whose gradient is linear in weights
HEADS = ("rainbow", "qr_dqn", "iqn")  # td_error is a loss
TRAJECTORIES = ("racer", "acer", "ppo", "pqn")  # without weights, learn from several steps
DRAW = ("iqn", "sac", "ppo", "pqn", "acer")  # random numbers belong to rows of the batch
SLOW = ("qr_dqn", "td7")


def table(*excluded):
    """Parametrize a test over all agents but those excluded."""
    slow = lambda name: pytest.mark.slow if name in SLOW else ()
    names = [pytest.param(name, marks=slow(name)) for name in AGENTS if name not in excluded]
    return pytest.mark.parametrize("name", names)


class Case(NamedTuple):
    """An agent with compiled functions, after some updates; all tests share it."""

    agent: Agent
    run: Any
    state: Any
    sample: Sample


def batch_for(name) -> Sample:
    """Return transitions of which none terminates, with what the agent reads beside them."""
    space = AGENTS[name][2]
    sample = tools.batch(ROWS, 4, space.n if isinstance(space, Discrete) else None)
    sample = tools.change(sample, discount=np.full(ROWS, 0.9, np.float32))
    rng = np.random.default_rng(1)
    if name == "tabular":
        states = rng.integers(0, 2, (2, ROWS)).astype(np.int32)
        return tools.change(sample, obs=states[0], next_obs=states[1])
    if name == "r2d2":  # four sequences of two steps
        steps = jax.tree.map(lambda x: x.reshape(4, 2, *x.shape[1:]), sample)
        memory = rng.normal(size=(4, 2, 4)).astype(np.float32)
        mask = np.ones((4, 2), bool)
        steps = steps._replace(weights=np.ones(4, np.float32), aux=sequences.Aux(mask, mask))
        return tools.change(steps, extras=Memory(memory, memory))
    if name in TRAJECTORIES:
        if isinstance(space, Continuous):
            mean = rng.normal(scale=0.1, size=(ROWS, 2)).astype(np.float32)
            variance = np.full((ROWS, 2), 0.3, np.float32)
            sample = tools.change(sample, extras=Behaviour(mean, variance))
        slots = windows.Aux(np.arange(ROWS, dtype=np.int32).reshape(4, 2))
        q_ret = rng.normal(size=ROWS).astype(np.float32)
        aux = refer.Aux(np.float32(0.5), np.float32(1.0), q_ret)
        return sample._replace(aux=aux if name == "racer" else slots)
    return sample


@functools.cache
def case(name) -> Case:
    make, config, space = AGENTS[name]
    agent, sample = make(config, space), batch_for(name)
    run = tools.compiled(agent)
    flat = sample
    if name == "r2d2":
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), sample.transition)
        flat = sample._replace(transition=flat)
    state = tools.start(run, flat)
    for number in range(5):
        state, _ = run.update(state, sample, jax.random.key(number))
    if name == "td7":  # the bounds of few targets would clip the bootstrap value
        wide = np.float32([-100, 100])
        state = state._replace(bounds=wide, seen=wide)
    return Case(agent, run, jax.tree.map(np.asarray, state), sample)


def updated(name, sample=None, state=None, key=1):
    """Return the state and the Info of one update; by default of the state and sample of `case`."""
    given = case(name)
    sample, state = sample or given.sample, given.state if state is None else state
    return jax.tree.map(np.asarray, given.run.update(state, sample, jax.random.key(key)))


def moments(name, state):
    """Return Adam's first moments of the critic by path, which are affine in its gradient."""
    field = CRITIC.get(name, "opt_state")
    leaves = jax.tree_util.tree_leaves_with_path(state)
    paths = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    kind = ".weights" if name == "tabular" else ".mu"
    fields = [field] if field.startswith(".") else [".opt_state", ".critic_opt_state"]
    found = {p: x for p, x in paths.items() if kind in p and p.startswith(tuple(fields))}
    assert found
    return found


def scaled(name, sample, factor):
    """Return a sample with other discounts; the discount of two steps is the product."""
    return tools.change(sample, discount=factor * sample.transition.discount)


@table()
def test_updates_keep_structure_and_types_and_return_float32(name):
    given = case(name)
    after, info = jax.eval_shape(given.agent.update, given.state, given.sample, jax.random.key(1))
    assert after == jax.eval_shape(lambda: given.state)  # weak types differ
    assert {"td_error", "q_value", "target"} <= set(info.feedback)
    for leaf in info.feedback.values():
        assert (leaf.shape, leaf.dtype) == (given.sample.transition.reward.shape, jnp.float32)
    for leaf in info.metrics.values():
        assert (leaf.shape, leaf.dtype) == ((), jnp.float32)


@table()
def test_updates_are_pure_and_finite(name):
    given = case(name)
    before = jax.tree.map(np.copy, given.state)
    first = updated(name)
    tools.assert_same(first, updated(name))
    tools.assert_same(given.state, before)
    assert tools.differs(first[0], before)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(first))


@table(*TRAJECTORIES)
def test_targets_of_terminal_transitions_are_rewards(name):
    """The discount alone decides: with 0, the next observation has no effect on the critic."""
    sample = case(name).sample
    ended = np.zeros(sample.transition.reward.shape, bool)
    ended.reshape(-1)[: ROWS // 2] = True
    one = tools.change(sample, discount=np.float32(np.where(ended, 0.0, 0.9)))
    later = one.transition.next_obs
    two = tools.change(one, next_obs=1 - later if name == "tabular" else later + 1)
    if name == "r2d2":  # within a sequence, it is the next step's observation
        ended[:, 0] = True
        two = tools.change(two, next_obs=later.copy())
        two.transition.next_obs[:, 1] += 1
        ended[2:, 0] = False
    (_, first), (_, second) = (updated(name, each) for each in (one, two))
    targets = [info.feedback["target"] for info in (first, second)]
    errors = [info.feedback["td_error"] for info in (first, second)]
    reward = one.transition.reward
    np.testing.assert_allclose(targets[0][ended], reward[ended], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(errors[0][ended], errors[1][ended], rtol=1e-6, atol=1e-7)
    if name == "r2d2":
        ended[:, 0] = True
    assert (errors[0] != errors[1])[~ended].all()


@table(*TRAJECTORIES, "rainbow")
def test_targets_are_rewards_plus_discounted_values(name):
    """They are affine in the discount, such as gamma^n, and shift with the reward.

    The atoms of Rainbow clip targets.
    """
    sample, reward = case(name).sample, case(name).sample.transition.reward
    whole, half, none, more = (
        updated(name, changed)[1].feedback["target"]
        for changed in (
            sample, scaled(name, sample, np.float32(0.5)), scaled(name, sample, np.float32(0)),
            tools.change(sample, reward=reward + 2),
        )
    )  # fmt: skip
    assert (np.abs(whole - none) > 1e-4).all()
    np.testing.assert_allclose(whole - none, 2 * (half - none), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(more, whole + 2, rtol=1e-4, atol=1e-5)


@table(*TRAJECTORIES, *HEADS, "ensemble_qr")
def test_targets_have_no_gradient(name):
    """Rewards equal to the targets, without bootstrapping, give the same gradient."""
    state, info = updated(name)
    zero = np.zeros_like(info.feedback["target"])
    fixed, _ = updated(
        name, tools.change(case(name).sample, reward=info.feedback["target"], discount=zero)
    )
    if name == "iql":  # the value does not learn from targets
        return tools.assert_close(fixed.critic_opt_state, state.critic_opt_state, 1e-4, 1e-6)
    tools.assert_close(moments(name, fixed), moments(name, state), rtol=1e-4, atol=1e-6)


@table(*TRAJECTORIES)
def test_weights_scale_gradients_linearly(name):
    sample = case(name).sample
    count = len(sample.weights)
    one = np.where(np.arange(count) % 2 == 0, np.float32(1.5), np.float32(0.25))
    two = np.linspace(0, 1, count, dtype=np.float32)
    sums = [np.zeros(count, np.float32), one, two, one + two]
    states, infos = zip(*(updated(name, sample._replace(weights=weights)) for weights in sums))
    none, first, second, both = (moments(name, state) for state in states)
    expected = jax.tree.map(lambda a, b, c: a + b - c, first, second, none)
    tools.assert_close(both, expected, rtol=1e-4, atol=1e-6)
    assert tools.differs(first, none)
    if name == "iql":  # its targets use the value after a weighted step
        return
    zero, *losses = (info.metrics["loss"] for info in infos)
    np.testing.assert_allclose([zero, losses[2]], [0, losses[0] + losses[1]], rtol=1e-5)
    for info in infos[1:]:
        tools.assert_same(info.feedback, infos[0].feedback)


@table(*TRAJECTORIES)
def test_transitions_of_zero_weight_do_not_change_the_update(name):
    sample = case(name).sample
    weights = np.ones(len(sample.weights), np.float32)
    weights[0] = 0
    reward, first = sample.transition.reward, np.zeros_like(sample.transition.reward)
    first[0] = 5
    plain, same, other = (
        updated(name, tools.change(sample, reward=x)._replace(weights=weights))
        for x in (reward, reward + first, reward + 5 - first)
    )
    tools.assert_same(plain[0], same[0])
    assert tools.differs(plain[1].feedback["td_error"][:1], same[1].feedback["td_error"][:1])
    assert tools.differs(plain[0], other[0])


@table(*DRAW)
def test_the_order_of_a_batch_does_not_matter(name):
    sample, order = case(name).sample, np.random.default_rng(2).permutation(ROWS)
    order = order[: len(sample.weights)] if name != "r2d2" else np.int32([2, 0, 3, 1])
    whole = lambda x: x[order] if np.ndim(x) else x
    state, info = updated(name)
    other, permuted = updated(name, jax.tree.map(whole, sample))
    tools.assert_close(permuted.feedback, jax.tree.map(whole, info.feedback), rtol=1e-4, atol=1e-5)
    tools.assert_close(permuted.metrics, info.metrics, rtol=1e-4, atol=1e-5)
    tools.assert_close(moments(name, other), moments(name, state), rtol=1e-4, atol=1e-6)


# The targets of these update after a step, from several steps, or with other draws.
LATER = ("sac", "iql", *TRAJECTORIES)


@table("r2d2")  # its function reads single steps
def test_feedback_is_that_of_the_state_before_the_update(name):
    given, (after, info) = case(name), updated(name)
    ask = lambda state: given.run.feedback(state, given.sample.transition, jax.random.key(1))
    found, later = ask(given.state), ask(after)
    assert set(found) == set(info.feedback)
    names = set(found)
    if name in LATER:
        names -= {"td_error", "target", *(("q_value",) if name == "acer" else ())}
        if name == "ppo":  # trust is that of the new policy
            names -= {"log_ratio"}
    for key in names:
        np.testing.assert_allclose(found[key], info.feedback[key], rtol=1e-4, atol=1e-6)
    assert tools.differs(found["q_value"], later["q_value"])
    assert all(np.isfinite(values).all() for values in found.values())


# Of agents with the same branches, one is a quick test.
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("r2d2", "td3", "sac", "racer") else
        pytest.param(name, marks=pytest.mark.slow)
        for name in AGENTS
    ],
)  # fmt: skip
def test_vmapped_seeds_equal_single_runs(name):
    given, keys = case(name), jax.random.split(jax.random.key(3), 2)
    alone = [given.state, updated(name)[0]]
    stacked = jax.tree.map(lambda *x: np.stack(x), *alone)
    together = jax.jit(jax.vmap(given.agent.update, in_axes=(0, None, 0)))
    states, infos = jax.tree.map(np.asarray, together(stacked, given.sample, keys))
    for seed, state in enumerate(alone):
        after, info = given.run.update(state, given.sample, keys[seed])
        found = jax.tree.map(lambda x, seed=seed: x[seed], (states, infos))
        tools.assert_close(found[1], info, rtol=1e-3, atol=1e-4)
        tools.assert_close(moments(name, found[0]), moments(name, after), rtol=1e-3, atol=1e-4)
    assert tools.differs(infos.feedback["q_value"][0], infos.feedback["q_value"][1])


@pytest.mark.parametrize(
    "name",
    ["tabular", *(pytest.param(name, marks=pytest.mark.slow) for name in ("dqn", "td3", "naf"))],
)
def test_updates_without_jit_are_the_same(name):
    given = case(name)
    state, info = given.agent.update(given.state, given.sample, jax.random.key(1))
    tools.assert_close((state, info), updated(name), rtol=1e-4, atol=1e-5)


@table("tabular", "r2d2", "ensemble_qr", *TRAJECTORIES)  # whose heads learn from some rows only
def test_agents_fit_the_rewards_of_a_fixed_batch(name):
    given = case(name)
    sample = tools.change(given.sample, discount=np.zeros(ROWS, np.float32))
    state, errors = given.state, []
    for number in range(300):
        state, info = given.run.update(state, sample, jax.random.key(number % 50))
        errors.append(info.feedback)
    first, last = (
        np.abs(np.subtract(x["target"], x["q_value"])).mean() for x in (errors[0], errors[-1])
    )
    assert last < first / 10


@pytest.mark.slow
@pytest.mark.parametrize("name", ["td3", "td7", "sac", "ddpg", "naf"])
def test_agents_solve_a_continuous_bandit(name):
    """The reward is quadratic with its maximum at (0.5, -0.3)."""
    make, config, space = AGENTS[name]
    agent = tools.compiled(make(dataclasses.replace(config, hidden=(16, 16)), space))
    action = np.random.default_rng(0).uniform(-1, 1, (128, 2)).astype(np.float32)
    best, obs = np.float32([0.5, -0.3]), np.ones((128, 4), np.float32)
    reward = -np.square(action - best).sum(axis=1)
    sample = tools.sample_of(obs, action, reward, np.zeros(128), obs)
    state = tools.start(agent, sample, jax.random.key(1))
    for number in range(1_000):
        state, _ = agent.update(state, sample, jax.random.key(number % 50))
    regret = np.square(agent.greedy(state, obs[:1])[0] - best).sum()
    assert regret < 0.05  # random actions have 1 on average


@table(*(name for name in AGENTS if name not in ("dqn", "rainbow", "r2d2", "td3", "td7")))
def test_update_clocks_continue_past_32_bits(name):
    """Events of every third update keep their period, and schedules keep their final value."""
    states = []
    for updates in (2**30 + 1, 2**31 - 3):  # both are 2 modulo 3 and past the end of every schedule
        late = case(name).state._replace(updates=np.int32(updates))
        for number in range(7):
            late = updated(name, state=late, key=number)[0]
        assert int(late.updates) > 2**30
        states.append(late._replace(updates=None))
    tools.assert_same(*states)


# Arguments

MADE = {
    name: (make, type(config), space)
    for name, (make, config, space) in AGENTS.items()
    if name not in ("qr_dqn", "iqn")
}
NAMES = {
    "discrete_sac": "discrete SAC", "rainbow": "Rainbow", "tabular": "tabular",
    "ensemble_qr": "Ensemble QR",
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_invalid_spaces_and_objectives_are_refused(name):
    make, config, space = MADE[name]
    config, kind = config(), type(space)
    other, needed = (Continuous(2), "discrete") if kind is Discrete else (Discrete(2), "continuous")
    with refused(needed, other):
        make(config, other)
    with refused("3", kind.__name__):
        make(config, 3)
    for count in (0, 2.5, True):
        with refused(kind(count), kind._fields[0], "1"):
            make(config, kind(count))
    with refused("objective", "Method", ".objective"):
        make(config, space, per.method())
    with refused("objective", "str"):
        make(config, space, "per")


@pytest.mark.parametrize("name", MADE)
def test_objectives_that_an_agent_lacks_are_refused(name):
    """Only some agents have densities, losses of TD errors, candidates, and rows with roles."""
    make, config, space = MADE[name]
    title = NAMES.get(name, name.upper())
    dense = objectives.plain()._replace(requires=Requirements(density=True))
    lacks = {
        "density": ([dense], name not in ("sac", "ddpg", "naf", "racer")),
        "scalar TD errors": (
            [method.method().objective for method in (lap, pal)],
            name in ("rainbow", *TRAJECTORIES),
        ),
        "candidates": (
            [laber.method().objective],
            name in ("tabular", "r2d2", "iql", "ensemble_qr", *TRAJECTORIES),
        ),
    }  # fmt: skip
    for words, (given, lacking) in lacks.items():
        for objective in given:
            if lacking:
                with refused(title, words):
                    make(config(), space, objective)
            else:
                make(config(), space, objective)
    for method in (la3p, sil):
        if name in ("rainbow", "r2d2", *TRAJECTORIES):
            with refused(title, *(("sequences", "roles") if name == "r2d2" else ("TD errors",))):
                make(config(), space, method.method().objective)
        elif method is la3p:
            make(config(), space, method.method().objective)


# Observations of several arrays


class Seen(NamedTuple):
    """A custom observation: a vector, an image and a number."""

    speed: Any
    image: Any
    time: Any


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@pytest.mark.parametrize("name", ["dqn", "r2d2", "td3", "td7", "racer", "ppo"])  # all networks
def test_vectors_of_a_tree_are_concatenated(name):
    """Agents for the tree and for one vector have the same initial states and actions."""
    make, config, space = MADE[name]
    agent, key = make(config(hidden=HIDDEN), space), jax.random.key(0)
    action = floats(2) if isinstance(space, Continuous) else jax.ShapeDtypeStruct((), jnp.int32)
    tree = lambda *rows: {"a": floats(*rows, 2), "b": floats(*rows)}
    one = jax.eval_shape(agent.init, key, floats(3), action)
    several = jax.eval_shape(agent.init, key, tree(), action)
    assert one == several
    greedy = jax.eval_shape(agent.greedy, one, floats(4, 3))
    assert greedy == jax.eval_shape(agent.greedy, several, tree(4))


@pytest.mark.parametrize("name", [name for name in MADE if name != "tabular"])
def test_images_with_numbers_pass_through_all_functions(name):
    """Every network has a torso for the image, and every function accepts the tree."""
    make, config, space = MADE[name]
    agent, key = make(config(hidden=HIDDEN), space), jax.random.key(0)
    obs = Seen(floats(2), jax.ShapeDtypeStruct((4, 4, 1), jnp.uint8), floats())
    many = jax.tree.map(lambda x: jax.ShapeDtypeStruct((4, *x.shape), x.dtype), obs)
    like = floats(2) if isinstance(space, Continuous) else jax.ShapeDtypeStruct((), jnp.int32)
    state = jax.eval_shape(agent.init, key, obs, like)
    paths = {jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(state)}
    assert any("Torso_0" in path for path in paths) and not any("Torso_1" in x for x in paths)
    action, extras = jax.eval_shape(agent.act, state, many, key)
    assert (action.shape, action.dtype) == ((4, *like.shape), like.dtype)
    assert jax.eval_shape(agent.greedy, state, many) == action
    flag = jax.ShapeDtypeStruct((4,), bool)
    t = Transition(many, action, floats(4), floats(4), many, flag, flag, extras)
    for values in jax.eval_shape(agent.feedback, state, t, key).values():
        assert values.shape == (4,)
    if name in (*TRAJECTORIES, "r2d2"):
        return
    sample = Sample(flag, t, floats(4), flag)
    assert jax.eval_shape(agent.update, state, sample, key)[0] == state
