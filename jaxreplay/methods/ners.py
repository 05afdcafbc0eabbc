"""Neural experience replay sampler, NERS (Oh, Lee, Shin, Yang & Hwang 2021)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxreplay import objectives, sum_tree
from jaxreplay import ring as ring_
from jaxreplay._internal import checks
from jaxreplay.methods import proportional
from jaxreplay.methods.parts import positions as episodes
from jaxreplay.methods.parts.losses import LOSSES, named_loss
from jaxreplay.methods.parts.positions import Positions
from jaxreplay.methods.parts.score_network import Features, ScoreNetwork
from jaxreplay.methods.proportional import NORMALISATIONS, ProportionalState
from jaxreplay.option import option
from jaxreplay.ring import Ring
from jaxreplay.sum_tree import SAMPLINGS
from jaxreplay.types import Array, Draw, Method, Sample, Sampler, Transition

FEATURES = ("obs", "action", "reward", "next_obs", "time", "td_error", "q_value")
REWARDS = ("evaluation", "training")
GRADIENTS = ("buffer", "none")
CLOCKS = ("run", "episode")
_PAPER = "Oh et al. 2021"
_CODE = "authors' code"


@dataclasses.dataclass(frozen=True)
class NERSConfig:
    """Hyperparameters of NERS; the paper prints none, so most are PER's or the authors' code's."""

    alpha: float = option(0.6, "exponent of the scores, 0 is uniform", "Schaul et al. 2016, Tab. 3")
    beta: float = option(0.4, "initial importance-sampling exponent", "Schaul et al. 2016, Tab. 3")
    beta_end: float = option(
        1.0, "final importance-sampling exponent, reached linearly", "Schaul et al. 2016, Sec. 3.4"
    )
    reward: str = option(
        "evaluation",
        "returns that reward the sampler: of evaluations (NERS) or training episodes (NERS*)",
        f"{_PAPER}, Eq. 6 and Sec. 3.3",
        REWARDS,
    )
    gradient: str = option(
        "buffer",
        "probabilities in the gradient: normalised over the buffer, or bare scores (code)",
        f"{_PAPER}, Eq. 7",
        GRADIENTS,
    )
    features: tuple[str, ...] = option(FEATURES, "what the sampler sees", f"{_PAPER}, Sec. 2.2")
    global_context: bool = option(
        True, "scores see the average of the batch", f"{_PAPER}, Sec. 2.2 and Fig. 4a"
    )
    clock: str = option(
        "run", "time feature: of the run, in (0, 1], or steps in the episode (code)", "", CLOCKS
    )
    squash: bool = option(False, "tanh over all features, not just TD error and Q", _CODE)
    hidden: tuple[int, ...] = option(
        (128, 256, 128, 64), "layers of local and global network", _CODE
    )
    score_hidden: tuple[int, ...] = option((128, 64), "hidden layers of the score network", _CODE)
    learning_rate: float = option(1e-4, "Adam step size of the sampler", _CODE)
    train_size: int = option(256, "replayed transitions in each update of the sampler")
    normalise: str = option(
        "batch", "maximum that importance weights are divided by", _CODE, NORMALISATIONS
    )
    sampling: str = option(
        "stratified",
        "one draw in each of B equal ranges of the total (systematic: at the same place in all)"
        ", or independent draws",
        _CODE,
        SAMPLINGS,
    )
    loss: str = option(
        "agent", "loss of the TD error, weighted; 'agent' takes the agent's own", "", LOSSES
    )

    def __post_init__(self) -> None:
        checks.check_alpha(self.alpha)
        checks.check_unit("beta", self.beta)
        checks.check_unit("beta_end", self.beta_end)
        if not self.features:
            raise ValueError(f"features is empty: name some of {', '.join(FEATURES)}")
        for name in self.features:
            checks.check_choice("features", name, FEATURES)
        for name, choices in (
            ("reward", REWARDS), ("gradient", GRADIENTS), ("clock", CLOCKS),
            ("normalise", NORMALISATIONS), ("sampling", SAMPLINGS),
        ):  # fmt: skip
            checks.check_choice(name, getattr(self, name), choices)
        checks.check_sizes("hidden", self.hidden)
        checks.check_sizes("score_hidden", self.score_hidden)
        checks.check_positive("learning_rate", self.learning_rate)
        checks.check_at_least("train_size", self.train_size, 1)
        named_loss(self.loss)


@struct.dataclass
class Collected:
    """A uniform subset of what was replayed since the latest update of the sampler.

    Every replayed row gets a random ticket; the n smallest stay.
    """

    slots: Array  # [n] int32
    stamps: Array  # [n] int32, what was in the slot then
    tickets: Array  # [n] float32, infinity where there is none


