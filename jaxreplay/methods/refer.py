"""Remember and forget for experience replay, ReF-ER (Novati & Koumoutsakos 2019).

The memory holds whole episodes. Steps whose policy has since become too different from the one
that acted (far-policy steps) give no gradient but a pull back towards the behaviour, and episodes
with many of them are forgotten first. For agents that learn from returns, the memory also keeps
Retrace's estimates.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxreplay import ring as ring_
from jaxreplay._internal import checks
from jaxreplay._internal import random_bits as draws
from jaxreplay.methods.parts import estimates
from jaxreplay.methods.parts.estimates import Estimates
from jaxreplay.methods.parts.forgetting import to_forget
from jaxreplay.option import option
from jaxreplay.requirements import Requirements
from jaxreplay.ring import Ring
from jaxreplay.types import (
    LOG_RATIO_LIMIT,
    Array,
    Draw,
    Method,
    Objective,
    Sample,
    Sampler,
    Transition,
    Trust,
    even_probability,
)

FORGET = ("far", "oldest")
DIRECTIONS = ("behaviour", "policy")
_PAPER = "Novati & Koumoutsakos 2019"
_RUNNING, _FINISHED, _FORGOTTEN = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class ReFERConfig:
    """Hyperparameters of ReF-ER."""

    clip: float = option(
        4.0,
        "C: near-policy steps have an importance ratio in (1 / (1 + C), 1 + C)",
        f"{_PAPER}, Tab. 1",
    )
    anneal: float = option(
        5e-7, "C shrinks as 1 / (1 + this * gradient steps); 0 keeps it", f"{_PAPER}, Eq. 10"
    )
    target: float = option(0.1, "D: share of far-policy steps aimed at", f"{_PAPER}, Tab. 1")
    beta: float = option(0.2, "initial weight of the agent's gradient against the KL penalty's")
    beta_rate: float = option(1e-4, "step size of beta, per gradient step", f"{_PAPER}, Eq. 4")
    reject: bool = option(True, "far-policy steps give no gradient; false: plain replay")
    penalise: bool = option(True, "KL penalty with adaptive weight; false: none, beta stays 1")
    forget: str = option(
        "far", "episodes forgotten first: the most far-policy, or the oldest", f"{_PAPER}, Alg. 1",
        FORGET,
    )  # fmt: skip
    direction: str = option(
        "behaviour",
        "the KL divergence's first argument: KL(behaviour || policy), or the authors' code's",
        f"{_PAPER}, Eq. 3",
        DIRECTIONS,
    )
    returns: bool = option(False, "keep Retrace's estimates, for agents that learn from returns")
    sweep_every: int | None = option(
        None,
        "rows between two sweeps of the memory (returns, forgetting), at most half the ring's; "
        "none: a thousandth of the ring's",
    )
    capacity_factor: int = option(
        2, "slots of the ring per step remembered, so that old episodes may outlive newer ones"
    )

    def __post_init__(self) -> None:
        checks.check_positive("clip", self.clip)
        if math.log1p(self.clip) >= LOG_RATIO_LIMIT:
            raise ValueError(
                f"clip is {self.clip}: ratios are known up to exp({LOG_RATIO_LIMIT:g}) only, so "
                "that nothing would be far: use less than 1000"
            )
        checks.check_not_negative("anneal", self.anneal)
        checks.check_unit("target", self.target)
        checks.check_unit("beta", self.beta)
        checks.check_unit("beta_rate", self.beta_rate)
        checks.check_choice("forget", self.forget, FORGET)
        checks.check_choice("direction", self.direction, DIRECTIONS)
        if self.sweep_every is not None:
            checks.check_at_least("sweep_every", self.sweep_every, 1)
        checks.check_at_least("capacity_factor", self.capacity_factor, 1)


class Aux(NamedTuple):
    """What a batch brings along for the objective, and for agents that learn from returns."""

    beta: Array  # [] float32, weight of the agent's gradient
    log_c_max: Array  # [] float32, |log ratio| from which a step is far
    q_ret: Array | tuple[()]  # [B] float32, Retrace's estimate of Q(s, a); () if none are kept


@struct.dataclass
class ReFERState:
    """The memory's book-keeping; an episode's number is its lane's count of them, modulo rows."""

    log_ratio: Array  # [C] float32, log pi/mu when last sampled; 0 unless remembered
    episode: Array  # [C] int32, where the slot's episode stands in `status` and `start`
    status: Array  # [C] int8, of episodes, not slots: running, finished or forgotten
    start: Array  # [C] int32, of episodes: rows ever added when they began
    current: Array  # [E] int32, each lane's count of episodes; -1 before the first
    live: Array  # [C] bool, whether the slot may be drawn
    order: Array  # [C] int32, the live slots, `size` of them
    size: Array  # [] int32, steps that may be drawn: n_obs
    far: Array  # [] int32, of these, the far-policy ones: n_far
    log_c_max: Array  # [] float32, |log ratio| from which a step is far, since the latest sweep
    beta: Array  # [] float32
    updates: Array  # [] int32, a clock: calls of update
    estimates: Estimates | tuple[()]  # () unless returns are kept


