"""Variance of the gradient from one batch, by sampler, while DQN learns CartPole.

`python docs/examples/gradient_variance.py` trains DQN with PER. At several times, it computes the
gradients g_i of the loss of all N stored transitions, and from them the exact variance of the mean
of a batch of B independent draws with full importance weights (beta 1), whose expectation is the
mean gradient with every sampler:

* probabilities p: `(sum_i |g_i|^2 / (N^2 p_i) - |mean g|^2) / B`, smallest for p in proportion to
  |g_i| (Katharopoulos & Fleuret 2018).
* LaBER: as above among M uniform candidates, with p in proportion to h_i, the gradient by the
  network's output, plus the variance of the mean of the candidates.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from agents.dqn import DQNConfig, dqn
from agents.networks import QNetwork, apply
from experiments import environments
from jaxreplay import Replay, Transition, ring
from jaxreplay.methods import per
from jaxreplay.objectives import huber

SIZE, BATCH, CANDIDATES, GAMMA = 10_000, 32, 128, 0.99
NAMES = (
    f"uniform, batch {CANDIDATES}", "per", "per, current errors", f"laber, {CANDIDATES} candidates",
    "bound",
)  # fmt: skip
FILL, EVERY, TIMES, SEEDS = 500, 5_000, 4, 8
ENV = environments.make("gymnax/CartPole-v1")
CONFIG = DQNConfig(hidden=(64, 64), epsilon_updates=3_000)
METHOD = per.method()
AGENT = dqn(CONFIG, ENV.action_space, METHOD.objective)
REPLAY = Replay(METHOD.sampler, capacity=SIZE, batch_size=BATCH)
NETWORK = QNetwork(ENV.action_space.n, hidden=CONFIG.hidden)


def interact(carry, key):
    """Take and store one step."""
    state, replay, env, obs = carry
    act, step = jax.random.split(key)
    action = AGENT.act(state, obs[None], act)[0]
    env, next_obs, out = ENV.step(step, env, action[0])
    discount = GAMMA * (1.0 - out.terminated)
    transition = Transition(obs, action[0], out.reward, discount, out.final_obs, False, False)
    replay = REPLAY.add(replay, jax.tree.map(lambda x: jnp.asarray(x)[None], transition))
    return (state, replay, env, next_obs), None


def train_step(carry, key):
    """Take one step, and learn from one batch."""
    keys = jax.random.split(key, 3)
    (state, replay, *rest), _ = interact(carry, keys[0])
    batch = REPLAY.sample(replay, keys[1])
    state, info = AGENT.update(state, batch, keys[2])
    return (state, REPLAY.update(replay, batch, **info.feedback), *rest), None


def laber(square, h, weights, mean, candidates, batch):
    """Return the variance of LaBER's gradient.

    Args:
      square: `[N]` squared norms of the gradients.
      h: `[N]` positive, in proportion to which a batch is drawn from its candidates.
      weights: `[N]` probabilities of the candidates.
      mean: squared norm of the mean gradient.
      candidates: number of candidates M.
      batch: number of transitions B that are drawn from them.
    """
    second = (weights * square).sum()
    between = (second - mean) / candidates
    pairs = (weights * h).sum() * (weights * square / h).sum()  # of two different candidates
    within = second / candidates + (1 - 1 / candidates) * pairs - mean - between
    return within / batch + between


def variances(state, replay):
    """Return the variance of a batch's gradient by sampler, relative to uniform replay."""
    slots = jnp.arange(REPLAY.slots)
    probability = REPLAY.probability(replay, slots)
    stored = probability > 0
    count = stored.sum()
    transitions = ring.gather(replay.ring, slots)
    td = AGENT.feedback(state, transitions, jax.random.key(0))["td_error"]

    def loss(params, obs, action, error):
        q = apply(NETWORK, params, obs[None])[0, action]
        return huber()(error + jax.lax.stop_gradient(q) - q)

    gradients = jax.vmap(jax.grad(loss), (None, 0, 0, 0))(
        state.params, transitions.obs, transitions.action, td
    )
    flat = [x.reshape(len(slots), -1) for x in flatten_dict(gradients).values()]
    square = sum(jnp.where(stored, (x**2).sum(axis=1), 0.0) for x in flat)  # [N]
    mean = sum(((jnp.where(stored[:, None], x, 0.0).sum(axis=0) / count) ** 2).sum() for x in flat)

    def of(p):
        second = jnp.where(p > 0, square / jnp.where(p > 0, p, 1.0), 0.0).sum() / count**2
        return (second - mean) / BATCH

    def proportional(x):
        x = jnp.where(stored, x, 0.0)
        return of(x / x.sum())

    sizes = jnp.clip(jnp.abs(td), 1e-8, 1.0)  # of the Huber loss's gradient by the output
    sizes, weights = jnp.where(stored, sizes, 1.0), stored / count
    uniform = proportional(stored.astype(jnp.float32))
    found = (
        uniform * BATCH / CANDIDATES,
        of(probability),
        proportional((jnp.abs(td) + 1e-6) ** per.PERConfig().alpha),
        laber(square, sizes, weights, mean, CANDIDATES, BATCH),
        proportional(jnp.sqrt(square)),
    )
    return {name: value / uniform for name, value in zip(NAMES, found, strict=True)}


@jax.jit
def run(seed):
    """Return the variances by sampler for one seed, `[times]` each."""
    key_state, key_replay, key_env, key_fill, key = jax.random.split(jax.random.key(seed), 5)
    env, obs = ENV.reset(key_env)
    example = Transition(obs, jnp.int32(0), 0.0, 0.0, obs, False, False)
    replay = REPLAY.init(key_replay, jax.tree.map(jnp.asarray, example))
    carry = (AGENT.init(key_state, obs, jnp.int32(0)), replay, env, obs)
    carry = jax.lax.scan(interact, carry, jax.random.split(key_fill, FILL))[0]

    def until(carry, key):
        carry = jax.lax.scan(train_step, carry, jax.random.split(key, EVERY))[0]
        return carry, variances(*carry[:2])

    return jax.lax.scan(until, carry, jax.random.split(key, TIMES))[1]


if __name__ == "__main__":
    runs = [jax.device_get(run(seed)) for seed in range(SEEDS)]
    print(f"{'median of ' + str(SEEDS) + ' seeds, steps':32}", end="")
    print(*(f"{EVERY * (n + 1):>7,}" for n in range(TIMES)))
    for name in NAMES:
        medians = np.median([found[name] for found in runs], axis=0)
        print(f"{name:32}", *(f"{value:7.2f}" for value in medians))
