"""R2D2: its equations worked by hand, one update in NumPy, and its memory in training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from agents.dqn import DQNConfig, dqn
from agents.r2d2 import Memory, R2D2Config, RecurrentQ, n_step_targets, r2d2, rescale, unscale
from agents.types import Continuous, Discrete
from experiments import environments
from experiments.training.config import LoopConfig
from experiments.training.evaluation import evaluate
from experiments.training.loop import make_program
from experiments.training.seeds import over_seeds
from jaxreplay import Replay, ring
from jaxreplay.contrib import la3p, laber, sil
from jaxreplay.methods import refer, sequences, slices, uniform
from jaxreplay.mixing import mix
from jaxreplay.types import Sample, Transition
from tests.refusals import refused

T, ROWS, ACTIONS = 6, 4, 3


def test_rescaling_and_its_inverse_worked_by_hand():
    np.testing.assert_allclose(rescale(jnp.float32([1, -3])), [0.4152135624, -1.003], rtol=1e-6)
    found = unscale(jnp.float32([0.1, -3, 10]))
    np.testing.assert_allclose(found, [0.209539058, -14.8811720727, 117.4303227796], rtol=1e-5)


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


def test_gru_of_one_unit_worked_by_hand():
    network = RecurrentQ(2, "mlp", (1,), False, "gru", 1)
    kernel = jnp.float32([[0.4, 0.7, -0.6]])
    params = {"params": {"kernel": kernel, "bias": jnp.float32([0.05])}}
    state, trace = jnp.zeros((1, 1)), []
    for x in (1.0, -0.5, 0.25):
        gates = x * jnp.float32([[0.5, -0.3, 0.8]]) + jnp.float32([[0.1, 0.2, -0.1]])
        state = network.apply(params, gates, state, method="step")
        trace.append(float(state[0, 0]))
    np.testing.assert_allclose(trace, [0.3278284856, 0.0243804547, 0.0684203655], rtol=1e-5)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_cells_agree_with_flax(cell):
    size, count = 5, 3
    network = RecurrentQ(2, "mlp", (4,), False, cell, size)
    start = jax.random.normal(jax.random.key(0), (count, network.state_size))
    gates = jax.random.normal(jax.random.key(1), (count, (3 if cell == "gru" else 4) * size))
    obs = jnp.ones((count, 2))
    own = network.init(jax.random.key(2), obs, start)
    after = network.apply(own, gates, start, method="step")
    kernel = own["params"]["kernel"]
    eye, zero = jnp.eye(gates.shape[1]), jnp.zeros(size)
    names = ("r", "z", "n") if cell == "gru" else ("i", "f", "g", "o")
    params = {}
    for name, into, hidden in zip(
        names, jnp.split(eye, len(names), 1), jnp.split(kernel, len(names), 1), strict=True
    ):
        bias = {} if cell == "lstm" else {"bias": zero}
        params[f"i{name}"] = {"kernel": into} | bias
        params[f"h{name}"] = {"kernel": hidden} | (
            {"bias": zero} if cell == "lstm" or name == "n" else {}
        )
    if cell == "gru":
        expected, _ = nn.GRUCell(size).apply({"params": params}, start, gates)
    else:
        hidden, carried = jnp.split(start, 2, axis=-1)
        (carried, hidden), _ = nn.LSTMCell(size).apply({"params": params}, (carried, hidden), gates)
        expected = jnp.concatenate([hidden, carried], axis=-1)
    np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-6)


def batch_of(burn_in=2, ends=3):
    """Return sequences `[ROWS, T]`; the episode of the second one ends after `ends` steps."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(ROWS, T + 1, 2)).astype(np.float32)
    next_obs = obs[:, 1:].copy()
    next_obs[1, ends - 1] = 9.0  # last observation of the episode, not of the next one
    last = np.zeros((ROWS, T), bool)
    last[1, ends - 1] = True
    mask = np.ones((ROWS, T), bool)
    mask[1, ends:] = False
    memory = rng.normal(size=(ROWS, T, 4)).astype(np.float32)
    transition = Transition(
        obs[:, :-1], rng.integers(0, ACTIONS, (ROWS, T)).astype(np.int32),
        rng.normal(size=(ROWS, T)).astype(np.float32), np.full((ROWS, T), 0.9, np.float32),
        next_obs, np.zeros((ROWS, T), bool), last, Memory(memory, memory),
    )  # fmt: skip
    learn = mask & (np.arange(T) >= burn_in)
    aux = sequences.Aux(jnp.asarray(mask), jnp.asarray(learn))
    weights = jnp.float32([1, 0.5, 0.25, 1])
    indices = jnp.zeros((ROWS, T), jnp.int32)
    return Sample(indices, jax.tree.map(jnp.asarray, transition), weights, indices, aux)


