"""Remember and forget for experience replay, ReF-ER (Novati & Koumoutsakos 2019).

The memory holds whole episodes. Steps whose policy has since become too different from the one
that acted (far-policy steps) give no gradient but a pull back towards the behaviour, and episodes
with many of them are forgotten first. For agents that learn from returns, the memory also keeps
Retrace's estimates.
"""

import dataclasses
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from jaxreplay import ring as ring_
from jaxreplay._internal import buffer, counters, numerics
from jaxreplay._internal.buffer import Buffer
from jaxreplay.methods.parts import estimates
from jaxreplay.methods.parts.estimates import Estimates
from jaxreplay.methods.parts.forgetting import choose_forgotten
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option, takes_own_config
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import (
    IGNORED,
    LOG_RATIO_LIMIT,
    Array,
    Draw,
    Provision,
    Requirements,
    Sample,
    Tree,
    Trust,
    get_field,
)

_PAPER = "Novati & Koumoutsakos 2019"
_RUNNING, _FINISHED, _FORGOTTEN = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class ReFERConfig(Config):
    """Hyperparameters of ReF-ER."""

    clip: float = option(
        4.0,
        "C: near-policy steps have an importance ratio in (1 / (1 + C), 1 + C)",
        f"{_PAPER}, Tab. 1",
        above=0,
    )
    anneal: float = option(
        5e-7,
        "C shrinks as 1 / (1 + this * gradient steps); 0 keeps it",
        f"{_PAPER}, Eq. 10",
        at_least=0,
    )
    target: float = option(
        0.1, "D: share of far-policy steps aimed at", f"{_PAPER}, Tab. 1", at_least=0, at_most=1
    )
    beta: float = option(
        0.2,
        "initial weight of the agent's gradient against the KL penalty's",
        at_least=0,
        at_most=1,
    )
    beta_rate: float = option(
        1e-4, "step size of beta, per gradient step", f"{_PAPER}, Eq. 4", at_least=0, at_most=1
    )
    reject: bool = option(True, "far-policy steps give no gradient; false: plain replay")
    penalise: bool = option(True, "KL penalty with adaptive weight; false: none, beta stays 1")
    forget: Literal["far", "oldest"] = option(
        "far", "episodes forgotten first: the most far-policy, or the oldest", f"{_PAPER}, Alg. 1"
    )
    direction: Literal["behaviour", "policy"] = option(
        "behaviour",
        "the KL divergence's first argument: KL(behaviour || policy), or the authors' code's",
        f"{_PAPER}, Eq. 3",
    )
    returns: bool = option(False, "keep Retrace's estimates, for agents that learn from returns")
    refresh_every: int | None = option(
        None,
        "rows between two passes over the memory (returns, forgetting), at most half the ring's; "
        "none: a thousandth of the ring's",
        at_least=1,
    )
    capacity_factor: int = option(
        2,
        "slots of the ring per step remembered, so that old episodes may outlive newer ones",
        at_least=1,
    )

    def check(self) -> None:
        """Refuse a clip that no ratio reaches."""
        if math.log1p(self.clip) >= LOG_RATIO_LIMIT:
            raise ValueError(
                f"clip is {self.clip}: ratios are known up to exp({LOG_RATIO_LIMIT:g}) only, so "
                "that nothing would be far: use less than 1000"
            )


class Aux(NamedTuple):
    """What a batch brings along for the objective, and for agents that learn from returns."""

    beta: Array  # [] float32, weight of the agent's gradient
    log_c_max: Array  # [] float32, |log ratio| from which a step is far
    q_ret: Array | None  # [B] float32, Retrace's estimate of Q(s, a), if returns are kept


class ReFERState(NamedTuple):
    """The memory's book-keeping; an episode's number is its lane's count of them, modulo rows."""

    log_ratio: Buffer  # [C] float32, log pi/mu when last sampled; 0 unless remembered
    episode: Buffer  # [C] int32, where the slot's episode stands in `status` and `start`
    status: Buffer  # [C] int8, of episodes, not slots: running, finished or forgotten
    start: Buffer  # [C] int32, of episodes: rows ever added when they began
    current: Array  # [E] int32, each lane's count of episodes; -1 before the first
    live: Buffer  # [C] bool, whether the slot may be drawn
    order: Buffer  # [C] int32, the live slots, `size` of them
    size: Array  # [] int32, steps that may be drawn: n_obs
    far: Array  # [] int32, of these, the far-policy ones: n_far
    log_c_max: Array  # [] float32, |log ratio| from which a step is far, since the latest refresh
    beta: Array  # [] float32
    updates: Array  # [] int32, a clock: calls of update
    forgotten: Array  # [] int32, finished episodes forgotten so far as `forget` has it
    reclaimed: Array  # [] int32, and those given up because the ring overwrites their slots
    estimates: Estimates | None  # None unless returns are kept


