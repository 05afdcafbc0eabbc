"""Reverse replay (Lee et al. 2019; Rotinov 2019): sweeps backwards through stored episodes."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxreplay import buffer, numerics, objectives, sum_tree
from jaxreplay import ring as ring_
from jaxreplay.loops import varying
from jaxreplay.methods import options
from jaxreplay.methods.parts import episodes
from jaxreplay.methods.parts.episodes import Positions
from jaxreplay.objectives import LossName
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.sum_tree import SumTree
from jaxreplay.types import Array, Draw, Requirements, Sample, Tree, get_field


@dataclasses.dataclass(frozen=True)
class ReverseConfig(Config):
    """Hyperparameters of reverse replay."""

    sweeps: int = option(
        64,
        "number of simultaneous sweeps, which take turns; if it equals the batch size, each sweep "
        "moves one step per batch",
        "Lee et al. 2019: 1",
        at_least=1,
    )
    loss: LossName = option("agent", options.LOSS)


class ReverseState(NamedTuple):
    """Ends of episodes, and the transitions that K sweeps have reached."""

    ends: SumTree  # leaves [C], 1 at the newest stored step of every episode, otherwise 0
    positions: Positions
    slots: Array  # [K] int32, latest transition of every sweep
    versions: Array  # [K] int32, versions of these transitions; _NEVER before the first one
    turn: Array  # [] int32, sweep of the first transition in the next batch


_NEVER = np.iinfo(np.int32).min
_UNROLLED = 4  # turns of the sweeps


@dataclasses.dataclass(frozen=True)
class Reverse(Sampler):
    """Samples steps of episodes in reverse, in K sweeps; importance weights are 1.

    Row b of a batch belongs to sweep `(turn + b) % K`, where `turn` counts all earlier rows. A
    sweep begins at the last step of an episode, drawn uniformly from all episodes with stored
    steps, and moves to the previous step with each of its rows. The last step of a running episode
    is its newest step. After the first stored step of the episode, or if its step has been
    overwritten, the sweep begins anew. The very first step of every sweep is a random transition,
    so that sweeps through episodes of equal lengths are not at the same step.

    Each sweep visits every step of its episode once, so that in the long run, every transition is
    equally likely. `update` must be called once for each batch, before the next batch is sampled.
    """

    config: ReverseConfig = ReverseConfig()

    @property
    def requires(self) -> Requirements:
        return Requirements(transition_fields=frozenset({"first"}))

    @property
    def is_uniform(self) -> bool:
        return True

    def init(self, key: Array, ring: Ring) -> ReverseState:
        count = self.config.sweeps
        return ReverseState(
            ends=sum_tree.init(ring.capacity),
            positions=episodes.init_positions(ring),
            slots=jnp.zeros(count, jnp.int32),
            versions=jnp.full(count, _NEVER, jnp.int32),
            turn=jnp.zeros((), jnp.int32),
        )

    def add(
        self, state: ReverseState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> ReverseState:
        first = get_field(transition, "first")
        positions = episodes.add_positions(state.positions, slots, first)
        before, stored = ring_.previous(ring, slots)
        continues = stored & (positions.latest > 0)
        changed = jnp.concatenate([jnp.where(continues, before, ring.capacity), slots])
        values = jnp.concatenate([jnp.zeros(slots.shape), jnp.ones(slots.shape)])
        ends = sum_tree.set(state.ends, changed, values.astype(jnp.float32))
        return state._replace(ends=ends, positions=positions)

    def sample(self, state: ReverseState, ring: Ring, key: Array, batch_size: int) -> Draw:
        count = self.config.sweeps
        turns = -(-batch_size // count)
        shares = sum_tree.shares(key, batch_size, "iid")
        shares = jnp.pad(shares, (0, turns * count - batch_size)).reshape(turns, count)
        size = jnp.maximum(ring_.size(ring), 1).astype(jnp.uint32)
        empty = ~(sum_tree.total(state.ends) > 0)

        def turn(sweeps: tuple[Array, Array, Array], shares: Array) -> tuple[Any, Array]:
            slots, moves, fresh = sweeps
            earlier, stored = ring_.previous(ring, slots)
            moves &= stored & (buffer.read(state.positions.steps, slots) > 0)
            anywhere = numerics.multiply_high(shares, size).astype(jnp.int32)
            begin = jnp.where(fresh | empty, anywhere, sum_tree.at_shares(state.ends, shares))
            slots = buffer.once(jnp.where(moves, earlier, begin))
            return varying((slots, jnp.ones_like(moves), jnp.zeros_like(fresh))), slots

        # Few turns are faster without a loop, and many take long to compile.
        sweeps = varying(self._sweeps(state, ring))
        _, rows = jax.lax.scan(turn, sweeps, shares, unroll=min(turns, _UNROLLED))
        drawn = rows.ravel()[:batch_size]
        return Draw(drawn, jnp.ones(batch_size, jnp.float32), aux=drawn)

    def update(
        self, state: ReverseState, ring: Ring, sample: Sample, **feedback: Array
    ) -> ReverseState:
        size, count = len(sample.aux), self.config.sweeps
        latest = min(size, count)
        sweeps = state.turn + np.arange(size - latest, size, dtype=np.int32)
        return state._replace(
            slots=state.slots.at[sweeps % count].set(sample.aux[-latest:]),
            versions=state.versions.at[sweeps % count].set(sample.version[-latest:]),
            turn=(state.turn + size) % count,
        )

    def end_episodes(self, state: ReverseState, ring: Ring) -> ReverseState:
        return state._replace(positions=episodes.end_positions(state.positions))

    def probability(self, state: ReverseState, ring: Ring, slots: Array, batch_size: int) -> Array:
        number = jnp.arange(self.config.sweeps, dtype=jnp.int32)
        turns = batch_size // self.config.sweeps
        more = self._expected(state, ring, number < batch_size % self.config.sweeps, turns + 1)
        fewer = self._expected(state, ring, number >= batch_size % self.config.sweeps, turns)
        return (more + fewer)[slots] / batch_size

    def metrics(self, state: ReverseState, ring: Ring) -> dict[str, Array]:
        left = jnp.where(state.versions == _NEVER, 0, state.positions.steps[state.slots])
        return {
            "episodes": sum_tree.total(state.ends),
            "steps_left": left.astype(jnp.float32).mean(),
        }

    def _sweeps(self, state: ReverseState, ring: Ring) -> tuple[Array, Array, Array]:
        """Return the slots of the sweeps in order of turn, and two masks, `[K]` each.

        The masks mark sweeps that move on and sweeps that are new.
        """
        order = (state.turn + np.arange(self.config.sweeps, dtype=np.int32)) % self.config.sweeps
        slots, versions = state.slots[order], state.versions[order]
        return slots, ring_.version(ring, slots) == versions, versions == _NEVER

    def _expected(self, state: ReverseState, ring: Ring, chosen: Array, turns: int) -> Array:
        """Return expected numbers of rows `[C]` over `turns` turns of the `chosen` sweeps `[K]`."""
        slots, moves, fresh = self._sweeps(state, ring)
        all_slots, total = jnp.arange(ring.capacity), sum_tree.total(state.ends)
        ends = sum_tree.leaves(state.ends) / jnp.where(total > 0, total, 1.0)
        stored = ring_.previous(ring, all_slots)[1] & (all_slots < ring_.size(ring))
        continues = stored & (state.positions.steps > 0)
        alive = (chosen & moves).astype(jnp.float32)
        at = jnp.zeros(ring.capacity, jnp.float32).at[slots].add(alive)
        anew, first = (chosen & ~moves & ~fresh).sum(), (chosen & ~moves & fresh).sum()
        begins = anew * ends + first * ring_.even_probability(ring, all_slots)

        def turn(_: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            at, begins, expected = carry
            moving = jnp.where(continues, at, 0.0)
            at = jnp.roll(moving, -ring.num_envs) + (at - moving).sum() * ends + begins
            return at, jnp.zeros_like(begins), expected + at

        start = varying((at, begins, jnp.zeros_like(at)))
        return jax.lax.fori_loop(0, turns, turn, start)[2]


sampler = Reverse


def method(config: ReverseConfig = ReverseConfig()) -> Method:
    """Return reverse replay: the sampler, and an objective that averages losses."""
    return Method(sampler(config), objectives.plain(objectives.named(config.loss)))