def agent_of(**options):
    config = R2D2Config(**{"hidden": (3,), "memory": 4, "n_step": 2} | options)
    agent = r2d2(config, Discrete(ACTIONS))
    agent = agent._replace(update=jax.jit(agent.update), init=jax.jit(agent.init))
    state = agent.init(jax.random.key(0), jnp.zeros(2), jnp.int32(0))
    other = agent.init(jax.random.key(5), jnp.zeros(2), jnp.int32(0))
    return agent, state._replace(target_params=other.params)


def test_sequences_end_at_the_newest_step():
    agent, state = agent_of(n_step=3)
    whole = batch_of()
    last = jnp.zeros_like(whole.transition.last)
    cut = whole._replace(transition=whole.transition._replace(last=last))
    found, expected = (agent.update(state, x, jax.random.key(1))[1] for x in (cut, whole))
    for name, values in expected.feedback.items():
        learn = np.asarray(whole.aux.learn)
        np.testing.assert_array_equal(found.feedback[name][learn], values[learn])


def test_mixtures_of_sequences_are_learned_from_like_one_replay():
    agent, state = agent_of(n_step=2)
    row = jax.tree.map(lambda x: x[0, 0], batch_of().transition)
    one = slices.sampler(slices.SlicesConfig("per", length=T, burn_in=1))
    replay = mix(*(Replay(one, capacity=40, batch_size=n) for n in (3, 5)), share=0.5, batch_size=4)
    replays = replay.init(jax.random.key(0), row)
    for seed in range(12):
        steps = jax.tree.map(lambda x: x[:1, seed % T], batch_of().transition)
        replays = replay.add(replays, steps._replace(last=jnp.array([seed % 4 == 3])))
    batch = replay.sample(replays, jax.random.key(2))
    parts = [part.aux for part in replay.split(batch)]
    masks = [jnp.concatenate([getattr(x, name) for x in parts]) for name in ("mask", "learn")]
    plain = batch._replace(aux=sequences.Aux(*masks))
    assert batch.aux.learn.shape == (4, T) and not masks[0].all()
    expected = agent.update(state, plain, jax.random.key(1))
    after, info = agent.update(state, batch, jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, (after, info), expected)
    replay.update(replays, batch, td_error=info.feedback["td_error"])


def test_batches_without_masks_are_refused():
    agent, state = agent_of()
    replay = Replay(uniform.sampler(), capacity=40, batch_size=2)
    row = jax.tree.map(lambda x: x[0, 0], batch_of().transition)
    filled = replay.add(replay.init(jax.random.key(0), row), jax.tree.map(lambda x: x[None], row))
    both = mix(replay, replay)
    mixed = both.init(jax.random.key(0), row, second=filled)._replace(first=filled)
    for made, full in ((replay, filled), (both, mixed)):
        with refused("R2D2", "learn", "sequences"):
            agent.update(state, made.sample(full, jax.random.key(0)), jax.random.key(1))


def unrolled(params, obs, state):
    """Return Q-values `[T + 1, n]` of a GRU in plain NumPy, for `obs` `[T + 1, 2]`."""
    p = jax.tree.map(np.float64, params["params"])
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    found = []
    for x in obs:
        torso = p["torso"]["Dense_0"]
        x = np.maximum(np.maximum(x @ torso["kernel"] + torso["bias"], 0), 0)
        gates = x @ p["project"]["kernel"] + p["project"]["bias"]
        own = state @ p["kernel"]
        r, z = sigmoid(gates[:4] + own[:4]), sigmoid(gates[4:8] + own[4:8])
        n = np.tanh(gates[8:] + r * (own[8:] + p["bias"]))
        state = (1 - z) * n + z * state
        head = p["values"]["MLP_0"]
        y = np.maximum(state @ head["Dense_0"]["kernel"] + head["Dense_0"]["bias"], 0)
        found.append(y @ head["Dense_1"]["kernel"] + head["Dense_1"]["bias"])
    return np.array(found)