def log_c_max(config: ReFERConfig, updates: Array | int) -> Array:
    """Return the log of `c_max = 1 + C / (1 + anneal k)` at gradient step k (Eq. 10)."""
    steps = jnp.asarray(updates, jnp.float32)
    return jnp.log1p(config.clip / (1.0 + config.anneal * steps))


def is_far(log_ratio: Array, log_c_max: Array) -> Array:
    """Tell which steps `[n]` are far-policy: not `1 / c_max < ratio < c_max`."""
    return jnp.abs(log_ratio) >= log_c_max


def next_beta(beta: Array, far_share: Array, target: float, rate: float) -> Array:
    """Return beta after one gradient step (Eq. 4): towards 0 while too many steps are far."""
    return (1.0 - rate) * beta + jnp.where(far_share > target, 0.0, rate)


@dataclasses.dataclass(frozen=True)
class ReFER(Sampler):
    """Samples uniformly from the steps of the finished episodes that are remembered.

    The replay's capacity is the number N of steps remembered; the ring has `capacity_factor` times
    as many slots. Every `refresh_every` steps the memory is refreshed: episodes that have ended
    since enter it, others are forgotten, and c_max is annealed, so that the far-policy steps are
    counted exactly in between. Until an episode has ended, steps of running ones are drawn.

    Feedback is `log_ratio` and, to keep returns, `value`, `advantage` and `next_value` (and
    `reward_scale`, if the agent scales rewards). Transitions must be single steps.
    """

    config: ReFERConfig = ReFERConfig()

    @property
    def requires(self) -> Requirements:
        of_returns = estimates.FEEDBACK if self.config.returns else frozenset()
        read = {"first", "last"} | ({"reward", "discount"} if self.config.returns else set())
        return Requirements(
            feedback=of_returns | {"log_ratio"},
            feedback_of_new=of_returns,
            single_steps=True,
            new_steps=True,
            whole_episodes=True,
            transition_fields=frozenset(read),
        )

    @property
    def provides(self) -> frozenset[Provision]:
        return frozenset({"returns"} if self.config.returns else ())

    @property
    def is_uniform(self) -> bool:
        return True

    @property
    def capacity_factor(self) -> int:
        return self.config.capacity_factor

    def init(self, key: Array, ring: Ring) -> ReFERState:
        slots, zero = jnp.zeros(ring.capacity, jnp.int32), jnp.zeros((), jnp.int32)
        return ReFERState(
            log_ratio=jnp.zeros(ring.capacity, jnp.float32),
            episode=slots,
            status=slots.astype(jnp.int8),
            start=slots,
            current=jnp.full(ring.num_envs, -1, jnp.int32),
            live=jnp.zeros(ring.capacity, bool),
            order=slots,
            size=zero,
            far=zero,
            log_c_max=jnp.asarray(log_c_max(self.config, 0), jnp.float32),
            beta=jnp.asarray(self.config.beta if self.config.penalise else 1.0, jnp.float32),
            updates=zero,
            forgotten=zero,
            reclaimed=zero,
            estimates=estimates.init(ring) if self.config.returns else None,
        )

    def add(
        self, state: ReFERState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> ReFERState:
        """Insert new steps into their episodes, and refresh the memory if it is due."""
        # An episode may have been left, for instance where a loop was stopped and resumed.
        left = get_field(transition, "first") & (state.current >= 0)
        state = _leave(state, ring, left, (slots - ring.num_envs) % ring.capacity)
        state = _insert(state, ring, slots, transition)
        if state.estimates is not None:
            known = estimates.add(state.estimates, slots, transition, feedback)
            state = state._replace(estimates=known)
        due = ring_.is_due(ring, _refresh_every(self.config, ring))
        if not isinstance(due, Tracer):  # outside of jit, which would compile the branches again
            return _refresh_compiled(self.config, state, ring) if due else state
        return jax.lax.cond(due, lambda s: _refresh(self.config, s, ring), lambda s: s, state)

    def sample(self, state: ReFERState, ring: Ring, key: Array, batch_size: int) -> Draw:
        # Before the first refresh that finds something to remember, everything stored will do.
        size = jnp.where(state.size > 0, state.size, jnp.maximum(ring_.size(ring), 1))
        number = numerics.integers(key, (batch_size,), size)
        indices = jnp.where(state.size > 0, state.order[number], number)
        q_ret = None
        if state.estimates is not None:
            q_ret = estimates.returns_of(state.estimates, indices)
        aux = Aux(state.beta, state.log_c_max, q_ret)
        ones = jnp.ones(batch_size, jnp.float32)
        return Draw(indices, ones, aux, ones / size)

    def update(
        self, state: ReFERState, ring: Ring, sample: Sample, **feedback: Array
    ) -> ReFERState:
        """Store the importance ratios of a batch, count the far-policy steps, and adapt beta."""
        config = self.config
        live = buffer.read_or(state.live, sample.indices, False)
        slots = jnp.where(live, sample.indices, IGNORED)
        log_ratio = jnp.clip(feedback["log_ratio"], -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        ratios, before = buffer.modify(state.log_ratio, slots, log_ratio)
        if state.estimates is not None:
            state = state._replace(estimates=estimates.update(state.estimates, slots, feedback))
        # Read again: of a slot that is in the batch twice, the ring keeps one ratio.
        after = buffer.read_or(ratios, slots, 0.0)
        change = is_far(after, state.log_c_max).astype(jnp.int32) - is_far(before, state.log_c_max)
        changes = jnp.where(_first_of_its_kind(slots), change, 0)
        far = state.far + changes.sum(dtype=jnp.int32)
        beta = state.beta
        if config.penalise:
            share = far / jnp.maximum(state.size, 1)
            beta = next_beta(beta, share.astype(jnp.float32), config.target, config.beta_rate)
        updates = counters.increment(state.updates)
        return state._replace(log_ratio=ratios, far=far, beta=beta, updates=updates)

    def end_episodes(self, state: ReFERState, ring: Ring) -> ReFERState:
        lanes = jnp.arange(ring.num_envs, dtype=jnp.int32)
        return _leave(state, ring, state.current >= 0, ring_.recent(ring, lanes))

    def probability(self, state: ReFERState, ring: Ring, slots: Array, batch_size: int) -> Array:
        live = buffer.read_or(state.live, slots, False)
        share = 1.0 / jnp.maximum(state.size, 1).astype(jnp.float32)
        known = jnp.where(live, share, 0.0)
        return jnp.where(state.size > 0, known, ring_.even_probability(ring, slots))

    def metrics(self, state: ReFERState, ring: Ring) -> dict[str, Array]:
        return {
            "far_share": state.far / jnp.maximum(state.size, 1),
            "beta": state.beta,
            "c_max": jnp.exp(state.log_c_max),
            "remembered": state.size.astype(jnp.float32),
            "forgotten_episodes": state.forgotten.astype(jnp.float32),
            "reclaimed_episodes": state.reclaimed.astype(jnp.float32),
        }


@takes_own_config
def sampler(config: ReFERConfig = ReFERConfig()) -> ReFER:
    """Return ReF-ER's sampler (Novati & Koumoutsakos 2019, Alg. 1)."""
    return ReFER(config)


@takes_own_config
def objective(config: ReFERConfig = ReFERConfig()) -> Objective:
    """Make ReF-ER's objective (Eq. 3): near-policy steps alone give a gradient.

    The actor's loss becomes `beta * near * loss + (1 - beta) * KL`; the critic's `near * loss`,
    without beta, as the authors do with a critic of its own.
    """

    def near(loss: Array, sample: Sample, trust: Trust | None) -> Array:
        if trust is None:
            raise ValueError("ReF-ER needs an agent whose policy has a density")
        if not config.reject:
            return loss
        return jnp.where(is_far(trust.log_ratio, sample.aux.log_c_max), 0.0, loss)

    def critic(loss: Array, sample: Sample, trust: Trust | None) -> Array:
        return near(loss, sample, trust).mean()

    def actor(loss: Array, sample: Sample, trust: Trust | None) -> Array:
        loss = near(loss, sample, trust)
        if not config.penalise or trust is None:
            return loss.mean()
        beta = sample.aux.beta
        kl = trust.kl if config.direction == "behaviour" else trust.reverse_kl
        return (beta * loss + (1.0 - beta) * kl).mean()

    return Objective(error=None, critic=critic, actor=actor, requires=Requirements(density=True))


@takes_own_config
def method(config: ReFERConfig = ReFERConfig()) -> Method:
    """Return ReF-ER: its sampler and its objective."""
    return Method(sampler(config), objective(config))


def _leave(state: ReFERState, ring: Ring, left: Array, newest: Array) -> ReFERState:
    """Finish the running episodes of the lanes `left` `[E]`, unless they are forgotten already.

    Their last steps are at `newest` `[E]`.
    """
    running = _episode_of(state.current, ring)
    finished = jnp.maximum(state.status[running], jnp.int8(_FINISHED))
    running = jnp.where(left, running, IGNORED)
    state = state._replace(status=buffer.write(state.status, running, finished))
    if state.estimates is None:
        return state
    ended = estimates.end(state.estimates, jnp.where(left, newest, IGNORED))
    return state._replace(estimates=ended)


def _insert(state: ReFERState, ring: Ring, slots: Array, transition: Tree) -> ReFERState:
    begins = get_field(transition, "first") | (state.current < 0)
    later = counters.increment(state.current, counters.rewind(ring_.rows(ring)))
    current = jnp.where(begins, later, state.current)
    episode = _episode_of(current, ring)
    begun = jnp.where(begins, episode, IGNORED)
    status = jnp.where(get_field(transition, "last"), _FINISHED, _RUNNING).astype(jnp.int8)
    now = jnp.broadcast_to(ring.rows_added, slots.shape)
    return state._replace(
        log_ratio=buffer.write(state.log_ratio, slots, jnp.zeros(slots.shape)),
        episode=buffer.write(state.episode, slots, episode),
        status=buffer.write(state.status, episode, status),
        start=buffer.write(state.start, begun, now),
        current=current,
    )


def _episode_of(current: Array, ring: Ring) -> Array:
    """Return where the episodes that each lane is in, by its count `[E]`, stand in `status`."""
    return current % ring_.rows(ring) * ring.num_envs + jnp.arange(ring.num_envs)


def _refresh_every(config: ReFERConfig, ring: Ring) -> int:
    rows = ring_.rows(ring)
    return min(config.refresh_every or max(1, rows // 1000), max(1, rows // 2))


def _refresh(config: ReFERConfig, state: ReFERState, ring: Ring) -> ReFERState:
    state = _remember(config, state, ring)
    if state.estimates is None:
        return state
    return state._replace(estimates=estimates.refresh(state.estimates, state.log_ratio, ring))


_refresh_compiled = jax.jit(_refresh, static_argnums=0)


def _remember(config: ReFERConfig, state: ReFERState, ring: Ring) -> ReFERState:
    """Forget episodes as needed, list what is left, and count it."""
    # Episodes whose beginning will be overwritten before the next refresh are given up now.
    kept_rows = ring_.rows(ring) - _refresh_every(config, ring)
    reclaimed = (state.status == _FINISHED) & (ring_.since(ring, state.start) >= kept_rows)
    state = state._replace(status=jnp.where(reclaimed, jnp.int8(_FORGOTTEN), state.status))
    staying = jnp.arange(ring.capacity) < ring_.size(ring)
    staying &= ring_.ages(ring) < kept_rows
    of_slot = state.status[state.episode]
    candidate = staying & (of_slot == _FINISHED)
    threshold = log_c_max(config, state.updates)
    going = _going(config, state, ring, candidate, is_far(state.log_ratio, threshold))
    live = candidate & ~going[state.episode]
    running = staying & (of_slot == _RUNNING)
    live = jnp.where(live.sum(dtype=jnp.int32) > 0, live, running)
    log_ratio = jnp.where(live, state.log_ratio, 0.0)
    counts = going.sum(dtype=jnp.int32), reclaimed.sum(dtype=jnp.int32)
    going = buffer.after(buffer.fence(counts), going)
    return state._replace(
        forgotten=counters.saturating_add(state.forgotten, counts[0]),
        reclaimed=counters.saturating_add(state.reclaimed, counts[1]),
        status=jnp.where(going, jnp.int8(_FORGOTTEN), state.status),
        log_ratio=log_ratio,
        live=live,
        order=jnp.nonzero(live, size=ring.capacity, fill_value=0)[0].astype(jnp.int32),
        size=live.sum(dtype=jnp.int32),
        far=is_far(log_ratio, threshold).sum(dtype=jnp.int32),
        log_c_max=threshold,
    )


def _going(
    config: ReFERConfig, state: ReFERState, ring: Ring, candidate: Array, far: Array
) -> Array:
    """Choose the episodes `[C]` to be forgotten; `candidate` and `far` `[C]` are of slots."""
    of_slots = jnp.stack([candidate, candidate & far], 1).astype(jnp.int32)
    counts = jnp.zeros((ring.capacity, 2), jnp.int32).at[state.episode].add(of_slots)
    steps, far_steps = counts[:, 0], counts[:, 1]
    share = far_steps / jnp.maximum(steps, 1)
    lane = jnp.arange(ring.capacity) % ring.num_envs
    return choose_forgotten(
        share if config.forget == "far" else jnp.zeros_like(share),
        steps,
        ring_.since(ring, state.start) * ring.num_envs + lane,
        ring.capacity // config.capacity_factor,
    )


def _first_of_its_kind(slots: Array) -> Array:
    """Tell of every row `[B]` whether no earlier one has the same slot."""
    row = jnp.arange(slots.size)
    # All pairs: for a batch, several times faster than sorting it.
    return ~((slots[:, None] == slots) & (row[:, None] > row)).any(axis=1)
