"""Experience replay optimisation, ERO (Zha, Lai, Zhou & Hu 2019)."""

import dataclasses
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from jaxreplay import buffer, counters, numerics, objectives, sum_tree
from jaxreplay import ring as ring_
from jaxreplay.buffer import Buffer
from jaxreplay.loops import if_finite, varying
from jaxreplay.methods import options
from jaxreplay.objectives import LossName
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.sum_tree import SumTree
from jaxreplay.types import Array, Draw, Requirements, Sample, Tree, get_field

_PAPER = "Zha et al. 2019"
# Transitions are scored in chunks to limit activation memory and to skip empty slots.
_CHUNK = 4_096
_LEAST = 1e-6  # probabilities are clipped to [1e-6, 1 - 1e-6] before the logarithm


@dataclasses.dataclass(frozen=True)
class EROConfig(Config):
    """Hyperparameters of ERO."""

    hidden: tuple[int, ...] = option(
        (64, 64), "hidden layer sizes of the replay policy", _PAPER, at_least=1
    )
    learning_rate: float = option(1e-4, "Adam learning rate of the replay policy", _PAPER, above=0)
    batch_size: int = option(64, "transitions per update of the replay policy", _PAPER, at_least=1)
    loss: LossName = option("agent", options.LOSS)


class EROState(NamedTuple):
    """The replay policy, its input features, and the subset of transitions to sample from."""

    params: Any
    opt_state: optax.OptState
    chosen: SumTree  # tree leaves [C] float32: 1 in the subset, 0 otherwise
    reward: Buffer  # [R, 128] float32, rewards of the stored transitions (`buffer.in_rows`)
    td_error: Buffer  # [R, 128] float32, TD errors when last replayed; initially 0
    has_observed: Array  # [] bool, whether `observe_return` has been called
    episode_return: Array  # [] float32, episode return at the latest call to `observe_return`
    replay_reward: Array  # [] float32, change in `episode_return` at that call
    learned: Array  # [] int32, number of gradient steps of the replay policy


class ReplayPolicy(nn.Module):
    """Maps features `[n, d]` of n transitions to logits `[n]` of keeping them in the subset."""

    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, features: Array) -> Array:
        x = features
        for size in self.hidden:
            x = nn.relu(nn.Dense(size)(x))
        return nn.Dense(1)(x)[:, 0]


def log_likelihood(logits: Array, chosen: Array) -> Array:
    """Return the log likelihood `[]` of a subset under the policy (Zha et al. 2019, Eq. 5).

    The subset contains each transition independently, with the probability `sigmoid(logit)`.

    Args:
      logits: `[n]` float32; probabilities are clipped to [1e-6, 1 - 1e-6].
      chosen: `[n]` float32, 1 for transitions in the subset, 0 otherwise.
    """
    keep = jnp.clip(jax.nn.sigmoid(logits), _LEAST, 1.0 - _LEAST)
    return (chosen * jnp.log(keep) + (1.0 - chosen) * jnp.log1p(-keep)).sum()