def log_c_max(config: ReFERConfig, updates: Array | int) -> Array:
    """Return the log of `c_max = 1 + C / (1 + anneal k)` at gradient step k (Eq. 10)."""
    return jnp.log1p(config.clip / (1.0 + config.anneal * updates))


def is_far(log_ratio: Array, log_c_max: Array) -> Array:
    """Tell which steps `[n]` are far-policy: not `1 / c_max < ratio < c_max`."""
    return jnp.abs(log_ratio) >= log_c_max


def next_beta(beta: Array, far_share: Array, target: float, rate: float) -> Array:
    """Return beta after one gradient step (Eq. 4): towards 0 while too many steps are far."""
    return (1.0 - rate) * beta + jnp.where(far_share > target, 0.0, rate)


def sampler(config: ReFERConfig = ReFERConfig()) -> Sampler:
    """Make ReF-ER's sampler: uniform over the steps of the finished episodes it remembers.

    The replay's capacity is the number N of steps remembered; the ring has `capacity_factor` times
    as many slots. An episode enters the memory, and others are forgotten for it, at the first
    sweep after its end; until one has ended, the steps of the running ones are drawn. c_max, too,
    is annealed from sweep to sweep, so that the far-policy steps are counted exactly in between.

    Feedback is `log_ratio` and, to keep returns, `value`, `advantage` and `next_value` (and
    `reward_scale`, if the agent scales rewards). Transitions must be single steps.
    """

    def every(ring: Ring) -> int:
        rows = ring.capacity // ring.num_envs
        return min(config.sweep_every or max(1, rows // 1000), max(1, rows // 2))

    def init(key: Array, ring: Ring) -> ReFERState:
        del key
        slots, zero = jnp.zeros(ring.capacity, jnp.int32), jnp.zeros((), jnp.int32)
        numbers = jnp.zeros(ring.capacity, jnp.float32)
        return ReFERState(
            log_ratio=numbers,
            episode=slots,
            status=slots.astype(jnp.int8),
            start=slots,
            current=jnp.full(ring.num_envs, -1, jnp.int32),
            live=jnp.zeros(ring.capacity, bool),
            order=slots,
            size=zero,
            far=zero,
            log_c_max=jnp.asarray(log_c_max(config, 0), jnp.float32),
            beta=jnp.asarray(config.beta if config.penalise else 1.0, jnp.float32),
            updates=zero,
            estimates=estimates.init(ring) if config.returns else (),
        )

    def add(
        state: ReFERState, ring: Ring, slots: Array, transition: Transition, **fresh: Array
    ) -> ReFERState:
        rows = ring.capacity // ring.num_envs
        begins = transition.first | (state.current < 0)
        current = state.current + begins
        episode = current % rows * ring.num_envs + slots % ring.num_envs
        status = jnp.where(transition.last, _FINISHED, _RUNNING).astype(jnp.int8)
        begun = jnp.where(begins, episode, ring.capacity)
        # An episode may have been left, for instance where a loop was stopped and went on.
        left = transition.first & (state.current >= 0)
        before = state.current % rows * ring.num_envs + slots % ring.num_envs
        left_status = jnp.maximum(state.status[before], jnp.int8(_FINISHED))
        state = state.replace(
            status=ring_.write(
                state.status, jnp.where(left, before, ring.capacity), left_status
            )
        )  # fmt: skip
        state = state.replace(
            log_ratio=ring_.write(state.log_ratio, slots, jnp.zeros(slots.shape)),
            episode=ring_.write(state.episode, slots, episode),
            status=ring_.write(state.status, episode, status),
            start=ring_.write(
                state.start, begun, jnp.broadcast_to(ring.rows_added, slots.shape)
            ),
            current=current,
        )  # fmt: skip
        if config.returns:
            ended = jnp.where(left, (slots - ring.num_envs) % ring.capacity, ring.capacity)
            held = estimates.end(state.estimates, ended)
            held = estimates.enter(held, slots, transition, fresh)
            state = state.replace(estimates=held)
        return jax.lax.cond(
            ring.rows_added % every(ring) == 0, lambda s: sweep(s, ring), lambda s: s, state
        )

    def sweep(state: ReFERState, ring: Ring) -> ReFERState:
        state = remember(state, ring)
        if not config.returns:
            return state
        held = estimates.sweep(state.estimates, state.log_ratio, ring)
        return state.replace(estimates=held)

    def remember(state: ReFERState, ring: Ring) -> ReFERState:
        """Forget episodes as needed, list what is left, and count it."""
        every_slot = jnp.arange(ring.capacity)
        # Episodes whose beginning will be overwritten before the next sweep are given up now.
        kept_rows = ring.capacity // ring.num_envs - every(ring)
        reclaimed = (state.status == _FINISHED) & (ring.rows_added - state.start >= kept_rows)
        state = state.replace(status=jnp.where(reclaimed, jnp.int8(_FORGOTTEN), state.status))
        staying = (every_slot < ring_.size(ring)) & (ring_.ages(ring) < kept_rows)
        of_slot = state.status[state.episode]
        candidate = staying & (of_slot == _FINISHED)
        threshold = log_c_max(config, state.updates)
        far = candidate & is_far(state.log_ratio, threshold)
        counts = jnp.zeros((ring.capacity, 2), jnp.int32)
        counts = counts.at[state.episode].add(jnp.stack([candidate, far], 1).astype(jnp.int32))
        steps, far_steps = counts[:, 0], counts[:, 1]
        share = far_steps / jnp.maximum(steps, 1)
        going = to_forget(
            share if config.forget == "far" else jnp.zeros_like(share),
            steps,
            (ring.rows_added - state.start) * ring.num_envs + every_slot % ring.num_envs,
            ring.capacity // config.capacity_factor,
        )
        status = jnp.where(going, jnp.int8(_FORGOTTEN), state.status)
        live = candidate & ~going[state.episode]
        size = live.sum(dtype=jnp.int32)
        running = staying & (of_slot == _RUNNING)
        live = jnp.where(size > 0, live, running)
        log_ratio = jnp.where(live, state.log_ratio, 0.0)
        return state.replace(
            status=status,
            log_ratio=log_ratio,
            live=live,
            order=jnp.nonzero(live, size=ring.capacity, fill_value=0)[0].astype(jnp.int32),
            size=live.sum(dtype=jnp.int32),
            far=is_far(log_ratio, threshold).sum(dtype=jnp.int32),
            log_c_max=threshold,
        )

    def sample(state: ReFERState, ring: Ring, key: Array, batch_size: int) -> Draw:
        # Before the first sweep that finds something to remember, everything stored will do.
        size = jnp.where(state.size > 0, state.size, jnp.maximum(ring_.size(ring), 1))
        number = draws.integers(key, (batch_size,), size)
        indices = jnp.where(state.size > 0, state.order[number], number)
        q_ret = estimates.returns_of(state.estimates, indices) if config.returns else ()
        aux = Aux(state.beta, state.log_c_max, q_ret)
        return Draw(indices, jnp.ones(batch_size, jnp.float32), aux)

    def update(
        state: ReFERState, ring: Ring, sample: Sample, *, log_ratio: Array, **feedback: Array
    ) -> ReFERState:
        live = state.live.at[sample.indices].get(mode="fill", fill_value=False)
        slots = jnp.where(live, sample.indices, ring.capacity)
        log_ratio = jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        before = state.log_ratio.at[slots].get(mode="fill", fill_value=0.0)
        # The write must be seen to follow the read (there is never a NaN), or XLA copies the array.
        log_ratio = jnp.where(jnp.isnan(before), before, log_ratio)
        state = state.replace(log_ratio=ring_.write(state.log_ratio, slots, log_ratio))
        if config.returns:
            state = state.replace(estimates=estimates.see(state.estimates, slots, feedback))
        # Read again: of a slot that is in the batch twice, the ring keeps one ratio.
        after = state.log_ratio.at[slots].get(mode="fill", fill_value=0.0)
        change = is_far(after, state.log_c_max).astype(jnp.int32) - is_far(before, state.log_c_max)
        far = state.far + jnp.where(_first_of_its_kind(slots), change, 0).sum()
        beta = state.beta
        if config.penalise:
            share = far / jnp.maximum(state.size, 1)
            beta = next_beta(beta, share, config.target, config.beta_rate)
        return state.replace(far=far, beta=beta, updates=state.updates + 1)

    def probability(state: ReFERState, ring: Ring, slots: Array, batch_size: int) -> Array:
        live = state.live.at[slots].get(mode="fill", fill_value=False)
        known = jnp.where(live, 1.0 / jnp.maximum(state.size, 1), 0.0)
        return jnp.where(state.size > 0, known, even_probability(state, ring, slots, batch_size))

    def metrics(state: ReFERState, ring: Ring) -> dict[str, Array]:
        del ring
        return {
            "far_share": state.far / jnp.maximum(state.size, 1),
            "beta": state.beta,
            "c_max": jnp.exp(state.log_c_max),
            "remembered": state.size.astype(jnp.float32),
        }

    return Sampler(
        init, add, sample, update, probability=probability, metrics=metrics,
        requires=_requirements(config),
        provides=frozenset({"returns"} if config.returns else ()),
        capacity_factor=config.capacity_factor,
    )  # fmt: skip


def _requirements(config: ReFERConfig) -> Requirements:
    told = estimates.FEEDBACK if config.returns else frozenset()
    read = {"first", "last"} | ({"reward", "discount"} if config.returns else set())
    return Requirements(
        feedback=told | {"log_ratio"},
        feedback_of_new=told,
        single_steps=True,
        whole_episodes=True,
        transition_fields=frozenset(read),
    )


def objective(config: ReFERConfig = ReFERConfig()) -> Objective:
    """Make ReF-ER's objective (Eq. 3): near-policy steps alone give a gradient.

    The actor's loss becomes `beta * near * loss + (1 - beta) * KL`; the critic's `near * loss`,
    without beta, as the authors do with a critic of its own.
    """

    def near(loss: Array, sample: Sample, trust: Trust | None) -> Array:
        if trust is None:
            raise ValueError("ReF-ER needs an agent whose policy has a density: --list shows which")
        if not config.reject:
            return loss
        return jnp.where(is_far(trust.log_ratio, sample.aux.log_c_max), 0.0, loss)

    def critic(loss: Array, sample: Sample, trust: Trust | None) -> Array:
        return near(loss, sample, trust).mean()

    def actor(loss: Array, sample: Sample, trust: Trust | None) -> Array:
        loss = near(loss, sample, trust)
        if not config.penalise:
            return loss.mean()
        beta = sample.aux.beta
        kl = trust.kl if config.direction == "behaviour" else trust.reverse_kl
        return (beta * loss + (1.0 - beta) * kl).mean()

    return Objective(error=None, critic=critic, actor=actor, requires=Requirements(density=True))


def method(config: ReFERConfig = ReFERConfig(), updates: int | None = None) -> Method:
    """Make ReF-ER: its sampler and its objective; `updates` is not used."""
    del updates
    return Method(sampler(config), objective(config))


def _first_of_its_kind(slots: Array) -> Array:
    """Tell of every row `[B]` whether no earlier one has the same slot."""
    row = jnp.arange(slots.size)
    # All pairs: for a batch, several times faster than sorting it.
    return ~((slots[:, None] == slots) & (row[:, None] > row)).any(axis=1)