@struct.dataclass
class NERSState:
    """The score network, the scores, and what the network looks at."""

    params: Any
    opt_state: optax.OptState
    priorities: ProportionalState  # leaves are score^alpha
    td_error: Array  # [C] float32, tanh of it when last replayed; 1 before
    q_value: Array  # [C] float32, tanh of the critic's target when last replayed; 1 before
    positions: Positions | None  # within episodes, if they are the time feature
    collected: Collected
    score: Array  # [] float32, return of the policy at the latest call of observe; nan before
    replay_reward: Array  # [] float32, its latest change


def log_probabilities(scores: Array, counted: Array, alpha: float, rest: Array | float) -> Array:
    """Return log p_i `[n]` of scored transitions (Oh et al. 2021, Eq. 1 in Eq. 7).

    `p_i = sigma_i^alpha / (sum_k sigma_k^alpha + rest)`.

    Args:
      scores: `[n]` in (0, 1).
      counted: `[n]` bool, those that the sum runs over: each transition once.
      alpha: exponent.
      rest: `[]`, the mass of all other transitions in the buffer, a constant.
    """
    total = jnp.where(counted, scores**alpha, 0.0).sum() + rest
    return alpha * jnp.log(scores) - jnp.log(total)


def sampler(config: NERSConfig = NERSConfig(), updates: int | None = None) -> Sampler:
    """Make the NERS sampler: a network scores replayed transitions, P(i) ~ score^alpha.

    New transitions have score 1. Each replayed batch is scored anew after the agent's update, as a
    set. Whenever the policy's return is told, the network takes one REINFORCE step that makes what
    was replayed since more likely if the return rose, and less if it fell (Eq. 6 and 7).

    Args:
      config: hyperparameters.
      updates: gradient steps of the run, over which beta moves; None keeps it where it is.
    """
    network = ScoreNetwork(config.hidden, config.score_hidden, config.global_context, config.squash)
    optimiser = optax.adam(config.learning_rate)
    weigh = proportional.importance(config.beta, config.beta_end, updates, config.normalise)

    def init(key: Array, ring: Ring) -> NERSState:
        ones = jnp.ones(ring.capacity, jnp.float32)
        blank = ring_.gather(ring, jnp.zeros(1, jnp.int32))
        scalar = jnp.zeros(1)
        params = network.init(key, _features(config, blank, scalar, scalar, scalar))
        return NERSState(
            params=params,
            opt_state=optimiser.init(params),
            priorities=proportional.init(ring.capacity, track_minimum=config.normalise == "buffer"),
            td_error=ones,
            q_value=ones,
            positions=episodes.init(ring) if config.clock == "episode" else None,
            collected=_nothing(config.train_size),
            score=jnp.full((), jnp.nan, jnp.float32),
            replay_reward=jnp.zeros((), jnp.float32),
        )

    def add(
        state: NERSState, ring: Ring, slots: Array, transition: Transition, **_: Array
    ) -> NERSState:
        del ring
        ones = jnp.ones(slots.shape, jnp.float32)
        positions = state.positions
        if positions is not None:
            positions = episodes.enter(positions, slots, transition.first)
        return state.replace(
            priorities=proportional.enter(state.priorities, slots),
            td_error=ring_.write(state.td_error, slots, ones),
            q_value=ring_.write(state.q_value, slots, ones),
            positions=positions,
        )

    def sample(state: NERSState, ring: Ring, key: Array, batch_size: int) -> Draw:
        key_draw, key_ticket = jax.random.split(key)
        indices, odds = proportional.draw(
            state.priorities, ring, key_draw, batch_size, config.sampling
        )
        return Draw(indices, weigh(odds), notes=jax.random.uniform(key_ticket, (batch_size,)))

    def update(
        state: NERSState,
        ring: Ring,
        sample: Sample,
        *,
        td_error: Array,
        target: Array,
        **_: Array,
    ) -> NERSState:
        slots, valid = sample.indices, sample.indices < ring.capacity
        td_error, q_value = jnp.tanh(td_error), jnp.tanh(target)
        time = when(state, ring, jnp.minimum(slots, ring.capacity - 1))
        features = _features(config, sample.transition, time, td_error, q_value)
        scores = network.apply(state.params, features, valid)
        return state.replace(
            priorities=proportional.write(state.priorities, slots, scores**config.alpha),
            td_error=ring_.write(state.td_error, slots, td_error),
            q_value=ring_.write(state.q_value, slots, q_value),
            collected=_collect(state.collected, sample, valid),
        )

    def when(state: NERSState, ring: Ring, slots: Array) -> Array:
        if state.positions is not None:
            return state.positions.steps[slots].astype(jnp.float32)
        return ring_.stamp(ring, slots) / jnp.maximum(ring.rows_added, 1)

    def observe(state: NERSState, ring: Ring, score: Array, key: Array) -> NERSState:
        del key
        reward = score - state.score  # nan at the first call, which only sets the baseline
        learns = jnp.isfinite(reward) & (reward != 0)
        params, opt_state = jax.lax.cond(
            learns,
            lambda: learn(state, ring, reward),
            lambda: (state.params, state.opt_state),
        )
        return state.replace(
            params=params,
            opt_state=opt_state,
            collected=_nothing(config.train_size),
            score=score,
            replay_reward=jnp.where(jnp.isfinite(reward), reward, 0.0),
        )

    def learn(state: NERSState, ring: Ring, reward: Array) -> tuple[Any, optax.OptState]:
        """Take one REINFORCE step on the collected transitions that are still stored."""
        held = state.collected
        valid = jnp.isfinite(held.tickets) & (ring_.stamp(ring, held.slots) == held.stamps)
        again = jnp.tril((held.slots[:, None] == held.slots) & valid, -1).any(axis=1)
        counted = valid & ~again
        features = _features(
            config,
            ring_.gather(ring, held.slots),
            when(state, ring, held.slots),
            state.td_error[held.slots],
            state.q_value[held.slots],
        )
        tree = state.priorities.tree
        own = jnp.where(counted, sum_tree.get(tree, held.slots), 0.0).sum()
        rest = jnp.maximum(sum_tree.total(tree) - own, 0.0)

        def loss(params: Any) -> Array:
            scores = network.apply(params, features, valid)
            if config.gradient == "buffer":
                terms = log_probabilities(scores, counted, config.alpha, rest)
            else:
                terms = jnp.log(scores + 1e-6) / jnp.maximum(valid.sum(), 1)
            return -reward * jnp.where(valid, terms, 0.0).sum()

        steps, opt_state = optimiser.update(jax.grad(loss)(state.params), state.opt_state)
        return optax.apply_updates(state.params, steps), opt_state

    def probability(state: NERSState, ring: Ring, slots: Array, batch_size: int) -> Array:
        return proportional.probability(state.priorities, ring, slots, batch_size)

    def metrics(state: NERSState, ring: Ring) -> dict[str, Array]:
        own = proportional.metrics(state.priorities, ring)
        return {**own, "replay_reward": state.replay_reward}

    return Sampler(
        init, add, sample, update, observe=observe, probability=probability, metrics=metrics,
        scores=config.reward,
        demands=frozenset({"observations"} if {"obs", "next_obs"} & set(config.features) else ()),
    )  # fmt: skip


