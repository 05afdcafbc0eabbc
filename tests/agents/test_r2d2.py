"""R2D2: its targets worked by hand, one update in NumPy, and its memory in training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from agents.dqn import DQNConfig, dqn
from agents.r2d2 import Memory, R2D2Config, RecurrentQ, n_step_targets, r2d2, unscale
from agents.types import Discrete
from experiments import environments
from experiments.training.config import LoopConfig
from experiments.training.evaluation import evaluate
from experiments.training.loop import make_program
from experiments.training.seeds import over_seeds
from jaxreplay import Replay, mixing, ring
from jaxreplay.methods import sequences, slices, uniform
from jaxreplay.types import Sample, Transition
from tests.agents import tools
from tests.refusals import refused

T, ROWS, ACTIONS = 6, 4, 3


def test_inverse_is_exact_where_the_usual_form_cancels():
    x = np.geomspace(1e-3, 1e5, 200).astype(np.float32)
    exact = x.astype(np.float64)
    exact = np.sqrt(exact + 1) - 1 + 1e-3 * exact
    np.testing.assert_allclose(unscale(jnp.asarray(exact, jnp.float32)), x, rtol=2e-6)


@pytest.mark.parametrize(
    ("n", "end", "expected"),
    [
        (1, "none", [2.8, 1.35, 1.7, 2.72, -0.04, 2.08]),
        (1, "terminated", [2.8, 1.35, 1.7, 2.0, -0.04, 2.08]),
        (3, "none", [2.377, 1.3032, 0.7676, 4.1348, 2.372, 2.08]),
        (3, "terminated", [2.377, 0.72, 0.8, 2.0, 2.372, 2.08]),
        (3, "truncated", [2.377, 1.3032, 1.448, 2.72, 2.372, 2.08]),
        (5, "truncated", [2.17288, 1.3032, 1.448, 2.72, 2.372, 2.08]),
    ],
)
def test_targets_worked_by_hand(n, end, expected):
    reward = jnp.float32([1, 0, -1, 2, 0.5, 1])[:, None]
    value = jnp.float32([2, 1.5, 3, 0.8, -0.6, 1.2])[:, None]
    last = jnp.zeros(T, bool).at[3].set(end != "none")[:, None]
    discount = jnp.where(last & (end == "terminated"), 0.0, 0.9)
    found = n_step_targets(reward, discount, last, value, n)[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_cells_agree_with_flax(cell):
    """The gates as inputs of flax's cells have the identity as kernel."""
    size, names = 5, ("r", "z", "n") if cell == "gru" else ("i", "f", "g", "o")
    network, rng = RecurrentQ(2, "mlp", (4,), False, cell, size), np.random.default_rng(0)
    state, gates, kernel = (
        rng.normal(size=shape).astype(np.float32)
        for shape in ((3, network.state_size), (3, len(names) * size), (size, len(names) * size))
    )
    zero, params = np.zeros(size, np.float32), {}
    split = lambda x: np.split(np.float32(x), len(names), axis=1)
    for name, into, hidden in zip(names, split(np.eye(gates.shape[1])), split(kernel), strict=True):
        params[f"i{name}"] = {"kernel": into} | ({"bias": zero} if cell == "gru" else {})
        biased = cell == "lstm" or name == "n"
        params[f"h{name}"] = {"kernel": hidden} | ({"bias": zero} if biased else {})

    @jax.jit
    def step(state):
        own = {"params": {"kernel": kernel, "bias": zero}}
        found = network.apply(own, gates, state, method="step")
        if cell == "gru":
            return found, nn.GRUCell(size).apply({"params": params}, state, gates)[0]
        hidden, carried = jnp.split(state, 2, axis=-1)
        (carried, hidden), _ = nn.LSTMCell(size).apply({"params": params}, (carried, hidden), gates)
        return found, jnp.concatenate([hidden, carried], axis=-1)

    tools.assert_close(*step(state), rtol=1e-5, atol=1e-6)