@dataclasses.dataclass(frozen=True)
class ERO(Sampler):
    """Samples uniformly from a subset of the buffer selected by a learned policy (Zha et al. 2019).

    This replay policy keeps each transition with a probability that depends on its reward, its
    latest TD error (both divided by their standard deviations over the buffer, then squashed by
    tanh) and its insertion time. After every training episode, the replay policy takes one
    REINFORCE step on transitions sampled uniformly from the buffer, and selects a new subset. Its
    reward is the change in the episode return since the previous episode (the paper averages over
    recent episodes). New transitions always belong to the subset. If the subset is smaller than a
    batch, transitions are sampled from the whole buffer.
    """

    needs_whole = "its replay policy is one network, which learns from the whole replay"

    config: EROConfig = EROConfig()

    @property
    def requires(self) -> Requirements:
        return Requirements(
            feedback=frozenset({"td_error"}),
            episode_returns="training",
            transition_fields=frozenset({"reward"}),
        )

    def init(self, key: Array, ring: Ring) -> EROState:
        params = ReplayPolicy(self.config.hidden).init(key, jnp.zeros((1, 3)))
        empty = buffer.in_rows(jnp.zeros(ring.capacity, jnp.float32))
        return EROState(
            params=params,
            opt_state=_optimiser(self.config).init(params),
            chosen=sum_tree.init(ring.capacity),
            reward=empty,
            td_error=empty,
            has_observed=jnp.zeros((), bool),
            episode_return=jnp.zeros((), jnp.float32),
            replay_reward=jnp.zeros((), jnp.float32),
            learned=jnp.zeros((), jnp.int32),
        )

    def add(
        self, state: EROState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> EROState:
        ones = jnp.ones(slots.shape, jnp.float32)
        return state._replace(
            chosen=sum_tree.set(state.chosen, slots, ones),
            reward=buffer.write_elements(state.reward, slots, get_field(transition, "reward")),
            td_error=buffer.write_elements(state.td_error, slots, 0.0 * ones),
        )

    def sample(self, state: EROState, ring: Ring, key: Array, batch_size: int) -> Draw:
        size = jnp.maximum(ring_.size(ring), 1)
        within = sum_tree.sample(state.chosen, key, batch_size, sampling="iid")
        anywhere = numerics.integers(key, (batch_size,), size)
        count = sum_tree.total(state.chosen)
        enough, ones = count >= batch_size, jnp.ones(batch_size, jnp.float32)
        chance = ones / jnp.where(enough, count, size)
        return Draw(jnp.where(enough, within, anywhere), ones, probability=chance)

    def update(self, state: EROState, ring: Ring, sample: Sample, **feedback: Array) -> EROState:
        written = buffer.write_elements(state.td_error, sample.indices, feedback["td_error"])
        return state._replace(td_error=written)

    def observe_return(
        self, state: EROState, ring: Ring, episode_return: Array, key: Array
    ) -> EROState:
        reward = episode_return - state.episode_return
        counts = state.has_observed & jnp.isfinite(reward)  # at first, no return to compare to
        learned = jax.lax.cond(
            counts, lambda: _learn(self.config, state, ring, reward, key), lambda: state
        )
        return learned._replace(
            has_observed=jnp.ones((), bool),
            episode_return=episode_return,
            replay_reward=jnp.where(counts, reward, 0.0),
        )

    def probability(self, state: EROState, ring: Ring, slots: Array, batch_size: int) -> Array:
        count = sum_tree.total(state.chosen)
        within = sum_tree.get(state.chosen, slots) / jnp.maximum(count, 1.0)
        return jnp.where(count >= batch_size, within, ring_.even_probability(ring, slots))

    def metrics(self, state: EROState, ring: Ring) -> dict[str, Array]:
        share = sum_tree.total(state.chosen) / jnp.maximum(ring_.size(ring), 1)
        return {
            "subset": share,
            "replay_reward": state.replay_reward,
            "sampler_updates": state.learned.astype(jnp.float32),
        }


sampler = ERO


def method(config: EROConfig = EROConfig()) -> Method:
    """Return ERO: the sampler, and an objective that averages losses.

    The training loop must pass the returns of training episodes to `Replay.observe_return`.
    """
    return Method(sampler(config), objectives.plain(objectives.named(config.loss)))


def _optimiser(config: EROConfig) -> optax.GradientTransformation:
    return if_finite(optax.adam(config.learning_rate))


def _learn(config: EROConfig, state: EROState, ring: Ring, reward: Array, key: Array) -> EROState:
    """Update the replay policy with one REINFORCE step, and select a new subset."""
    key_batch, key_choice = jax.random.split(key)
    features = _features(state, ring)
    size = jnp.maximum(ring_.size(ring), 1)
    slots = numerics.integers(key_batch, (config.batch_size,), size)

    def loss(params: Any) -> Array:
        logits = _logits(config, params, features[slots])
        return -reward * log_likelihood(logits, sum_tree.get(state.chosen, slots))

    steps, opt_state = _optimiser(config).update(jax.grad(loss)(state.params), state.opt_state)
    # Adam's momentum would change the parameters even if the reward is 0.
    params, opt_state = jax.tree.map(
        lambda new, old: jnp.where(reward != 0, new, old),
        (optax.apply_updates(state.params, steps), opt_state),
        (state.params, state.opt_state),
    )
    chosen = sum_tree.rebuild(state.chosen, _choose(config, params, features, ring, key_choice))
    learned = counters.saturating_add(state.learned, (reward != 0) & opt_state.finite)
    return state._replace(params=params, opt_state=opt_state, chosen=chosen, learned=learned)


def _choose(config: EROConfig, params: Any, features: Array, ring: Ring, key: Array) -> Array:
    """Sample a subset, and return it as `[C]` float32: 1 for slots in the subset, 0 otherwise."""
    chunk = min(_CHUNK, ring.capacity)

    def score(number: Array, logits: Array) -> Array:
        start = jnp.minimum(number * chunk, ring.capacity - chunk)
        part = jax.lax.dynamic_slice_in_dim(features, start, chunk)
        return jax.lax.dynamic_update_slice_in_dim(
            logits, _logits(config, params, part), start, axis=0
        )

    size = ring_.size(ring)
    chunks = (size + chunk - 1) // chunk
    none = varying(jnp.zeros(ring.capacity, jnp.float32))
    logits = jax.lax.fori_loop(0, chunks, score, none)
    live = jnp.arange(ring.capacity) < size
    kept = live & jax.random.bernoulli(key, jax.nn.sigmoid(logits))
    return kept.astype(jnp.float32)


def _logits(config: EROConfig, params: Any, features: Array) -> Array:
    return cast(Array, ReplayPolicy(config.hidden).apply(params, features))


def _features(state: EROState, ring: Ring) -> Array:
    """Return the features of all slots, `[C, 3]`: reward, TD error, and time in (0, 1]."""
    slots = jnp.arange(ring.capacity)
    live = slots < ring_.size(ring)

    def squash(values: Array) -> Array:
        values = buffer.of_slots(values, ring.capacity)
        scale = jnp.std(values, where=live)
        return jnp.tanh(values / jnp.where(scale > 0, scale, 1.0))

    time = ring_.time(ring, slots).astype(jnp.float32)
    return jnp.stack([squash(state.reward), squash(state.td_error), time], axis=1)
