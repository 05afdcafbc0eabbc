"""The compiled loop: stored transitions, log points, and equality of one and many seeds."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.ddpg import DDPGConfig, ddpg
from agents.discrete_sac import DiscreteSACConfig, discrete_sac
from agents.dqn import DQNConfig, dqn
from agents.iql import IQLConfig, iql
from agents.sac import SACConfig, sac
from agents.td3 import TD3Config, td3
from agents.td7 import TD7Config, td7
from agents.types import Agent, Discrete, Info
from experiments import environments
from experiments.environments.episodes import make_episodic
from experiments.training.carry import Carry
from experiments.training.config import LoopConfig
from experiments.training.evaluation import evaluation_keys
from experiments.training.loop import make_program, make_train
from experiments.training.phases import make_phases
from experiments.training.schedule import schedule
from experiments.training.seeds import over_seeds
from experiments.training.state import (
    acting_key,
    evaluation_key,
    feedback_key,
    inspection_key,
    learning_keys,
    observing_keys,
    reset_keys,
    step_keys,
)
from jaxreplay import Replay, ring, sum_tree
from jaxreplay.methods import her, per, refer, uniform
from jaxreplay.types import Requirements
from tests.refusals import refused

GAMMA = 0.5


def counting(ends_after: int, max_steps: int, unit: float = 1.0):
    """An environment that counts: obs = [episode id, step in the episode], reward = step * unit."""

    def reset(key):
        episode = jax.random.uniform(key)
        return (episode, jnp.zeros((), jnp.int32)), jnp.stack([episode, 0.0])

    def step(key, state, action):
        del key, action
        episode, count = state[0], state[1] + 1
        obs = jnp.stack([episode, count.astype(jnp.float32)])
        reward = unit * count.astype(jnp.float32)
        return (episode, count), obs, reward, count >= ends_after

    return make_episodic("counting", reset, step, Discrete(2), max_steps)


def small(environment, n_step=1, num_envs=1, method=None, agent=None, **loop):
    method = method or per.method()
    agent = agent or dqn(DQNConfig(hidden=(8,)), environment.action_space, method.objective)
    replay = Replay(method.sampler, capacity=120, batch_size=16, num_envs=num_envs)
    config = LoopConfig(
        **{"steps": 120, "warmup": 40, "eval_every": 20, "eval_episodes": 2, "gamma": GAMMA}
        | {"n_step": n_step, "inspect": 0, **loop}
    )
    return environment, agent, replay, config


def numbering(agent):
    """Return an agent that stores the number of each step in its episode, starting with 1."""

    def act(state, obs, key, previous=None):
        count = jnp.zeros(len(obs)) if previous is None else previous
        return agent.act(state, obs, key)[0], count + 1

    return agent._replace(act=act, extras_of_action=False)


def watching():
    """Return an agent that compiles quickly: its state is the rewards of its last batch."""

    def feedback(state, transition, key):
        del state, key
        return dict.fromkeys(("td_error", "q_value", "target"), transition.reward)

    def update(state, sample, key):
        reward = sample.transition.reward
        return reward, Info(feedback(state, sample.transition, key), {"reward": reward.mean()})

    def greedy(state, obs):
        del state
        return jnp.zeros(len(obs), jnp.int32)

    return Agent(
        init=lambda key, obs, action: jnp.zeros(16),
        act=lambda state, obs, key, previous=None: (greedy(state, obs), None),
        greedy=greedy,
        update=update,
        feedback=feedback,
    )


ENDS, CUT = (4, 99), (99, 5)


def assert_true_transitions(t, n, length, ends):
    """Assert n-step transitions of counted episodes, which end or are cut after `length` steps."""
    start = t.obs[:, 1]
    steps = np.minimum(n, length - start)  # up to the end of the episode
    np.testing.assert_array_equal(t.next_obs[:, 0], t.obs[:, 0], "bootstraps into another episode")
    np.testing.assert_array_equal(t.next_obs[:, 1], start + steps)
    sums = [sum(GAMMA**j * (s + j + 1) for j in range(int(k))) for s, k in zip(start, steps)]
    np.testing.assert_allclose(t.reward, sums)
    over = (start + steps == length) & ends
    np.testing.assert_allclose(t.discount, np.where(over, 0.0, GAMMA**steps))
    np.testing.assert_array_equal(t.first, start == 0)
    np.testing.assert_array_equal(t.last, start == length - 1)


@pytest.mark.parametrize(
    ("n", "num_envs", "ends_after", "max_steps"),
    [(1, 1, *ENDS), (3, 2, *CUT)],
)
def test_ring_contains_the_true_transitions(n, num_envs, ends_after, max_steps):
    agent = numbering(watching())
    program = make_program(*small(counting(ends_after, max_steps), n, num_envs, agent=agent))
    state, metrics = jax.jit(program.chunk)(jax.jit(program.init)(jax.random.key(0)), 10)
    held = state.replay.ring
    live = int(ring.size(held))
    assert live == 40 + 10 * num_envs - (n - 1) * num_envs
    t = jax.tree.map(np.asarray, ring.gather(held, jnp.arange(live)))
    start, length = t.obs[:, 1], min(ends_after, max_steps)
    assert_true_transitions(t, n, length, ends_after <= max_steps)
    np.testing.assert_array_equal(t.extras, start + 1, "an agent remembers another episode")
    # Consecutive steps of an environment are one row apart.
    later = np.arange(num_envs, live)
    same = ~t.last[later - num_envs]
    np.testing.assert_array_equal(start[later][same], start[later - num_envs][same] + 1)
    assert float(metrics["episodes"]) == num_envs * (10 // length)
    for name in ("train_return", "eval_return"):
        assert float(metrics[name]) == length * (length + 1) / 2
    assert float(metrics["eval_length"]) == length


def test_chunks_and_one_program_train_equally():
    parts = small(counting(4, 99), n_step=2, agent=watching())
    program = make_program(*parts)
    state, rewards = jax.jit(program.init)(jax.random.key(3)), []
    chunk = jax.jit(program.chunk)
    for blocks in program.schedule.log_points:
        state, metrics = chunk(state, blocks)
        rewards.append(metrics["agent/reward"])
    assert chunk._cache_size() <= 1
    whole, metrics = jax.jit(make_train(*parts))(jax.random.key(3))
    np.testing.assert_array_equal(metrics["step"], program.schedule.steps)
    np.testing.assert_allclose(metrics["agent/reward"], rewards, rtol=1e-5)
    assert int(whole.updates) == program.schedule.updates


@pytest.mark.parametrize(("epsilon", "share"), [(0.0, 0.0), (0.4, 0.2)])
def test_evaluations_may_take_some_random_actions(epsilon, share):
    environment, agent, replay, config = small(counting(4, 99), eval_epsilon=epsilon)
    phases = make_phases(environment.action_space, agent, replay, config)
    state, obs = agent.init(jax.random.key(0), jnp.zeros(2), jnp.int32(0)), jnp.ones((4000, 2))
    drawn, _ = phases.greedy(state, obs, jax.random.key(1), ())
    other = (drawn != agent.greedy(state, obs)).mean()
    np.testing.assert_allclose(other, share, atol=0.03)


def test_every_key_is_used_once():
    """Includes keys of two steps and two updates, and the roots that they derive from."""
    init = make_program(*small(counting(4, 99), num_envs=2)).init
    keys, rows, updates = jax.jit(lambda key: init(key)[:3])(jax.random.key(0))
    state = jax.eval_shape(init, jax.random.key(0))
    state = state._replace(keys=keys, rows=rows, updates=updates)
    later = state._replace(rows=state.rows + 1, updates=state.updates + 1)
    now, used = (state, later), [reset_keys(jax.random.key(0), 2), *state.keys]
    for keys in (acting_key, feedback_key, step_keys, learning_keys, observing_keys):
        used += map(keys, now)
    used += [*map(evaluation_key, now), *map(inspection_key, now)]
    for key in (evaluation_key(state), observing_keys(state)[1]):
        used += evaluation_keys(key, 2)
    words = np.concatenate([jax.random.key_data(keys).reshape(-1, 2) for keys in used])
    assert len(np.unique(words, axis=0)) == len(words)


def test_seeds_share_clocks_and_constant_leaves():
    program = make_program(*small(environments.make("gymnax/CartPole-v1"), n_step=1))
    axes = over_seeds(program).axes
    assert axes.window.steps.obs is None
    assert axes.rows is None and axes.updates is None
    assert axes.replay.ring.steps_added is None
    assert axes.agent.updates is None
    assert axes.replay.dropped == 0  # starts equal for all, but depends on the data
    assert axes.replay.ring.words == 0
    assert axes.replay.sampler.tree.nodes == 0
    assert axes.obs == 0


def test_vmapped_seeds_equal_single_seeds():
    program = make_program(*small(environments.make("gymnax/CartPole-v1")))
    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    together = over_seeds(program)
    state, metrics = together.chunk(together.init(keys), 5)
    init, chunk = jax.jit(program.init), jax.jit(program.chunk)
    for seed in range(3):
        alone, expected = chunk(init(keys[seed]), 5)
        np.testing.assert_allclose(metrics["agent/loss"][seed], expected["agent/loss"], rtol=1e-5)
        many = state.replay.ring.replace(words=state.replay.ring.words[seed])
        chex.assert_trees_all_close(
            ring.contents(many), ring.contents(alone.replay.ring), rtol=1e-5
        )


PENDULUM = environments.make("gymnax/Pendulum-v1")
OF_PAIRS = {  # agents with twin critics
    "sac": lambda space: sac(SACConfig(hidden=(8,)), space),
    "sac_reset": lambda space: sac(SACConfig(hidden=(8,), reset_every=4), space),
    "td3": lambda space: td3(TD3Config(hidden=(8,)), space),
    "td7": lambda space: td7(TD7Config(hidden=(8,)), space),
    "iql": lambda space: iql(IQLConfig(hidden=(8,)), space),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "sac_reset" else pytest.mark.slow)
        for name in ("dqn", *OF_PAIRS, "discrete_sac")
    ],
)
def test_programs_for_accelerators_train_equally(name):
    """They join small arrays and stack twin critics, here in programs that run on the CPU."""
    environment = PENDULUM if name in OF_PAIRS else environments.make("gymnax/CartPole-v1")
    agent = None
    if name != "dqn":
        make = OF_PAIRS.get(name, lambda space: discrete_sac(DiscreteSACConfig(hidden=(8,)), space))
        agent = make(environment.action_space)
    options = {"n_step": 2, "num_envs": 2, "learn_every": 2, "updates": 2, "inspect": 1}
    parts = small(environment, method=uniform.method(), agent=agent, **options)
    keys, found = jax.vmap(jax.random.key)(jnp.arange(2)), []
    for platform in ("cpu", "gpu"):
        program = over_seeds(make_program(*parts, platform=platform))
        found.append((program.axes, program.chunk(program.init(keys), 5)))
    (axes, expected), (axes_there, there) = found
    assert axes == axes_there
    chex.assert_trees_all_equal_shapes_and_dtypes(there[0].agent, expected[0].agent)
    assert any(values.any() for values in expected[1].values())
    for metric, values in expected[1].items():
        np.testing.assert_allclose(there[1][metric], values, rtol=1e-3, atol=1e-4, err_msg=metric)


@pytest.mark.parametrize("joins", [True, False])
def test_carries_join_small_arrays_by_whether_seeds_share_them(joins):
    """Bit for bit: a NaN stays the same NaN."""
    nan = np.uint32(0x7FC01234).view(np.float32)
    tree = {
        "clock": jnp.int32(7), "float": jnp.float32([[nan, -0.0]]), "flag": jnp.zeros(2, bool),
        "large": jnp.ones(1_000), "more": jnp.uint32([1, 2**32 - 1]),
    }  # fmt: skip
    carry = Carry(tree, [False, True, True, True, True] if joins else None)
    vectors, alone = carry.join(tree)
    assert [vector.shape for vector in vectors] == ([(1,), (4,)] if joins else [])
    assert len(alone) == (2 if joins else 5)
    before, after = (
        {name: np.asarray(value).tobytes() for name, value in values.items()}
        for values in (tree, carry.separate((vectors, alone)))
    )
    assert before == after


def test_programs_over_seeds_donate_their_state():
    program = make_program(*small(counting(4, 99), method=uniform.method()))
    together = over_seeds(program)
    state = together.init(jax.random.split(jax.random.key(0), 2))
    before = state.replay.ring.words
    leaves = jax.tree.leaves(state._replace(keys=()))  # targets have separate buffers
    places = [leaf.unsafe_buffer_pointer() for leaf in leaves if leaf.size]
    assert len(set(places)) == len(places)
    together.chunk(state, 1)
    assert before.is_deleted()


def test_log_points_lie_on_multiples_and_at_the_end():
    plan = schedule(LoopConfig(steps=1050, warmup=150, eval_every=200, learn_every=1), 1)
    assert plan.steps == (200, 400, 600, 800, 1000, 1050)
    assert plan.log_points == (50, 200, 200, 200, 200, 50)
    assert plan.updates == 900
    many = schedule(LoopConfig(steps=1000, warmup=100, eval_every=100, learn_every=4, updates=2), 8)
    assert many.warmup_rows == 13
    assert all(later > earlier for earlier, later in zip(many.steps, many.steps[1:], strict=False))
    assert many.steps[-1] >= 1000 and many.updates == 2 * sum(many.log_points)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"n_step": 30}, ("warmup", "40", "45")),
        ({"n_step": 3, "num_envs": 2, "warmup": 18}, ("warmup", "18", "20")),
    ],
)
def test_invalid_loops_are_refused(change, parts):
    with refused(*parts):
        make_program(*small(counting(4, 99), **change))


def test_scales_are_measured_after_the_warmup_and_rewards_again_later():
    environment = environments.make("gymnax/Pendulum-v1", max_steps=20)
    agent = ddpg(DDPGConfig(hidden=(4,)), environment.action_space)
    replay = Replay(uniform.sampler(), capacity=256, batch_size=16)
    config = LoopConfig(
        steps=200, warmup=60, eval_every=40, scale_observations=True, scale_rewards=True,
        rescale_every=50, inspect=0,
    )  # fmt: skip
    program = make_program(environment, agent, replay, config)
    start = jax.jit(program.init)(jax.random.key(0))
    held, units = ring.contents(start.replay.ring), start.agent.scaling
    np.testing.assert_allclose(units.mean, held.obs[:60].mean(axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(units.std, held.obs[:60].std(axis=0), rtol=1e-4)
    np.testing.assert_allclose(units.reward, jnp.sqrt((held.reward[:60] ** 2).mean()), rtol=1e-5)
    state, _ = jax.jit(program.chunk)(start, jnp.asarray(45))  # measures at row 100
    later = state.agent.scaling
    np.testing.assert_array_equal(later.mean, units.mean)
    reward = ring.contents(state.replay.ring).reward
    np.testing.assert_allclose(later.reward, jnp.sqrt((reward[:100] ** 2).mean()), rtol=1e-5)


def test_scaled_rewards_are_invariant_to_units_after_measurement():
    config = LoopConfig(
        steps=200, warmup=40, eval_every=40, eval_episodes=1, scale_rewards=True, rescale_every=20,
        inspect=0,
    )  # fmt: skip
    seen, starts = [], []
    for unit in (1.0, 7.0):
        replay = Replay(uniform.sampler(), capacity=120, batch_size=16)
        program = make_program(counting(4, 99, unit), watching(), replay, config)
        start = jax.jit(program.init)(jax.random.key(0))
        starts.append(start)
        # Both start with the scale of unit 1, which is stale for unit 7.
        state, chunk = start._replace(agent=starts[0].agent), jax.jit(program.chunk)
        for blocks in (20, 1):  # before and after the next measurement
            state, _ = chunk(state, jnp.asarray(blocks))
            seen.append(state.agent.agent)
    stale, fresh, seven_times, same = seen
    np.testing.assert_allclose(starts[1].agent.scaling.reward, 7 * np.sqrt(7.5), rtol=1e-5)
    np.testing.assert_allclose(seven_times, 7 * stale, rtol=1e-5)
    np.testing.assert_allclose(same, fresh, rtol=1e-5)


@pytest.mark.parametrize(("random_warmup", "noise"), [(True, "ou"), (False, "gaussian")])
def test_warm_up_actions_are_random_or_from_the_agent(random_warmup, noise):
    environment = environments.make("gymnax/Pendulum-v1")
    agent = ddpg(DDPGConfig(hidden=(4,), noise=noise), environment.action_space)
    replay = Replay(uniform.sampler(), capacity=256, batch_size=16)
    config = LoopConfig(steps=300, warmup=200, random_warmup=random_warmup, inspect=0)
    state = jax.jit(make_program(environment, agent, replay, config).init)(jax.random.key(0))
    actions = ring.contents(state.replay.ring).action[:200]
    own = DDPGConfig().noise_std  # the initial mean is near 0
    expected = 1 / np.sqrt(3) if random_warmup else own
    np.testing.assert_allclose(actions.std(), expected, rtol=0.1)


def test_stored_rewards_are_noisy_and_logged_returns_are_not():
    def stored(noise):
        parts = small(counting(4, 99), reward_noise=noise, agent=watching())
        program = make_program(*parts)
        state, metrics = jax.jit(program.chunk)(jax.jit(program.init)(jax.random.key(0)), 20)
        return ring.contents(state.replay.ring).reward[:60], metrics

    (clean, _), (noisy, metrics) = stored(0.0), stored(0.5)
    np.testing.assert_allclose(np.std(noisy - clean), 0.5, rtol=0.3)
    assert len(np.unique(noisy - clean)) == 60
    assert metrics["train_return"] == metrics["eval_return"] == 1 + 2 + 3 + 4
    task = environments.make("goals/BitFlip-4")
    hindsight = her.method()._replace(sampler=her.sampler().for_goals(task.goals))
    with refused("reward_noise"):
        make_program(*small(task, method=hindsight, reward_noise=0.5))


def test_noise_at_failures_leaves_other_rewards():
    def stored(noise):
        options = {"reward_noise": noise, "reward_noise_at": "failures", "agent": watching()}
        program = make_program(*small(environments.make("walk/2"), **options))
        state, _ = jax.jit(program.chunk)(jax.jit(program.init)(jax.random.key(0)), 20)
        return jax.tree.map(lambda x: x[:60], ring.contents(state.replay.ring))

    clean, noisy = stored(0.0), stored(1.0)
    failed = (np.asarray(clean.discount) == 0) & (np.asarray(clean.reward) == 0)
    changed = np.asarray(noisy.reward) != np.asarray(clean.reward)
    np.testing.assert_array_equal(changed, failed)
    assert failed.any() and (clean.reward == 1).any()
    assert abs(noisy.reward[failed].mean()) < 4 / np.sqrt(failed.sum())


def test_random_warm_ups_are_refused_with_stored_densities():
    environment = environments.make("gymnax/Pendulum-v1")
    method = refer.method()
    agent = ddpg(DDPGConfig(hidden=(4,)), environment.action_space, method.objective)
    replay = Replay(method.sampler, capacity=256, batch_size=16)
    program = make_program(environment, agent, replay, LoopConfig(steps=300, warmup=200))
    with refused("random_warmup", "false"):
        jax.eval_shape(program.init, jax.random.key(0))


def test_inspections_do_not_change_training():
    metrics = {}
    for batches in (0, 3):
        parts = small(counting(4, 99), inspect=batches, agent=watching())
        metrics[batches] = jax.jit(make_train(*parts))(jax.random.key(5))[1]
    looked = [name for name in metrics[0] if name.startswith(("replayed/", "stored/"))]
    assert looked == ["replayed/effective_buffer"]
    for name, values in metrics[0].items():
        np.testing.assert_allclose(values, metrics[3][name], rtol=1e-5, atol=1e-6)
    assert np.isfinite(metrics[3]["replayed/abs_td"]).all()


@dataclasses.dataclass(frozen=True)
class Listening(uniform.Uniform):
    """Uniform replay whose state is a hash of the sequence of observed returns."""

    whose: str

    @property
    def requires(self):
        return Requirements(episode_returns=self.whose)

    def init(self, key, ring):
        return jnp.zeros((), jnp.int32)

    def observe_return(self, state, ring, episode_return, key):
        return state * 7 + episode_return.astype(jnp.int32) % 7


def listening(whose):
    return uniform.method()._replace(sampler=Listening(whose))


def test_training_returns_reach_the_replay_in_order():
    # Rewards are 1 to 4 times the unit of the environment.
    method = listening("training")
    parts = small(counting(4, 99), num_envs=2, learn_every=6, method=method, agent=watching())
    program = make_program(*parts)
    state = jax.jit(program.init)(jax.random.key(0))
    assert int(state.replay.sampler) == 0  # returns of the warm-up (20 rows of 2) are not observed
    before, _ = jax.jit(program.chunk)(state, 1)
    # Rows 21 to 26: both environments end an episode of return 10 at row 24.
    assert int(before.replay.sampler) == 10 % 7 * 7 + 10 % 7
    after, _ = jax.jit(program.chunk)(before, 1)  # rows 27 to 32: at 28 and at 32
    heard = int(before.replay.sampler)
    for _ in range(4):
        heard = heard * 7 + 3
    assert int(after.replay.sampler) == heard


@pytest.mark.parametrize("num_envs", [1, 2])
def test_evaluations_for_the_replay_need_no_log_points(num_envs):
    method = listening("evaluation")
    environment, agent, replay, config = small(
        counting(4, 99), num_envs=num_envs, method=method, eval_every=40, agent=watching()
    )
    counts = {}
    for every in (None, 8):
        loop = dataclasses.replace(config, observe_every=every)
        program = make_program(environment, agent, replay, loop)
        state = jax.jit(program.init)(jax.random.key(0))
        state, metrics = jax.jit(program.chunk)(state, 40 // num_envs)
        assert metrics["eval_return"] == 10
        told, counts[every] = int(state.replay.sampler), 0
        while told:
            assert told % 7 == 3
            told, counts[every] = told // 7, counts[every] + 1
    assert counts == {None: 1, 8: 5}


def test_offline_runs_learn_from_transitions_of_the_warm_up():
    program = make_program(*small(counting(4, 99), offline=True, agent=watching()))
    state = jax.jit(program.init)(jax.random.key(0))
    after, metrics = jax.jit(program.chunk)(state, 10)
    assert int(after.rows) == 50 and int(after.updates) == 10
    chex.assert_trees_all_equal(after.replay.ring, state.replay.ring)
    assert float(metrics["episodes"]) > 0


def test_new_transitions_may_enter_with_their_td_error():
    method = per.method(per.PERConfig(initial="td", alpha=1.0, epsilon=0.0))
    environment, agent, replay, config = small(counting(4, 99), method=method)
    program = make_program(environment, agent, replay, config)
    state = jax.jit(program.init)(jax.random.key(0))
    live = jnp.arange(int(ring.size(state.replay.ring)))
    transitions = ring.gather(state.replay.ring, live)
    expected = agent.feedback(state.agent, transitions, jax.random.key(0))["td_error"]
    leaves = sum_tree.leaves(state.replay.sampler.tree)[: live.size]
    np.testing.assert_allclose(leaves, jnp.abs(expected), rtol=1e-4)
