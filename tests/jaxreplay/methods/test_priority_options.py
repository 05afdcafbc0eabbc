"""Options of methods that store priorities: each works as in PER, or the method has no such option.

The laws: `initial` decides the priority of a new transition, `maximum` which maximum this is,
`sampling` how draws depend on each other, and `normalise` the scale of importance weights.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, Transition, sum_tree
from jaxreplay.methods import METHODS, proportional, rank
from jaxreplay.methods.parts import bucket_order
from tests.methods import compiled

# Which method has which option. PSER and ReaPER change priorities of whole episodes, and those of
# faded replay change with age, so that no tree has their maximum; those of sequences and of SIL are
# set by slots of a whole episode; those of curious replay include counts, and those of NERS are
# scores of a network.
OPTIONS = {
    "per": {"initial", "maximum", "sampling", "normalise"},
    "eper": {"initial", "maximum", "sampling", "normalise"},
    "relo": {"initial", "maximum", "sampling", "normalise"},
    "uper": {"initial", "maximum", "sampling", "normalise"},
    "rank": {"maximum", "sampling", "normalise"},
    "lap": {"initial", "maximum", "sampling"},
    "la3p": {"initial", "maximum", "sampling"},
    "pser": {"initial", "sampling"},
    "reaper": {"initial", "sampling"},
    "ners": {"sampling", "normalise"},
    "sil": {"sampling", "normalise"},
    "sequences": {"sampling"},
    "faded": {"sampling"},
    "curious": {"sampling"},
}
VALUES = {"initial": "td", "maximum": "stored", "sampling": "iid", "normalise": "none"}
# Options with which the priority is |TD error|.
RAW = {
    "per": {"alpha": 1.0, "epsilon": 0.0}, "eper": {"alpha": 1.0, "epsilon": 0.0},
    "relo": {"alpha": 1.0, "epsilon": 0.0}, "rank": {}, "lap": {"alpha": 1.0, "kappa": 0.125},
    "la3p": {"alpha": 1.0, "kappa": 0.125}, "pser": {"alpha": 1.0, "epsilon": 0.0},
    "reaper": {"alpha": 1.0, "epsilon": 0.0, "omega": 0.0},
    "uper": {"alpha": 1.0, "epsilon": 0.0, "priority": "epistemic"},
    "ners": {"features": ("reward", "td_error", "q_value")}, "faded": {"fade": 1.0},
}  # fmt: skip
NAMES = (
    "td_error", "reducible_loss", "expected_td_error", "target", "epistemic", "aleatoric",
    "target_error",
)  # fmt: skip
EXAMPLE = Transition(
    reward=np.float32(0), first=np.zeros((), bool), last=np.zeros((), bool), discount=np.float32(0)
)
ROW = jax.tree.map(lambda x: x[None], EXAMPLE)


def having(option):
    return [name for name, options in OPTIONS.items() if option in options]


@functools.cache
def replay_of(name, capacity=4, **options):
    entry = METHODS[name]
    config = entry.config(**RAW.get(name, {}) | options)
    return compiled(Replay(entry.method(config).sampler, capacity=capacity, batch_size=4))


def filled(replay, count=4, feedback=()):
    state = replay.init(jax.random.key(0), EXAMPLE)
    for number in range(count):
        td = dict.fromkeys(feedback, jnp.full(1, number + 2.0))
        state = replay.add(state, ROW, **td)
    return state


def priorities(state):
    sampler = state.sampler
    if isinstance(sampler, rank.RankState):
        return np.asarray(bucket_order.values(sampler.order))
    sampler = getattr(sampler, "priorities", sampler)
    return sum_tree.leaves(jax.device_get(sampler.tree))


def update(replay, state, td):
    """Update slots 0 to 3; the newest is slot `steps_added - 1` modulo 4."""
    slots, added = np.arange(4, dtype=np.int32), int(state.ring.steps_added)
    batch = replay.sample(state, jax.random.key(0))
    batch = batch._replace(indices=slots, version=added - (added - 1 - slots) % 4)
    return replay.update(state, batch, **dict.fromkeys(NAMES, np.float32(td)))


@pytest.mark.parametrize("name", METHODS)
def test_methods_have_the_options_of_the_table_and_refuse_others(name):
    config, method = METHODS[name].config, METHODS[name].method
    needed = {"length": 4} if name == "windows" else {}
    for option, value in VALUES.items():
        if option in OPTIONS.get(name, ()):
            chosen = config(**needed, **{option: value})
            assert getattr(chosen, option) == value
            assert method(chosen).sampler != method(config(**needed)).sampler
        else:
            with pytest.raises(TypeError, match=option):
                config(**needed, **{option: value})


# The others have the sampler of PER.
@pytest.mark.parametrize("maximum", ["all_time", "stored"])
@pytest.mark.parametrize("name", ["per", "rank"])
def test_new_transitions_get_the_maximum(name, maximum):
    replay = replay_of(name, maximum=maximum)
    state = filled(replay)
    assert maximum == "stored" or state.sampler.maximum is None  # stores no array for it
    np.testing.assert_allclose(priorities(state), [1, 1, 1, 1])
    state = update(replay, state, [0.5, 50.0, 0.25, 2.0])  # slot 1 is an outlier
    state = replay.add(state, ROW)
    np.testing.assert_allclose(priorities(state), [50, 50, 0.25, 2], rtol=1e-5)
    state = update(replay, state, [0.5, 0.125, 0.25, 2.0])
    state = replay.add(state, ROW)
    new = 2 if maximum == "stored" else 50
    np.testing.assert_allclose(priorities(state), [0.5, new, 0.25, 2], rtol=1e-5)
    np.testing.assert_allclose(replay.metrics(state)["max_priority"], new, rtol=1e-5)
    (rank if name == "rank" else proportional).check_valid(state.sampler, state.ring)


def test_new_transitions_of_la3p_get_the_maximum_of_the_rows_of_the_critic():
    # A batch of four has two uniform rows and one by priority; the last row is the actor's.
    for maximum, new in (("all_time", 50), ("stored", 2)):
        replay = replay_of("la3p", maximum=maximum)
        state = update(replay, filled(replay), [0.5, 50.0, 2.0, 99.0])
        np.testing.assert_allclose(priorities(state), [0.5, 50, 2, 1])
        state = replay.add(update(replay, state, [0.5, 0.125, 2.0, 99.0]), ROW)
        np.testing.assert_allclose(priorities(state), [new, 0.125, 2, 1])


@pytest.mark.parametrize("name", ["per", "rank"])
def test_stored_maximum_excludes_the_transition_that_is_overwritten(name):
    replay = replay_of(name, maximum="stored")
    state = update(replay, filled(replay), [50.0, 0.5, 0.25, 2.0])
    state = replay.add(state, ROW)  # overwrites the outlier
    np.testing.assert_allclose(priorities(state), [2, 0.5, 0.25, 2], rtol=1e-5)
    (rank if name == "rank" else proportional).check_valid(state.sampler, state.ring)


def test_la3p_forgets_the_overwritten_transition_in_both_trees():
    replay = replay_of("la3p", maximum="stored")
    state = update(replay, filled(replay), [50.0, 0.5, 2.0, 99.0])
    state = replay.add(state, ROW)  # overwrites the outlier
    np.testing.assert_allclose(priorities(state), [2, 0.5, 2, 1])
    np.testing.assert_allclose(sum_tree.leaves(state.sampler.inverse), [0.5, 2, 0.5, 1])


def test_la3p_gives_the_maximum_to_new_transitions_without_a_finite_td_error():
    replay = replay_of("la3p", initial="td")
    state = filled(replay, feedback=("td_error",))  # priorities 2, 3, 4 and 5
    state = replay.add(state, ROW, td_error=jnp.full(1, jnp.nan))
    np.testing.assert_allclose(priorities(state), [5, 3, 4, 5])
    np.testing.assert_allclose(sum_tree.leaves(state.sampler.inverse), [1 / 5, 1 / 3, 1 / 4, 1 / 5])


@pytest.mark.parametrize("name", ["per", "rank"])
def test_new_transitions_get_1_if_all_priorities_are_0(name):
    replay = replay_of(name, maximum="stored")
    state = replay.add(update(replay, filled(replay), [0.0] * 4), ROW)
    np.testing.assert_allclose(priorities(state), [1, 0, 0, 0])


@pytest.mark.parametrize("name", having("initial"))
def test_new_transitions_get_the_priority_of_their_td_error(name):
    replay = replay_of(name, initial="td")
    feedback = METHODS[name].method(METHODS[name].config(initial="td")).sampler.requires
    assert feedback.feedback_of_new == feedback.feedback
    state = filled(replay, feedback=feedback.feedback)
    np.testing.assert_allclose(priorities(state), [2, 3, 4, 5], rtol=1e-5)


# The draws of la3p, sil and sequences depend on other numbers as well.
@pytest.mark.parametrize("name", ["per", "pser", "curious", "reaper", "faded", "ners", "rank"])
def test_only_independent_draws_repeat_the_same_slot_in_most_batches(name):
    """Of four equal priorities, stratified draws take each once; independent ones do so in 9 %."""
    keys = jax.random.split(jax.random.key(1), 200)
    whole, state = {}, None
    for sampling in ("segments" if name == "rank" else "stratified", "iid"):
        alpha = {"alpha": 0.0} if name == "rank" else {}
        replay = replay_of(name, sampling=sampling, **alpha)
        state = filled(replay) if state is None else state
        drawn = jax.jit(jax.vmap(replay.sample, in_axes=(None, 0)))(state, keys).indices
        whole[sampling] = np.mean([len(set(batch)) == 4 for batch in np.asarray(drawn).tolist()])
    iid = whole.pop("iid")
    assert [*whole.values()] == [1] and 0.04 < iid < 0.16  # 4! / 4^4 = 0.094, 4 sigma


@pytest.mark.parametrize("name", ["rank", "ners"])
def test_weights_follow_the_probabilities_of_the_sampler(name):
    """With beta 1, a weight is 1 / (N P), divided by the largest as `normalise` names it."""
    for normalise in ("none", "batch", "buffer"):
        replay = replay_of(name, normalise=normalise, beta=1.0, sampling="iid")
        if normalise != "batch":  # whose state is that of "none"
            state = update(replay, filled(replay), [1.0, 2.0, 4.0, 8.0])
        raw = 1 / (4 * np.asarray(replay.probability(state, np.arange(4, dtype=np.int32))))
        assert raw.max() > 1.001 * raw.min()
        for seed in range(3):
            batch = replay.sample(state, jax.random.key(seed))
            expected = raw[np.asarray(batch.indices)]
            scale = {"none": 1.0, "buffer": raw.max(), "batch": expected.max()}[normalise]
            np.testing.assert_allclose(batch.weights, expected / scale, rtol=1e-4)
