"""Methods with one mistake each, of the kind that authors make, and the checks that find them."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from jaxreplay import Draw, Method, Sampler, buffer, objectives, ring, sum_tree, testing
from jaxreplay.methods import proportional
from jaxreplay.methods.proportional import ImportanceWeights, Proportional
from jaxreplay.option import Config
from jaxreplay.types import Requirements, get_field
from tests.refusals import refused


class Counts(NamedTuple):
    """How often each stored transition was drawn, and the number of updates."""

    counts: Any  # [C] float32
    updates: Any  # [] int32


@dataclasses.dataclass(frozen=True)
class Seldom(Sampler):
    """A correct sampler: draws in proportion to 1 / (1 + number of draws)."""

    def init(self, key, memory):
        return Counts(jnp.zeros(memory.capacity, jnp.float32), jnp.zeros((), jnp.int32))

    def add(self, state, memory, slots, transition, **feedback):
        return state._replace(counts=buffer.write(state.counts, slots, jnp.zeros(slots.shape)))

    def sample(self, state, memory, key, batch_size):
        chance = self.chance(state, memory)
        slots = jax.random.choice(key, memory.capacity, (batch_size,), p=chance).astype(jnp.int32)
        return Draw(slots, self.weights(chance[slots], memory))

    def update(self, state, memory, sample, **feedback):
        return Counts(state.counts.at[sample.indices].add(1.0, mode="drop"), state.updates + 1)

    def probability(self, state, memory, slots, batch_size):
        return self.chance(state, memory)[slots]

    def chance(self, state, memory):
        stored = jnp.arange(memory.capacity) < ring.size(memory)
        share = jnp.where(stored, 1.0 / (1.0 + state.counts), 0.0)
        return share / jnp.maximum(share.sum(), 1e-9)

    def weights(self, chance, memory):
        weights = (jnp.maximum(ring.size(memory), 1) * chance) ** -0.5
        return weights / weights.max()


class NoReset(Seldom):
    def add(self, state, memory, slots, transition, **feedback):
        return state


class ReturnsSlots(Seldom):
    def sample(self, state, memory, key, batch_size):
        return super().sample(state, memory, key, batch_size).indices


class UpdateReturnsNone(Seldom):
    def update(self, state, memory, sample, **feedback):
        super().update(state, memory, sample)


class AddReturnsNone(Seldom):
    def add(self, state, memory, slots, transition, **feedback):
        super().add(state, memory, slots, transition)


class ChangesDtype(Seldom):
    def update(self, state, memory, sample, **feedback):
        return state._replace(updates=state.updates + 1.0)


class ChangesShape(Seldom):
    def update(self, state, memory, sample, **feedback):
        return state._replace(updates=state.updates[None])


class WeakState(Seldom):
    def init(self, key, memory):
        return Counts(jnp.zeros(memory.capacity, jnp.float32), 0)


class SumsToTwo(Seldom):
    def probability(self, state, memory, slots, batch_size):
        return 2 * super().probability(state, memory, slots, batch_size)


class IgnoresKey(Seldom):
    def sample(self, state, memory, key, batch_size):
        return super().sample(state, memory, jax.random.key(0), batch_size)


class DrawsEmptySlots(Seldom):
    def sample(self, state, memory, key, batch_size):
        slots = jax.random.randint(key, (batch_size,), 0, memory.capacity)
        return Draw(slots, jnp.ones(batch_size))

    probability = Sampler.probability


class WrongSign(Seldom):
    def weights(self, chance, memory):
        weights = (jnp.maximum(ring.size(memory), 1) * chance) ** 0.5
        return weights / weights.max()


class ScalarWeight(Seldom):
    def weights(self, chance, memory):
        return jnp.float32(1.0)


class BranchesOnTraced(Seldom):
    def update(self, state, memory, sample, **feedback):
        return super().update(state, memory, sample) if state.updates > 2 else state


class WritesIgnored(Seldom):
    @property
    def requires(self):
        return Requirements(feedback=frozenset({"td_error"}))

    def update(self, state, memory, sample, **feedback):
        return state._replace(counts=state.counts.at[sample.indices].add(1.0, mode="clip"))


class NoKeywords(Seldom):
    def update(self, state, memory, sample, td_error):
        return super().update(state, memory, sample)

    @property
    def requires(self):
        return Requirements(feedback=frozenset({"td_error"}))


class MetricsOfVectors(Seldom):
    def metrics(self, state, memory):
        return {"counts": state.counts}


class SideEffect(Seldom):
    seen: ClassVar[list[Any]] = []

    def update(self, state, memory, sample, **feedback):
        self.seen.append(sample.indices)
        return state._replace(updates=state.updates + len(self.seen))


class BufferWithoutTree(Proportional):
    def init(self, key, memory):
        return proportional.init(memory.capacity)


class AddForgets(Proportional):
    """New transitions keep the priority of the overwritten one."""

    def add(self, state, memory, slots, transition, **feedback):
        old = sum_tree.get(state.tree, slots)
        return proportional.insert(state, slots, jnp.where(old > 0, old, 1.0))


class ReadsAtAdd(Proportional):
    def add(self, state, memory, slots, transition, **feedback):
        return proportional.insert(state, slots, jnp.abs(transition.reward))


class EqualProbabilities(Proportional):
    probability = Sampler.probability


class Unhashable(Seldom):
    __hash__ = None


def signed(feedback, slots, memory):
    return feedback["td_error"]


def inverse(feedback, slots, memory):
    return 1.0 / jnp.abs(feedback["td_error"])


def attribute(feedback, slots, memory):
    return jnp.abs(ring.gather(memory, slots).reward) + 0.1


def undeclared_field(feedback, slots, memory):
    return jnp.abs(get_field(ring.gather(memory, slots), "reward")) + 0.1


def undeclared_feedback(feedback, slots, memory):
    return jnp.abs(feedback["q_value"]) + 0.1


def column(feedback, slots, memory):
    return jnp.abs(feedback["td_error"])[:, None] + 0.1


def branch(feedback, slots, memory):
    td = feedback["td_error"]
    return jnp.abs(td) if td.max() > 0 else jnp.ones_like(td)


def nothing(feedback, slots, memory):
    jnp.abs(feedback["td_error"])


def good(feedback, slots, memory):
    return jnp.abs(feedback["td_error"]) + 0.1


def of(sampler, objective=objectives.weighted()):
    return Method(sampler, objective)


BUFFER = ImportanceWeights(lambda updates: 0.5, "buffer")
READ = "only_declared_fields_and_feedback_are_read"
FINITE = "finite_feedback_of_either_sign_is_kept"
DRAWS = "draws_follow_the_probabilities"
FORGOTTEN = "overwritten_transitions_are_forgotten"

# (method, check or None if the method cannot be used at all, parts of the message)
MISTAKES: dict[str, tuple[Any, str | None, tuple[str, ...]]] = {
    "a negative priority": (of(Proportional(signed)), FINITE, ("negative",)),
    "an infinite priority": (of(Proportional(inverse)), FINITE, ("finite",)),
    "no priority": (of(Proportional(nothing)), READ, ("leaf", "NoneType")),
    "a column of priorities": (of(Proportional(column)), READ, ("leaf", "[8]", "[8, 1]")),
    "an attribute of a dict": (of(Proportional(attribute)), READ, ("get_field", "reward")),
    "the same in add": (of(ReadsAtAdd(good)), READ, ("get_field", "reward")),
    "an undeclared field": (
        of(Proportional(undeclared_field)), READ, ("transition_fields", "reward"),
    ),
    "undeclared feedback": (of(Proportional(undeclared_feedback)), READ, ("q_value", "feedback")),
    "undeclared feedback of new transitions": (
        of(Proportional(undeclared_feedback, initial="td")), READ, ("q_value", "feedback_of_new"),
    ),
    "an if of traced values": (of(Proportional(branch)), READ, ("jnp.where", "jax.lax.cond")),
    "no min tree": (of(BufferWithoutTree(good, BUFFER)), READ, ("normalise", "init")),
    "slots instead of a draw": (of(ReturnsSlots()), READ, ("ReturnsSlots.sample", "Draw")),
    "a weight for the batch": (of(ScalarWeight()), READ, ("ScalarWeight.sample", "weights")),
    "no state from update": (of(UpdateReturnsNone()), READ, ("update", "NoneType")),
    "no state from add": (of(AddReturnsNone()), READ, ("add", "NoneType")),
    "another dtype": (of(ChangesDtype()), READ, ("update", "int32[]", "float32[]")),
    "another shape": (of(ChangesShape()), READ, ("update", "int32[]", "int32[1]")),
    "a Python number as state": (of(WeakState()), "states_share_no_buffers", ("init", "int")),
    "an effect on Python": (
        of(SideEffect()), "eager_jit_vmap_and_scan_agree", ("sampler.updates", "pure"),
    ),
    "no reset in add": (of(NoReset()), FORGOTTEN, ("add", "slots")),
    "the overwritten priority": (of(AddForgets(good)), FORGOTTEN, ("add", "slots")),
    "a write to ignored slots": (
        of(WritesIgnored()), "feedback_for_overwritten_slots_is_dropped", ("update", "IGNORED"),
    ),
    "draws of empty slots": (of(DrawsEmptySlots()), "only_written_slots_are_drawn", ("slots",)),
    "the same key": (of(IgnoresKey()), "draws_depend_on_the_key", ("keys",)),
    "probabilities that sum to 2": (of(SumsToTwo()), DRAWS, ("probabilities", "1")),
    "probabilities of other draws": (
        of(EqualProbabilities(good)), DRAWS, ("frequencies", "probability"),
    ),
    "weights with the wrong sign": (of(WrongSign()), DRAWS, ("weights", "beta")),
    "a metric that is no number": (
        of(MetricsOfVectors()), "states_keep_their_types", ("metrics", "counts"),
    ),
    "no **feedback": (of(NoKeywords()), None, ("NoKeywords.update", "**feedback")),
    "no hash": (of(Unhashable()), None, ("Unhashable", "frozen dataclass")),
    "a sampler for a method": (Seldom(), None, ("Method", "Seldom")),
    "an objective that was not called": (
        of(Seldom(), objectives.weighted), None, ("Method", "objective"),
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class MineConfig(Config):
    """This method has no options."""


def check_alone(method, check, monkeypatch):
    """Run `check_method` with one of its checks, or with none."""
    checks = tuple(each for each in testing.CHECKS if each.__name__ == check)
    assert len(checks) == (check is not None)
    monkeypatch.setattr(testing, "CHECKS", checks)
    testing.check_method(MineConfig(), lambda config: method)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_check_method_names_the_method_and_the_remedy(mistake, monkeypatch):
    method, check, parts = MISTAKES[mistake]
    with refused("Mine", *parts, *([check] if check else []), error=AssertionError):
        check_alone(method, check, monkeypatch)


def test_checks_accept_the_sampler_without_the_mistakes():
    """Other mistakes are made in `Proportional`, whose methods test_samplers.py checks."""
    case, used = testing.Case(of(Seldom())), {check for _, check, _ in MISTAKES.values()}
    for check in testing.CHECKS:
        # Outside of jit, every operation would be compiled separately.
        if check.__name__ in used and check is not testing.eager_jit_vmap_and_scan_agree:
            check(case)


def test_proportional_reads_a_declared_field_of_stored_transitions(monkeypatch):
    sampler = Proportional(undeclared_field, transition_fields=frozenset({"reward"}))
    check_alone(of(sampler), READ, monkeypatch)
    with refused("reward", "dict"):
        testing.Case(of(sampler), {"obs": jnp.zeros(3)}).init(jax.random.key(0))