def method(config: NERSConfig = NERSConfig(), updates: int | None = None) -> Method:
    """Make NERS: its sampler, and an objective weighted by importance."""
    return Method(sampler(config, updates), objectives.weighted(named_loss(config.loss)))


def _features(
    config: NERSConfig, transition: Transition, time: Array, td_error: Array, q_value: Array
) -> Features:
    """Choose what the network sees; TD error and Q `[m]` are squashed already."""
    rows = len(time)
    columns = {
        "action": transition.action.astype(jnp.float32).reshape(rows, -1),
        "reward": transition.reward[:, None],
        "time": time[:, None],
        "td_error": td_error[:, None],
        "q_value": q_value[:, None],
    }
    chosen = [column for name, column in columns.items() if name in config.features]
    return Features(
        obs=transition.obs if "obs" in config.features else None,
        next_obs=transition.next_obs if "next_obs" in config.features else None,
        scalars=jnp.concatenate(chosen, axis=1) if chosen else jnp.zeros((rows, 0)),
    )


def _nothing(count: int) -> Collected:
    empty = jnp.zeros(count, jnp.int32)
    none = jnp.full(count, jnp.inf, jnp.float32)
    return Collected(empty, jnp.zeros(count, jnp.int32), none)


def _collect(held: Collected, sample: Sample, valid: Array) -> Collected:
    """Offer a batch to the subset; its tickets are the sample's notes."""
    tickets = jnp.concatenate([held.tickets, jnp.where(valid, sample.notes, jnp.inf)])
    slots = jnp.concatenate([held.slots, jnp.where(valid, sample.indices, 0)])
    stamps = jnp.concatenate([held.stamps, sample.stamp])
    kept = jax.lax.top_k(-tickets, held.tickets.size)[1]
    return Collected(slots[kept], stamps[kept], tickets[kept])
