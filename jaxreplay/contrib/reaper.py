"""Reliability-adjusted prioritised replay, ReaPER (Pleiss, Sutter & Schiffer 2026)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import buffer, objectives, schedules, sum_tree
from jaxreplay import ring as ring_
from jaxreplay.loops import cond_if_any, varying
from jaxreplay.methods import options, proportional
from jaxreplay.methods.parts import episode_sums, episodes
from jaxreplay.methods.parts.episode_sums import EpisodeSums
from jaxreplay.methods.parts.episodes import Spans
from jaxreplay.methods.proportional import ImportanceWeights, ProportionalState
from jaxreplay.numerics import to_power
from jaxreplay.objectives import LossName
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.sum_tree import Sampling, SumTree
from jaxreplay.types import IGNORED, Array, Draw, Requirements, Sample, Tree, get_field

_CODE = "code of Pleiss et al. 2026"
_LEAST_ROUNDS = 64  # of candidates, after which the rest of a batch may be drawn from all masses
_BLOCK = 4096  # slots whose reliabilities are computed at once, which bounds the memory
_MAX_METRIC_SLOTS = 4096


@dataclasses.dataclass(frozen=True)
class ReaPERConfig(Config):
    """Hyperparameters of ReaPER."""

    alpha: float = option(0.3, options.ALPHA, _CODE)
    epsilon: float = option(1e-6, options.EPSILON)
    omega: float = option(
        0.3, "exponent of the reliability; 0 is PER with a constant beta", _CODE, at_least=0
    )
    initial: options.Initial = option("max", options.INITIAL)
    sampling: Sampling = option("stratified", options.SAMPLING)
    beta: float = option(0.5, options.CONSTANT_BETA, _CODE)
    loss: LossName = option("agent", options.LOSS)

    @property
    def weight(self) -> ImportanceWeights:
        """Importance weights with a constant beta, divided by their batch maximum."""
        return ImportanceWeights(schedules.linear(self.beta, self.beta, None))


class ReaPERState(NamedTuple):
    """Priorities without reliability, and TD errors summed over episodes."""

    priorities: ProportionalState  # leaves (|td| + epsilon)^alpha
    sums: EpisodeSums  # of values |td| + epsilon, one environment after the other
    spans: Spans
    largest: Array  # [] float32, running maximum of the values, initially 1
    largest_sum: Array  # [] float32, running maximum of the sums of ended episodes in batches


class Aux(NamedTuple):
    """The sum of values over the episode of each transition in a batch."""

    ended_sum: Array  # [B] float32, sum of the episode, or 0 if it is running


class _Candidates(NamedTuple):
    """Slots, with their reliabilities and the sums of their episodes (0 for running episodes)."""

    slots: Array  # [n] int32
    reliability: Array  # [n] float32
    ended: Array  # [n] float32


@dataclasses.dataclass(frozen=True)
class ReaPER(Sampler):
    """Samples with `P(t) ~ x_t^alpha R_t^omega`, where `x = |td| + epsilon`.

    The reliability `R_t` is the sum of x over the stored steps of the episode up to t, divided by
    the sum over the whole episode. In a running episode, the divisor is the largest sum of an ended
    episode that was in a batch, or the sum so far if that is larger.

    A changed TD error changes the reliabilities of the whole episode, so that they are not stored.
    Instead, candidates are drawn in proportion to `x^alpha` and accepted with probability
    `R^omega`. If at least 64 rounds have accepted too few candidates, the rest of the batch is
    drawn with the exact probabilities of all stored transitions.
    """

    config: ReaPERConfig = ReaPERConfig()

    @property
    def requires(self) -> Requirements:
        td_error = frozenset({"td_error"})
        return Requirements(
            feedback=td_error,
            feedback_of_new=td_error if self.config.initial == "td" else frozenset(),
            transition_fields=frozenset({"first"}),
        )

    def init(self, key: Array, ring: Ring) -> ReaPERState:
        return ReaPERState(
            priorities=proportional.init(ring.capacity),
            sums=episode_sums.init(ring.capacity),
            spans=episodes.init_spans(ring),
            largest=jnp.ones((), jnp.float32),
            largest_sum=jnp.zeros((), jnp.float32),
        )

    def add(
        self, state: ReaPERState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> ReaPERState:
        config, largest = self.config, state.largest
        values = jnp.broadcast_to(largest, slots.shape)
        if config.initial == "td":
            given = jnp.abs(feedback["td_error"]) + config.epsilon
            values = jnp.where(given < jnp.inf, _clipped(given, ring), values)
            largest = jnp.maximum(largest, values.max())
        leaves = to_power(values, config.alpha)
        spans = episodes.add_spans(state.spans, ring, slots, get_field(transition, "first"))
        # The next slot is now the oldest, so its episode starts there.
        places, oldest = (
            _places(ring, slots),
            _places(ring, (slots + ring.num_envs) % ring.capacity),
        )
        if ring_.num_steps(ring) == 1:
            oldest = jnp.full_like(oldest, IGNORED)
        kept, _ = episode_sums.get(state.sums, jnp.minimum(oldest, ring.capacity - 1))
        first = (spans.latest == 0) | (slots < ring.num_envs)
        sums = episode_sums.write(
            state.sums,
            ring.capacity,
            jnp.concatenate([places, oldest]),
            jnp.concatenate([values, kept]),
            jnp.concatenate([first, jnp.ones_like(first)]),
        )
        priorities = proportional.insert(state.priorities, slots, leaves)
        return state._replace(priorities=priorities, sums=sums, spans=spans, largest=largest)

    def sample(self, state: ReaPERState, ring: Ring, key: Array, batch_size: int) -> Draw:
        slots, reliability, ended = self._draw(state, ring, key, batch_size)
        mass = sum_tree.get(state.priorities.tree, slots) * to_power(reliability, self.config.omega)
        # The unknown sum of all masses cancels in weights that are divided by their maximum.
        mass = jnp.maximum(mass, jnp.finfo(jnp.float32).tiny)
        weights = self.config.weight(mass, jnp.ones((), jnp.int32), state.priorities.updates)
        return Draw(slots, buffer.after(mass, weights), Aux(ended))

    def update(
        self, state: ReaPERState, ring: Ring, sample: Sample, **feedback: Array
    ) -> ReaPERState:
        slots, valid = sample.indices, sample.indices != IGNORED
        values, sums = self._sums(state, ring, slots, feedback["td_error"])
        ended = jnp.where(valid, sample.aux.ended_sum, 0.0)
        leaves = to_power(values, self.config.alpha)
        return state._replace(
            priorities=proportional.write(state.priorities, slots, leaves),
            sums=sums,
            largest=jnp.maximum(state.largest, jnp.where(valid, values, 0.0).max()),
            largest_sum=jnp.maximum(state.largest_sum, ended.max()),
        )

    def refresh(
        self, state: ReaPERState, ring: Ring, slots: Array, **feedback: Array
    ) -> ReaPERState:
        """Recompute the priorities at `slots`, and the largest sum of any stored ended episode."""
        values, sums = self._sums(state, ring, slots, feedback["td_error"])
        leaves = to_power(values, self.config.alpha)
        priorities = proportional.refresh(state.priorities, slots, leaves)
        every = jnp.arange(ring.capacity, dtype=jnp.int32)
        stored, _ = episode_sums.get(sums, _places(ring, every))
        largest = jnp.where(every < ring_.size(ring), stored, 0.0).max()
        state = state._replace(
            priorities=priorities, sums=sums, largest=jnp.where(largest > 0, largest, 1.0)
        )
        _, ended = self._reliabilities(state, ring)
        ended = jnp.where(every < ring_.size(ring), ended, 0.0)
        return state._replace(largest_sum=ended.max())

    def end_episodes(self, state: ReaPERState, ring: Ring) -> ReaPERState:
        return state._replace(spans=episodes.end_spans(state.spans))

    def probability(self, state: ReaPERState, ring: Ring, slots: Array, batch_size: int) -> Array:
        mass = self._masses(state, ring)
        total = mass.sum()
        even = ring_.even_probability(ring, slots)
        return jnp.where(total > 0, mass[slots] / jnp.where(total > 0, total, 1.0), even)

    def metrics(self, state: ReaPERState, ring: Ring) -> dict[str, Array]:
        size = jnp.maximum(ring_.size(ring), 1)
        number = jnp.arange(min(_MAX_METRIC_SLOTS, ring.capacity))
        slots = (number * (size / number.size)).astype(jnp.int32)
        return {
            **proportional.metrics(state.priorities, ring),
            "mean_reliability": self._reliability(state, ring, slots)[0].mean(),
        }

    def _reliability(self, state: ReaPERState, ring: Ring, slots: Array) -> tuple[Array, Array]:
        """Return the reliabilities of `slots` `[B]`, and the sums of their ended episodes, or 0."""
        capacity, num_envs = ring.capacity, ring.num_envs
        earlier, later, running = episodes.read_spans(state.spans, ring, slots)
        step, env = slots // num_envs, slots % num_envs
        steps = ring_.num_steps(ring)
        end = (step + later) % steps
        base = env * steps
        newest = jnp.arange(1, num_envs + 1, dtype=jnp.int32) * steps - 1
        places = jnp.concatenate([base + step, base + end, newest])
        sums = episode_sums.upto(state.sums, capacity, places)
        size = len(slots)
        # The tree starts anew at slot 0, so add the part of the episode before it.
        before = sums[2 * size :][env]
        here = sums[:size] + jnp.where(earlier > step, before, 0.0)
        whole = sums[size : 2 * size] + jnp.where(earlier + later > end, before, 0.0)
        largest = jnp.where(running, jnp.maximum(whole, state.largest_sum), whole)
        reliability = jnp.where(largest > 0, here / jnp.where(largest > 0, largest, 1.0), 1.0)
        return jnp.minimum(reliability, 1.0), jnp.where(running, 0.0, whole)

    def _sums(
        self, state: ReaPERState, ring: Ring, slots: Array, td_error: Array
    ) -> tuple[Array, EpisodeSums]:
        """Return the values x of TD errors `[B]`, and the sums with these values at `slots`."""
        values = _clipped(jnp.abs(td_error) + self.config.epsilon, ring)
        valid = slots != IGNORED
        places = _places(ring, jnp.where(valid, slots, 0))
        _, starts = episode_sums.get(state.sums, places)
        places = jnp.where(valid, places, IGNORED)
        return values, episode_sums.write(state.sums, ring.capacity, places, values, starts)

    def _reliabilities(self, state: ReaPERState, ring: Ring) -> tuple[Array, Array]:
        """Return the result of `_reliability` for all slots, `[C]` float32 each."""
        size = min(_BLOCK, ring.capacity)
        slots = jnp.arange(-(-ring.capacity // size) * size, dtype=jnp.int32)
        blocks = jnp.minimum(slots, ring.capacity - 1).reshape(-1, size)
        reliability, ended = jax.lax.map(
            lambda slots: self._reliability(state, ring, slots), blocks
        )
        return reliability.ravel()[: ring.capacity], ended.ravel()[: ring.capacity]

    def _masses(self, state: ReaPERState, ring: Ring) -> Array:
        """Return `x^alpha R^omega` of all slots, `[C]` float32."""
        chance = to_power(self._reliabilities(state, ring)[0], self.config.omega)
        return sum_tree.leaves(state.priorities.tree) * chance

    def _draw(self, state: ReaPERState, ring: Ring, key: Array, batch_size: int) -> _Candidates:
        """Draw a batch of candidates by rejection sampling."""
        more = batch_size // 2 + 1
        most = max(_LEAST_ROUNDS, ring.capacity // (4 * more))  # takes as long as `_complete`
        key, first_key, second_key, accept_key = jax.random.split(key, 4)

        def candidates(shares: Array, key: Array) -> tuple[_Candidates, Array]:
            drawn = self._at_shares(state, ring, state.priorities.tree, shares)
            chance = to_power(drawn.reliability, self.config.omega)
            return drawn, jax.random.uniform(key, shares.shape, jnp.float32) < chance

        # The first round is stratified and keeps what it accepts. The rest of the batch is filled
        # with the first accepted of independent candidates. Expected counts are exact.
        shares = [
            sum_tree.shares(first_key, batch_size, self.config.sampling),
            sum_tree.shares(second_key, more, "iid"),
        ]
        drawn, accepted = candidates(jnp.concatenate(shares), accept_key)
        batch = jax.tree.map(lambda x: x[:batch_size], drawn)
        extra = jax.tree.map(lambda x: x[batch_size:], drawn)
        batch, full = _fill(batch, accepted[:batch_size], extra, accepted[batch_size:])

        def unfinished(carry: tuple[_Candidates, Array, Array, Array]) -> Array:
            return ~carry[1].all() & (carry[3] < most)

        def turn(
            carry: tuple[_Candidates, Array, Array, Array],
        ) -> tuple[_Candidates, Array, Array, Array]:
            batch, full, key, rounds = carry
            key, shares_key, accept_key = jax.random.split(key, 3)
            extra, accepted = candidates(sum_tree.shares(shares_key, more, "iid"), accept_key)
            return *_fill(batch, full, extra, accepted), key, rounds + 1

        start = (batch, full, key, varying(jnp.zeros((), jnp.int32)))
        batch, full, key, _ = jax.lax.while_loop(unfinished, turn, start)
        return cond_if_any(~full.all(), self._complete, batch, full, key, state, ring)

    def _complete(
        self, batch: _Candidates, full: Array, key: Array, state: ReaPERState, ring: Ring
    ) -> _Candidates:
        """Replace the entries of a batch that are not `full` `[B]` by exact draws."""
        tree = sum_tree.rebuild(state.priorities.tree, self._masses(state, ring))
        drawn = self._at_shares(state, ring, tree, sum_tree.shares(key, len(full), "iid"))
        return jax.tree.map(lambda old, new: jnp.where(full, old, new), batch, drawn)

    def _at_shares(
        self, state: ReaPERState, ring: Ring, tree: SumTree, shares: Array
    ) -> _Candidates:
        """Return candidates at positions `shares` `[n]`, drawn uniformly if all leaves are 0."""
        size = jnp.maximum(ring_.size(ring), 1)
        slots = buffer.once(sum_tree.at_shares(tree, shares, size))
        return _Candidates(slots, *self._reliability(state, ring, slots))


def _fill(
    batch: _Candidates, full: Array, extra: _Candidates, accepted: Array
) -> tuple[_Candidates, Array]:
    """Replace the entries of a batch that are not `full` `[B]` by accepted entries of `extra`."""
    count = len(accepted)
    rank = jnp.where(accepted, jnp.cumsum(accepted, dtype=jnp.int32) - 1, count)
    numbers = jnp.arange(count, dtype=jnp.int32)
    order = jnp.full_like(numbers, count).at[rank].set(numbers, mode="drop")
    wanted = jnp.where(full, count, jnp.cumsum(~full, dtype=jnp.int32) - 1)
    chosen = order.at[wanted].get(mode="fill", fill_value=count)
    replaced = chosen < count
    chosen = jnp.minimum(chosen, count - 1)
    batch = jax.tree.map(lambda old, new: jnp.where(replaced, new[chosen], old), batch, extra)
    return batch, full | replaced


def _clipped(values: Array, ring: Ring) -> Array:
    """Bound values so that their sums are finite."""
    return jnp.minimum(values, jnp.finfo(jnp.float32).max / ring.capacity)


def _places(ring: Ring, slots: Array) -> Array:
    """Return the positions `[B]` of slots in an array that is grouped by environment."""
    return slots % ring.num_envs * ring_.num_steps(ring) + slots // ring.num_envs


sampler = ReaPER


def method(config: ReaPERConfig = ReaPERConfig()) -> Method:
    """Return ReaPER: the sampler, and an objective that averages weighted critic losses."""
    return Method(sampler(config), objectives.weighted(objectives.named(config.loss)))