@pytest.mark.parametrize("stored_state", [True, False])
@pytest.mark.parametrize("rescaled", [True, False])
def test_feedback_and_loss_agree_with_numpy(stored_state, rescaled):
    agent, state = agent_of(stored_state=stored_state, rescale=rescaled)
    sample = batch_of()
    t, learn = jax.tree.map(np.asarray, (sample.transition, sample.aux.learn))
    _, info = jax.jit(agent.update)(state, sample, jax.random.key(1))
    h = lambda x: np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x
    inverse = lambda x: (
        np.sign(x) * (((np.sqrt(1 + 4e-3 * (1e-3 + 1 + np.abs(x))) - 1) / 2e-3) ** 2 - 1)
    )
    losses, errors = [], np.zeros((ROWS, T))
    for row in range(ROWS):
        obs = np.concatenate([t.obs[row, :1], t.next_obs[row]])
        start = t.extras.before[row, 0] if stored_state else np.zeros(4)
        q, lagged = (unrolled(params, obs, start) for params in (state.params, state.target_params))
        value = lagged[np.arange(1, T + 1), q[1:].argmax(-1)]
        value = inverse(value) if rescaled else value
        for time in range(T):
            target, scale, step = 0.0, 1.0, time
            while True:
                target += scale * t.reward[row, step]
                scale *= t.discount[row, step]
                if step + 1 in (T, time + 2) or t.last[row, step]:
                    break
                step += 1
            target += scale * value[step]
            target = h(target) if rescaled else target
            errors[row, time] = learn[row, time] * (target - q[time, t.action[row, time]])
        losses.append(0.5 * (errors[row] ** 2).sum() / max(learn[row].sum(), 1))
    np.testing.assert_allclose(info.feedback["td_error"], errors, rtol=1e-3, atol=1e-4)
    expected = (np.asarray(sample.weights) * losses).mean()
    np.testing.assert_allclose(info.metrics["loss"], expected, rtol=1e-3)


def test_steps_outside_the_mask_change_nothing():
    agent, state = agent_of()
    sample = batch_of()
    t = sample.transition
    other = t._replace(
        next_obs=t.next_obs.at[1, 3:].add(5.0), reward=t.reward.at[1, 3:].add(7.0),
        action=t.action.at[1, 3:].set(0),
    )  # fmt: skip
    one, _ = jax.jit(agent.update)(state, sample, jax.random.key(1))
    two, _ = jax.jit(agent.update)(state, sample._replace(transition=other), jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, one, two)
    nothing = sample.aux._replace(learn=jnp.zeros((ROWS, T), bool))
    after, info = jax.jit(agent.update)(state, sample._replace(aux=nothing), jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, after.params, state.params)
    assert info.metrics["loss"] == 0


def test_no_gradient_passes_through_the_burn_in():
    """The burn-in only computes the initial state, which is a constant for the gradient."""
    agent, state = agent_of(n_step=1, stored_state=True)
    sample = batch_of(burn_in=2)
    learn = sample.aux.learn & (jnp.arange(T) == 2)
    aux = sample.aux._replace(learn=learn)

    def gradient(sample):  # Adam's first moment is proportional to it
        after, _ = agent.update(state, sample, jax.random.key(0))
        return jax.tree.leaves(after.opt_state)[1:]

    warmed = sample.transition.extras.before[:, 0]
    for time in range(2):
        obs = sample.transition.obs[:, time]
        warmed = agent.recall(state, obs, Memory(warmed, warmed))[1].after
    # One-step targets do not depend on the online state if the discount is 0.
    final = sample.transition._replace(discount=jnp.zeros((ROWS, T)))
    later = jax.tree.map(lambda x: x[:, 2:], final)
    before = later.extras.before.at[:, 0].set(warmed)
    later = later._replace(extras=Memory(before, before))
    short = sequences.Aux(aux.mask[:, 2:], learn[:, 2:])
    cut = Sample(sample.indices[:, 2:], later, sample.weights, sample.version[:, 2:], short)
    whole = sample._replace(transition=final, aux=aux)
    for one, other in zip(gradient(whole), gradient(cut), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)
    # If the loss includes these steps, gradients reach them.
    open_ = whole._replace(aux=aux._replace(mask=learn))
    different = [
        np.abs(one - other).max() for one, other in zip(gradient(open_), gradient(cut), strict=True)
    ]
    assert max(different) > 1e-4