MASK = np.ones((ROWS, T), bool)
MASK[1, 3:] = False  # the episode of the second sequence ends after three steps
LEARN = MASK & (np.arange(T) >= 2)  # two steps of burn-in


@functools.cache
def sequences_of() -> Sample:
    """Return sequences `[ROWS, T]`, with numbers after the end of an episode."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(ROWS, T + 1, 2)).astype(np.float32)
    next_obs = obs[:, 1:].copy()
    next_obs[1, 2] = 9.0  # last observation of the episode, not of the next one
    last = np.zeros((ROWS, T), bool)
    last[1, 2] = True
    memory = rng.normal(size=(ROWS, T, 4)).astype(np.float32)
    transition = Transition(
        obs[:, :-1], rng.integers(0, ACTIONS, (ROWS, T)).astype(np.int32),
        rng.normal(size=(ROWS, T)).astype(np.float32), np.full((ROWS, T), 0.9, np.float32),
        next_obs, np.zeros((ROWS, T), bool), last, Memory(memory, memory[::-1]),
    )  # fmt: skip
    indices, weights = np.zeros((ROWS, T), np.int32), np.float32([1, 0.5, 0.25, 1])
    return Sample(indices, transition, weights, indices, sequences.Aux(MASK, LEARN))


@functools.cache
def make(**options):
    """Return an agent with compiled functions, and a state with a distinct target network."""
    config = {"hidden": (3,), "memory": 4, "n_step": 2, "max_grad_norm": 0.0} | options
    agent = tools.compiled(r2d2(R2D2Config(**config), Discrete(ACTIONS)))
    single = jax.tree.map(lambda x: x[0], sequences_of())
    state, other = (tools.start(agent, single, jax.random.key(seed)) for seed in (0, 5))
    return agent, state._replace(target_params=other.params)


def test_sequences_end_at_the_newest_step():
    (agent, state), whole = make(), sequences_of()
    cut = tools.change(whole, last=np.zeros((ROWS, T), bool))
    found, expected = (agent.update(state, x, tools.KEY)[1].feedback for x in (cut, whole))
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name][LEARN], values[LEARN])


def test_mixtures_of_sequences_are_learned_from_like_one_replay():
    (agent, state), whole = make(), sequences_of()
    parts = [sequences.Aux(MASK[rows], LEARN[rows]) for rows in (slice(3), slice(3, ROWS))]
    mixture = whole._replace(aux=mixing.Aux(*parts))
    tools.assert_close(
        agent.update(state, mixture, tools.KEY), agent.update(state, whole, tools.KEY), rtol=1e-6
    )


def test_batches_without_masks_are_refused():
    agent, state = make()
    for aux in ((), mixing.Aux((), ())):
        with refused("R2D2", "learn", "sequences"):
            agent.update(state, sequences_of()._replace(aux=aux), tools.KEY)


def unrolled(params, obs, state, fixed=None, burn_in=0):
    """Return Q-values `[T + 1, n]` of a GRU for `obs` `[T + 1, 2]`.

    The states of the burn-in are those of the parameters `fixed`.
    """
    sigmoid, found = lambda x: 1 / (1 + np.exp(-x)), []
    for time, x in enumerate(obs):
        p = (fixed if time < burn_in else params)["params"]
        gates = (
            tools.relu(tools.perceptron(p["torso"], x)) @ p["project"]["kernel"]
            + p["project"]["bias"]
        )
        own = state @ p["kernel"]
        r, z = sigmoid(gates[:4] + own[:4]), sigmoid(gates[4:8] + own[4:8])
        n = np.tanh(gates[8:] + r * (own[8:] + p["bias"]))
        state = (1 - z) * n + z * state
        found.append(tools.perceptron(p["values"], state))
    return np.array(found)


@pytest.mark.parametrize(("stored_state", "rescaled"), [(True, False), (False, True)])
def test_update_agrees_with_numpy(stored_state, rescaled):
    """The burn-in only computes the initial state, which is a constant for the gradient."""
    options = {} if stored_state else {"stored_state": False, "rescale": True}
    (agent, state), sample = make(**options), sequences_of()
    after, info = agent.update(state, sample, tools.KEY)
    params, target_params, t = tools.in_double(
        (state.params, state.target_params, sample.transition)
    )
    h = lambda x: np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x
    inverse = lambda x: (
        np.sign(x) * (((np.sqrt(1 + 4e-3 * (1e-3 + 1 + np.abs(x))) - 1) / 2e-3) ** 2 - 1)
    )
    inputs = np.concatenate([t.obs[:, :1], t.next_obs], axis=1)
    starts = t.extras.before[:, 0] if stored_state else np.zeros((ROWS, 4))
    action = sample.transition.action

    def targets(row):
        q, lagged = (unrolled(p, inputs[row], starts[row]) for p in (params, target_params))
        value, found = lagged[np.arange(1, T + 1), q[1:].argmax(-1)], []
        value = inverse(value) if rescaled else value
        for time in range(T):
            target, scale, step = 0.0, 1.0, time
            while True:
                target += scale * t.reward[row, step]
                scale *= t.discount[row, step]
                if step + 1 in (T, time + 2) or t.last[row, step]:
                    break
                step += 1
            found.append(target + scale * value[step])
        return h(np.array(found)) if rescaled else found

    constant = np.array([targets(row) for row in range(ROWS)])

    def errors(new, burn_in=2):
        """Return TD errors `[ROWS, T]` of the steps from which the agent learns."""
        q = [unrolled(new, inputs[row], starts[row], params, burn_in) for row in range(ROWS)]
        chosen = np.take_along_axis(np.array(q)[:, :-1], action[..., None], axis=-1)[..., 0]
        return np.where(LEARN, constant - chosen, 0)

    def loss(new, **kind):
        mean = np.square(errors(new, **kind)).sum(axis=1) / np.maximum(LEARN.sum(axis=1), 1)
        return (sample.weights * 0.5 * mean).mean()

    np.testing.assert_allclose(info.feedback["td_error"], errors(params), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(info.metrics["loss"], loss(params), rtol=1e-3)
    found = tools.assert_gradient(after.opt_state, loss, params)
    through = tools.numerical_gradient(lambda p: loss(p, burn_in=0), params)
    gap = jax.tree.map(lambda x, y: np.abs(x - y).max(), found, through)
    assert max(jax.tree.leaves(gap)) > 1e-4


def test_steps_outside_the_mask_change_nothing():
    (agent, state), sample = make(), sequences_of()
    t, outside = sample.transition, np.float32(~MASK)
    other = tools.change(
        sample, next_obs=t.next_obs + 5 * outside[..., None], reward=t.reward + 7 * outside,
        action=np.where(MASK, t.action, 0).astype(np.int32),
    )  # fmt: skip
    one, two = (agent.update(state, x, tools.KEY)[0] for x in (sample, other))
    tools.assert_same(one, two)
    nothing = sample._replace(aux=sequences.Aux(MASK, np.zeros((ROWS, T), bool)))
    after, info = agent.update(state, nothing, tools.KEY)
    tools.assert_same(after.params, state.params)
    assert info.metrics["loss"] == 0


def test_feedback_of_single_steps_agrees_with_numpy():
    """It starts from the stored states, with both networks."""
    (agent, state), t = make(), jax.tree.map(lambda x: x[:, 0], sequences_of().transition)
    found = agent.feedback(state, t, tools.KEY)
    params, target_params = tools.in_double((state.params, state.target_params))
    for row in range(ROWS):
        inputs = np.stack([t.obs[row], t.next_obs[row]])
        q, lagged = (unrolled(p, inputs, t.extras.before[row]) for p in (params, target_params))
        target = t.reward[row] + 0.9 * lagged[1, q[1].argmax()]
        np.testing.assert_allclose(found["target"][row], target, rtol=1e-4)
        np.testing.assert_allclose(found["q_value"][row], q[0, t.action[row]], rtol=1e-4)


def test_acting_continues_the_state_of_the_previous_step():
    """The first step of an episode starts from zeros."""
    state, obs = make()[1], sequences_of().transition.obs
    agent = r2d2(R2D2Config(hidden=(3,), memory=4), Discrete(ACTIONS))
    recall, memory, actions = jax.jit(agent.recall), None, []
    for time in range(T):
        action, memory = recall(state, obs[:, time], memory)
        actions.append(action)
    params = tools.in_double(state.params)
    expected = [unrolled(params, row, np.zeros(4)).argmax(-1) for row in obs]
    np.testing.assert_array_equal(np.array(actions).T, expected)


@pytest.mark.parametrize(
    "sampler",
    [
        sequences.sampler(sequences.SequencesConfig(length=4, period=2)),
        pytest.param(
            slices.sampler(slices.SlicesConfig("per", length=4, burn_in=1)), marks=pytest.mark.slow
        ),
    ],
    ids=["sequences", "slices"],
)
def test_memory_is_stored_with_steps_and_is_initially_zero(sampler):
    task = environments.make("memory/TMaze-3")
    agent = r2d2(R2D2Config(hidden=(4,), memory=4), task.action_space)
    replay = Replay(sampler, capacity=64, batch_size=4, num_envs=2)
    inspect = int(isinstance(sampler, slices.Slices))  # compiles more
    config = LoopConfig(steps=120, warmup=60, eval_every=60, eval_episodes=1, inspect=inspect)
    program = make_program(task, agent, replay, config)
    state, metrics = jax.jit(lambda key: program.chunk(program.init(key), 30))(tools.KEY)
    rows = ring.contents(state.replay.ring)
    newest = int(state.replay.ring.steps_added)
    order = 2 * (np.arange(newest, newest + 32) % 32)  # first environment, oldest rows first
    before, after, first = (np.asarray(x)[order] for x in (*rows.extras, rows.first))
    assert (before[first] == 0).all() and (np.abs(before[~first]).sum(axis=1) > 0).all()
    follows = ~first[1:]
    np.testing.assert_array_equal(before[1:][follows], after[:-1][follows])
    assert np.isfinite(metrics["eval_return"])
    if inspect:
        assert 0 < metrics["replayed/distinct"] <= 1
        assert metrics["replayed/effective_buffer"] <= 1.001


def test_evaluations_carry_the_memory():
    """An agent that repeats the cue always succeeds with memory, and at random without."""
    task = environments.make("memory/Chain-5")

    def policy(obs, key, memory):
        del key
        cue = jnp.where(obs[:, 0] != 0, obs[:, 0], memory)
        return (cue > 0).astype(jnp.int32), cue

    blank = lambda obs: jnp.zeros(len(obs))
    returns, lengths = evaluate(task, policy, blank, jax.random.key(0), 40)
    assert (returns == 1).all() and (lengths == 6).all()
    forgets = lambda obs, key, memory: (policy(obs, key, memory)[0], jnp.zeros(len(obs)))
    returns, _ = evaluate(task, forgets, blank, jax.random.key(0), 40)
    assert 5 < (returns == 1).sum() < 35


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "solves"), [("r2d2", True), ("dqn", False)])
def test_only_an_agent_with_memory_solves_the_maze(agent, solves):
    task = environments.make("memory/TMaze-10")
    if agent == "r2d2":
        method = sequences.method(sequences.SequencesConfig(length=16, period=8))
        made = r2d2(R2D2Config(learning_rate=1e-3, epsilon_updates=3_000), task.action_space)
    else:
        method, made = uniform.method(), dqn(DQNConfig(hidden=(64,)), task.action_space)
    replay = Replay(method.sampler, capacity=20_000, batch_size=32, num_envs=4)
    config = LoopConfig(steps=24_000, eval_every=4_000, eval_episodes=50, inspect=0)
    seeds = over_seeds(make_program(task, made, replay, config))
    state = seeds.init(jax.vmap(jax.random.key)(jnp.arange(2)))
    for blocks in make_program(task, made, replay, config).schedule.log_points:
        state, metrics = seeds.chunk(state, jnp.int32(blocks))
    assert ((metrics["eval_return"] > 0.8) == solves).all()
