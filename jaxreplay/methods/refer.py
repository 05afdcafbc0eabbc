"""Remember and forget for experience replay, ReF-ER (Novati & Koumoutsakos 2019).

The replay memory consists of whole episodes. A step is far-policy if the probability of its action
differs too much between the current and the behaviour policy. Far-policy steps contribute only a KL
penalty to the gradient, and episodes with the largest share of far-policy steps are forgotten
first. For agents that learn from returns, the memory also stores Retrace estimates of Q.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from jaxreplay import buffer, counters, numerics
from jaxreplay import ring as ring_
from jaxreplay._internal.branches import cond_on_schedule
from jaxreplay._internal.platforms import by_platform
from jaxreplay.buffer import Buffer
from jaxreplay.methods.parts import estimates
from jaxreplay.methods.parts.episodes import choose_forgotten
from jaxreplay.methods.parts.estimates import Estimates
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
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
        "C decays as 1 / (1 + anneal * gradient steps); 0 keeps C constant",
        f"{_PAPER}, Eq. 10",
        at_least=0,
    )
    target: float = option(
        0.1, "D: target share of far-policy steps", f"{_PAPER}, Tab. 1", at_least=0, at_most=1
    )
    beta: float = option(
        0.2,
        "initial weight of the agent's gradient; the KL penalty has weight 1 - beta",
        at_least=0,
        at_most=1,
    )
    beta_rate: float = option(
        1e-4,
        "rate per gradient step at which beta moves towards 0 or 1",
        f"{_PAPER}, Eq. 4",
        at_least=0,
        at_most=1,
    )
    reject: bool = option(True, "mask the losses of far-policy steps; false: use all losses")
    penalise: bool = option(True, "add a KL penalty with an adaptive weight; false: beta is 1")
    forget: Literal["far", "oldest"] = option(
        "far", "episodes to forget first: largest far-policy share, or oldest", f"{_PAPER}, Alg. 1"
    )
    direction: Literal["behaviour", "policy"] = option(
        "behaviour",
        "KL(behaviour || policy), or KL(policy || behaviour) as in the authors' code",
        f"{_PAPER}, Eq. 3",
    )
    returns: bool = option(False, "store Retrace estimates, for agents that learn from returns")
    refresh_every: int | None = option(
        None,
        "steps per environment between memory refreshes (returns, forgetting), at most half of the "
        "ring buffer; none: a thousandth of the ring buffer",
        at_least=1,
    )
    capacity_factor: int = option(
        2,
        "ring buffer slots per remembered step; above 1, old episodes can outlive newer episodes",
        at_least=1,
    )

    def check(self) -> None:
        """Raise ValueError if no importance ratio can reach the far-policy threshold."""
        if math.log1p(self.clip) >= LOG_RATIO_LIMIT:
            raise ValueError(
                f"clip must be below 1000 because importance ratios are clipped to "
                f"exp({LOG_RATIO_LIMIT:g}), got {self.clip}"
            )


class Aux(NamedTuple):
    """Inputs to the objective, and estimated returns for agents that learn from returns."""

    beta: Array  # [] float32, weight of the agent's gradient
    log_c_max: Array  # [] float32, lower bound on |log ratio| of far-policy steps
    q_ret: Array | None  # [B] float32, Retrace's estimate of Q(s, a); None if `returns` is false


class ReFERState(NamedTuple):
    """The steps and episodes in the replay memory.

    Live steps are steps that can be sampled. `status` and `start` have one entry per episode,
    indexed by `episode`.
    """

    log_ratio: Buffer  # [C] float32, log importance ratio when last sampled; 0 if not live
    episode: Buffer  # [C] int32, index of the step's episode in `status` and `start`
    status: Buffer  # [C] int8, whether the episode is running, finished or forgotten
    start: Buffer  # [C] int32, `Ring.steps_added` at the first step of the episode
    current: Array  # [E] int32, number of each environment's episode; -1 before the first
    live: Buffer  # [C] bool, whether the step can be sampled
    order: Buffer  # [C] int32, slots of live steps in the first `size` entries
    size: Array  # [] int32, n_obs: number of live steps
    far: Array  # [] int32, n_far: number of live far-policy steps
    log_c_max: Array  # [] float32, far-policy threshold on |log ratio|, set by a refresh
    beta: Array  # [] float32, weight of the agent's gradient
    updates: Array  # [] int32, number of calls to `update`
    forgotten: Array  # [] int32, number of finished episodes removed from a full memory
    reclaimed: Array  # [] int32, number of finished episodes removed before being overwritten
    estimates: Estimates | None  # None if `returns` is false


def log_c_max(config: ReFERConfig, updates: Array | int) -> Array:
    """Return the log of `c_max = 1 + C / (1 + anneal k)` after k updates, `[]` float32 (Eq. 10)."""
    steps = jnp.asarray(updates, jnp.float32)
    return jnp.log1p(config.clip / (1.0 + config.anneal * steps))


def is_far(log_ratio: Array, log_c_max: Array) -> Array:
    """Return a mask `[n]` of far-policy steps: those that violate `1 / c_max < ratio < c_max`."""
    return jnp.abs(log_ratio) >= log_c_max


def next_beta(beta: Array, far_share: Array, target: float, rate: float) -> Array:
    """Return beta, `[]` float32, after one gradient step (Eq. 4).

    Beta decays towards 0 while the share of far-policy steps (`far_share`) exceeds `target`, and
    rises towards 1 otherwise.
    """
    return (1.0 - rate) * beta + jnp.where(far_share > target, 0.0, rate)


@dataclasses.dataclass(frozen=True)
class ReFER(Sampler):
    """Samples steps uniformly from remembered episodes (Novati & Koumoutsakos 2019, Alg. 1).

    The memory contains up to N steps of finished episodes, where N is the replay capacity; the ring
    buffer has `capacity_factor` times N slots. Every `refresh_every` steps, a refresh adds newly
    finished episodes, forgets episodes if the memory is full, and anneals c_max, the far-policy
    threshold on importance ratios. Because c_max is constant between refreshes, the number of
    far-policy steps is exact. Before the first episode is finished, steps are sampled from running
    episodes.

    The agent must provide `log_ratio` as feedback, and with `returns=True` also `value`,
    `advantage` and `next_value`; `reward_scale` is optional. Transitions must be single steps.
    """

    needs_whole = "its penalty depends on the share of far-policy steps among all transitions"

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
        # An episode may lack a step marked `last`, for example if training was stopped and resumed.
        over = get_field(transition, "first") & (state.current >= 0)
        state = _finish_episodes(state, ring, over, (slots - ring.num_envs) % ring.capacity)
        state = _insert(state, ring, slots, transition)
        if state.estimates is not None:
            added = estimates.add(state.estimates, slots, transition, feedback)
            state = state._replace(estimates=added)
        due = ring_.is_due(ring, _refresh_every(self.config, ring))
        if not isinstance(due, Tracer):  # outside jit, where `cond` would compile at every call
            return _refresh_compiled(self.config, state, ring) if due else state
        return _refresh_when_due(self.config)(due, state, ring)

    def sample(self, state: ReFERState, ring: Ring, key: Array, batch_size: int) -> Draw:
        # Sample from all stored steps until a refresh marks live steps.
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
        config = self.config
        live = buffer.read_or(state.live, sample.indices, False)
        slots = jnp.where(live, sample.indices, IGNORED)
        log_ratio = jnp.clip(feedback["log_ratio"], -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        ratios, before = buffer.modify(state.log_ratio, slots, log_ratio)
        if state.estimates is not None:
            state = state._replace(estimates=estimates.update(state.estimates, slots, feedback))
        # Read the ratios again because only one ratio is stored for duplicate slots.
        after = buffer.read_or(ratios, slots, 0.0)
        change = is_far(after, state.log_c_max).astype(jnp.int32) - is_far(before, state.log_c_max)
        # At typical batch sizes, comparing all pairs is several times faster than sorting.
        again = jnp.tril(slots[:, None] == slots, -1).any(axis=1)
        far = state.far + jnp.where(again, 0, change).sum(dtype=jnp.int32)
        ratios, far = buffer.settle((ratios, far))  # read the ratios before the next write
        beta = state.beta
        if config.penalise:
            share = far / jnp.maximum(state.size, 1)
            beta = next_beta(beta, share.astype(jnp.float32), config.target, config.beta_rate)
        updates = counters.increment(state.updates)
        return state._replace(log_ratio=ratios, far=far, beta=beta, updates=updates)

    def end_episodes(self, state: ReFERState, ring: Ring) -> ReFERState:
        newest = ring_.recent(ring, jnp.arange(ring.num_envs, dtype=jnp.int32))
        return _finish_episodes(state, ring, state.current >= 0, newest)

    def probability(self, state: ReFERState, ring: Ring, slots: Array, batch_size: int) -> Array:
        live = buffer.read_or(state.live, slots, False)
        share = 1.0 / jnp.maximum(state.size, 1).astype(jnp.float32)
        remembered = jnp.where(live, share, 0.0)
        return jnp.where(state.size > 0, remembered, ring_.even_probability(ring, slots))

    def metrics(self, state: ReFERState, ring: Ring) -> dict[str, Array]:
        return {
            "far_share": state.far / jnp.maximum(state.size, 1),
            "beta": state.beta,
            "c_max": jnp.exp(state.log_c_max),
            "remembered": state.size.astype(jnp.float32),
            "forgotten_episodes": state.forgotten.astype(jnp.float32),
            "reclaimed_episodes": state.reclaimed.astype(jnp.float32),
        }


sampler = ReFER


def objective(config: ReFERConfig = ReFERConfig()) -> Objective:
    """Return an objective that masks the losses of far-policy steps, as in ReF-ER.

    The actor's loss is the mean of `beta * near * loss + (1 - beta) * KL` (Novati & Koumoutsakos
    2019, Eq. 3), where `near` is 0 for far-policy steps and 1 otherwise. The critic's loss is the
    mean of `near * loss`, as in the authors' code for separate critics.

    Raises:
      ValueError: If the objective is called by an agent whose policy has no action density.
    """

    def near(loss: Array, sample: Sample, trust: Trust | None) -> Array:
        if trust is None:
            raise ValueError(
                "ReF-ER requires a policy with an action density; use another agent or method"
            )
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


def method(config: ReFERConfig = ReFERConfig()) -> Method:
    """Return ReF-ER, with its sampler and its objective (Novati & Koumoutsakos 2019)."""
    return Method(sampler(config), objective(config))


def _finish_episodes(state: ReFERState, ring: Ring, over: Array, newest: Array) -> ReFERState:
    """Mark the running episodes of environments where `over` `[E]` is True as finished.

    The last steps of these episodes are at slots `newest` `[E]`. Episodes that are already
    forgotten remain forgotten.
    """
    running = _episode_of(state.current, ring)
    finished = jnp.maximum(state.status[running], jnp.int8(_FINISHED))
    running = jnp.where(over, running, IGNORED)
    state = state._replace(status=buffer.write(state.status, running, finished))
    if state.estimates is None:
        return state
    ended = estimates.end(state.estimates, jnp.where(over, newest, IGNORED))
    return state._replace(estimates=ended)


def _insert(state: ReFERState, ring: Ring, slots: Array, transition: Tree) -> ReFERState:
    begins = get_field(transition, "first") | (state.current < 0)
    later = counters.increment(state.current, counters.rewind(ring_.num_steps(ring)))
    current = jnp.where(begins, later, state.current)
    episode = _episode_of(current, ring)
    begun = jnp.where(begins, episode, IGNORED)
    status = jnp.where(get_field(transition, "last"), _FINISHED, _RUNNING).astype(jnp.int8)
    now = jnp.broadcast_to(ring.steps_added, slots.shape)
    return state._replace(
        log_ratio=buffer.write(state.log_ratio, slots, jnp.zeros(slots.shape)),
        episode=buffer.write(state.episode, slots, episode),
        status=buffer.write(state.status, episode, status),
        start=buffer.write(state.start, begun, now),
        current=current,
    )


def _episode_of(current: Array, ring: Ring) -> Array:
    """Return the indices into `status` of the episodes with numbers `current`, both `[E]`."""
    return current % ring_.num_steps(ring) * ring.num_envs + jnp.arange(ring.num_envs)


def _refresh_every(config: ReFERConfig, ring: Ring) -> int:
    rows = ring_.num_steps(ring)
    return min(config.refresh_every or max(1, rows // 1000), max(1, rows // 2))


def _refresh(config: ReFERConfig, state: ReFERState, ring: Ring) -> ReFERState:
    state = _remember(config, state, ring)
    if state.estimates is None:
        return state
    return state._replace(estimates=estimates.refresh(state.estimates, state.log_ratio, ring))


_refresh_compiled = jax.jit(_refresh, static_argnums=0)


@functools.cache
def _refresh_when_due(config: ReFERConfig) -> Callable[[Array, ReFERState, Ring], ReFERState]:
    def branch(due: Array, state: ReFERState, ring: Ring) -> ReFERState:
        return jax.lax.cond(due, lambda s: _refresh(config, s, ring), lambda s: s, state)

    def loop(due: Array, state: ReFERState, ring: Ring) -> ReFERState:
        return cond_on_schedule(due, lambda s: _refresh(config, s, ring), state)

    return by_platform(loop, cpu=branch)  # on CPU, a branch copies nothing and takes less time


def _remember(config: ReFERConfig, state: ReFERState, ring: Ring) -> ReFERState:
    """Forget episodes if the memory is full, then list and count the live steps."""
    # Remove episodes whose steps might be overwritten before the next refresh.
    kept_rows = ring_.num_steps(ring) - _refresh_every(config, ring)
    reclaimed = (state.status == _FINISHED) & (ring_.since(ring, state.start) >= kept_rows)
    state = state._replace(status=jnp.where(reclaimed, jnp.int8(_FORGOTTEN), state.status))
    stored = jnp.arange(ring.capacity) < ring_.size(ring)
    stored &= ring_.ages(ring) < kept_rows
    of_slot = state.status[state.episode]
    candidate = stored & (of_slot == _FINISHED)
    threshold = log_c_max(config, state.updates)
    far = is_far(state.log_ratio, threshold)
    forgotten = _choose_forgotten(config, state, ring, candidate, far)
    live = candidate & ~forgotten[state.episode]
    running = stored & (of_slot == _RUNNING)
    live = jnp.where(live.sum(dtype=jnp.int32) > 0, live, running)
    log_ratio = jnp.where(live, state.log_ratio, 0.0)
    counts = forgotten.sum(dtype=jnp.int32), reclaimed.sum(dtype=jnp.int32)
    forgotten = buffer.after(counts, forgotten)
    return state._replace(
        forgotten=counters.saturating_add(state.forgotten, counts[0]),
        reclaimed=counters.saturating_add(state.reclaimed, counts[1]),
        status=jnp.where(forgotten, jnp.int8(_FORGOTTEN), state.status),
        log_ratio=log_ratio,
        live=live,
        order=_listed(live),
        size=live.sum(dtype=jnp.int32),
        far=is_far(log_ratio, threshold).sum(dtype=jnp.int32),
        log_c_max=threshold,
    )


def _listed(mask: Array) -> Array:
    """Return the indices of True in a mask `[n]`, `[n]` int32, followed by zeros.

    `jnp.nonzero` does the same in three passes, and copies an array on GPU.
    """
    number = jnp.arange(mask.size, dtype=jnp.int32)
    place = jnp.where(mask, jnp.cumsum(mask, dtype=jnp.int32) - 1, mask.size)
    return jnp.zeros_like(number).at[place].set(number, mode="drop")


def _choose_forgotten(
    config: ReFERConfig, state: ReFERState, ring: Ring, candidate: Array, far: Array
) -> Array:
    """Return a mask `[C]` of episodes to forget, indexed like `status`.

    `candidate` `[C]` marks slots of finished episodes, and `far` `[C]` slots of far-policy steps.
    """
    of_slots = jnp.stack([candidate, candidate & far], 1).astype(jnp.int32)
    counts = jnp.zeros((ring.capacity, 2), jnp.int32).at[state.episode].add(of_slots)
    steps, far_steps = counts[:, 0], counts[:, 1]
    share = far_steps / jnp.maximum(steps, 1)
    environment = jnp.arange(ring.capacity) % ring.num_envs
    return choose_forgotten(
        share if config.forget == "far" else jnp.zeros_like(share),
        steps,
        ring_.since(ring, state.start) * ring.num_envs + environment,
        ring.capacity // config.capacity_factor,
    )