@pytest.mark.parametrize(
    "sampler",
    [
        sequences.sampler(sequences.SequencesConfig(length=4, period=2)),
        pytest.param(
            slices.sampler(slices.SlicesConfig("per", length=4, burn_in=1)),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["sequences", "slices"],
)
def test_memory_is_stored_with_steps_and_is_initially_zero(sampler):
    task = environments.make("memory/TMaze-3")
    agent = r2d2(R2D2Config(hidden=(4,), memory=4), task.action_space)
    replay = Replay(sampler, capacity=64, batch_size=4, num_envs=2)
    config = LoopConfig(steps=120, warmup=60, eval_every=60, eval_episodes=1, inspect=1)
    program = make_program(task, agent, replay, config)
    state, metrics = jax.jit(program.chunk)(jax.jit(program.init)(jax.random.key(0)), 30)
    rows = ring.contents(state.replay.ring)
    newest = int(state.replay.ring.steps_added)
    order = 2 * (np.arange(newest, newest + 32) % 32)  # first environment, oldest rows first
    before, after, first = (np.asarray(x)[order] for x in (*rows.extras, rows.first))
    assert (before[first] == 0).all() and (np.abs(before[~first]).sum(axis=1) > 0).all()
    follows = ~first[1:]
    np.testing.assert_array_equal(before[1:][follows], after[:-1][follows])
    assert np.isfinite(metrics["eval_return"])
    assert 0 < metrics["replayed/distinct"] <= 1 and metrics["replayed/effective_buffer"] <= 1.001


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


def test_vmapped_seeds_agree_with_a_single_seed():
    task = environments.make("memory/TMaze-3")
    agent = r2d2(R2D2Config(hidden=(4,), memory=4), task.action_space)
    method = sequences.method(sequences.SequencesConfig(length=4, period=2))
    replay = Replay(method.sampler, capacity=64, batch_size=4)
    config = LoopConfig(steps=60, warmup=40, eval_every=20, eval_episodes=2, inspect=0)
    seeds = over_seeds(make_program(task, agent, replay, config))
    keys = jax.vmap(jax.random.key)(jnp.arange(3))
    together, _ = seeds.chunk(seeds.init(keys), jnp.int32(20))
    alone, _ = seeds.chunk(seeds.init(keys[1:2]), jnp.int32(20))
    for one, other in zip(
        jax.tree.leaves(together.agent.params), jax.tree.leaves(alone.agent.params), strict=True
    ):
        np.testing.assert_allclose(one[1], other[0], rtol=1e-5, atol=1e-6)


def test_incompatible_options_and_objectives_are_refused():
    with refused("R2D2", "Continuous"):
        r2d2(R2D2Config(), Continuous(1))
    with refused("memory", "0"):
        R2D2Config(memory=0)
    with refused("R2D2", "candidates"):
        r2d2(R2D2Config(), Discrete(2), laber.method().objective)
    for method in (la3p, sil):
        with refused("R2D2", "sequences", "roles"):
            r2d2(R2D2Config(), Discrete(2), method.method().objective)
    with refused("R2D2", "density"):
        r2d2(R2D2Config(), Discrete(2), refer.method().objective)


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


def test_image_observations_have_a_torso():
    agent = r2d2(R2D2Config(hidden=(8,), memory=4), Discrete(2))
    image = jax.ShapeDtypeStruct((3, 4, 1), jnp.uint8)
    state = jax.eval_shape(agent.init, jax.random.key(0), image, jnp.zeros((), jnp.int32))
    assert state.params["params"]["encoder"]["Torso_0"]["Dense_0"]["kernel"].shape == (9, 16)
