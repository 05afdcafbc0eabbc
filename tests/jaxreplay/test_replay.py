"""The verbs of a replay: sizes that are asked for on demand, feedback, what is no sampler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, testing
from jaxreplay.methods import ero, latest, per, rank, refer, uniform
from tests.refusals import refused


def held(sampler, **sizes):
    sizes = {"capacity": 24, "batch_size": 8, "num_envs": testing.E} | sizes
    replay = Replay(sampler, **sizes)
    return replay, jax.eval_shape(replay.init, jax.random.key(0), testing.EXAMPLE)


VERBS = Replay._fields[: Replay._fields.index("capacity")]


@pytest.mark.parametrize("name", VERBS)
def test_verbs_are_explained_where_they_are_held(name):
    verb = getattr(held(uniform.sampler())[0], name)
    assert verb.__qualname__ == f"Replay.{name}" and verb.__name__ == name
    assert verb.__doc__
    with refused(f"Replay.{name}", error=TypeError):
        verb()


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (0, ("batch_size", "0")),
        (25, ("batch_size", "25", "capacity", "24")),
        (2.5, ("batch_size", "2.5")),
        (True, ("batch_size", "True")),
    ],
)
def test_sizes_that_can_not_be_drawn_are_refused(size, parts):
    replay, state = held(per.sampler())
    with refused(*parts):
        jax.eval_shape(lambda s, k: replay.sample(s, k, size), state, jax.random.key(0))
    with refused(*parts):
        jax.eval_shape(lambda s: replay.probability(s, [0], size), state)
    with refused(*parts):
        jax.eval_shape(lambda s: replay.can_sample(s, size), state)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"num_envs": 0}, ("num_envs", "0")),
        ({"num_envs": 5}, ("capacity", "24", "5", "20")),
        ({"frame_spare": "x"}, ("frame_spare", "'x'")),
        ({"frame_spare": -0.5}, ("frame_spare", "-0.5")),
        ({"store_next_obs": "no"}, ("store_next_obs", "'no'")),
        ({"rows_on_host": "no"}, ("rows_on_host", "'no'")),
    ],
)
def test_arguments_of_another_kind_are_refused(options, parts):
    with refused(*parts):
        held(uniform.sampler(), **options)


@pytest.mark.parametrize(
    ("name", "value"),
    [("frame_ahead", -7), ("frame_ahead", 7), ("frame_ahead", "x"), ("frames_on_host", True)],
)
def test_options_of_frames_without_frames_are_refused(name, value):
    with refused(name, repr(value), "frame_stack"):
        held(uniform.sampler(), **{name: value})


@pytest.mark.parametrize("verb", VERBS[1:])
def test_what_sample_returns_has_to_be_taken_apart(verb):
    replay, state = held(per.sampler())
    both = jax.eval_shape(replay.sample, state, jax.random.key(0))
    rest = {
        "add": (testing.EXAMPLE,), "update": (both[1],), "can_sample": (), "metrics": (),
        "sample": (jax.random.key(0),), "observe": (1.0, jax.random.key(0)), "probability": ([0],),
        "end_episodes": (), "add_rollout": (testing.EXAMPLE,),
    }  # fmt: skip
    with refused(verb, "batch = replay.sample(state, key)"):
        getattr(replay, verb)(both, *rest[verb])
    with refused(verb, "dict"):
        getattr(replay, verb)({}, *rest[verb])


def test_a_batch_has_to_be_taken_apart():
    replay, state = held(per.sampler())
    both = jax.eval_shape(replay.sample, state, jax.random.key(0))
    with refused("update", "Sample", "batch = replay.sample(state, key)"):
        replay.update(state, both, td_error=np.zeros(8))
    with refused("update", "Sample", "ndarray"):
        replay.update(state, np.zeros(8), td_error=np.zeros(8))


@pytest.mark.parametrize("method", [uniform, ero, refer], ids=["uniform", "ero", "refer"])
@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (np.zeros(2), ("episode_return", "[2]", "[]")),
        (np.bool_(True), ("episode_return", "bool")),
        (None, ("episode_return", "NoneType")),
    ],
)
def test_an_episode_has_one_return(method, given, parts):
    replay, state = held(method.sampler())
    with refused(*parts):
        replay.observe(state, given, jax.random.key(0))


@pytest.mark.parametrize("method", [uniform, per, rank, latest], ids=lambda m: m.__name__)
def test_slots_that_are_none_are_never_drawn(method):
    replay = Replay(method.sampler(), capacity=8, batch_size=2)
    state = replay.init(jax.random.key(0), {"a": np.float32(0)})
    feedback = {name: np.zeros(1, np.float32) for name in replay.requires.feedback_of_new}
    for _ in range(8):
        state = replay.add(state, {"a": np.ones(1, np.float32)}, **feedback)
    outside = np.asarray(replay.probability(state, [-9, -8, -1, 8, 9, 15, 2**31 - 1]))
    np.testing.assert_array_equal(outside, 0.0)
    assert replay.probability(state, range(8)).sum() == pytest.approx(1.0)
    for slots, dtype in (([0.0], "float64"), ([True], "bool")):
        with refused("slots", dtype):
            replay.probability(state, slots)


def test_new_steps_fill_whole_rows():
    with refused("batch_size", "15", "2", "14"):
        held(latest.sampler(), batch_size=15)


def test_a_size_has_to_be_known_when_sample_is_compiled():
    replay, state = held(per.sampler())
    with pytest.raises(ValueError, match="static_argnames='batch_size'"):
        jax.eval_shape(jax.jit(replay.sample), state, jax.random.key(0), 4)
    sample = jax.jit(replay.sample, static_argnames="batch_size")
    _, batch = jax.eval_shape(lambda s, k: sample(s, k, batch_size=4), state, jax.random.key(0))
    assert batch.indices.shape == batch.weights.shape == (4,)


def test_whether_a_batch_can_be_drawn_depends_on_its_size():
    replay = Replay(per.sampler(), capacity=8, batch_size=6, num_envs=2)
    state = replay.init(jax.random.key(0), {"a": np.float32(0)})
    for _ in range(2):
        state = replay.add(state, {"a": np.ones(2, np.float32)})
    assert [bool(replay.can_sample(state, size)) for size in (None, 4, 5)] == [False, True, False]


@pytest.mark.parametrize("method", [uniform, per], ids=["uniform", "per"])
def test_rows_of_an_empty_replay_weigh_nothing_under_jit(method):
    replay = Replay(method.sampler(), capacity=8, batch_size=4)
    state = replay.init(jax.random.key(0), {"a": np.float32(0)})
    batch = jax.jit(replay.sample)(state, jax.random.key(1))[1]
    np.testing.assert_array_equal(batch.weights, 0.0)


def test_on_policy_batches_have_their_size():
    replay, state = held(latest.sampler())
    with refused("batch_size", "4", "8"):
        jax.eval_shape(lambda s, k: replay.sample(s, k, 4), state, jax.random.key(0))
    jax.eval_shape(lambda s, k: replay.sample(s, k, 8), state, jax.random.key(0))


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (per, ("module", ".sampler()")),
        (per.method(), ("Method", ".sampler")),
        (per.sampler, ("function",)),
        (per.method, ("function",)),
        (per.PERConfig, ("type",)),
        (per.PERConfig(), ("PERConfig",)),
        (jnp, ("module",)),
        (jnp.zeros, ("function",)),
        (None, ("NoneType",)),
    ],
)
def test_what_is_no_sampler_is_refused_with_a_hint_that_leads_to_one(given, parts):
    with refused("Replay", "Sampler", *parts) as error:
        Replay(given, capacity=8, batch_size=2)
    if given is jnp or given is None:  # where no hint leads to one
        assert ".sampler" not in str(error.value)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (per.method(per.PERConfig(initial="td")), "td_error"),
        (rank.method(), "td_error"),
        (ero.method(), "td_error"),
        (refer.method(), "log_ratio"),
    ],
    ids=["per", "rank", "ero", "refer"],
)
def test_feedback_beyond_float32_is_dropped_like_infinity_where_doubles_are_enabled(method, name):
    replay = Replay(method.sampler, capacity=24, batch_size=8, num_envs=testing.E)
    new = replay.requires.feedback_of_new
    init, sample = jax.jit(lambda key: replay.init(key, testing.EXAMPLE)), jax.jit(replay.sample)
    add = jax.jit(lambda state, row, told: replay.add(state, row, **dict.fromkeys(new, told)))
    update = jax.jit(lambda state, batch, told: replay.update(state, batch, **{name: told}))
    rows = [testing.rows(time) for time in range(12)]

    def run(key, bad):
        state = init(key)
        for time, row in enumerate(rows):
            told = np.ones(testing.E, bad.dtype)
            told[0] = bad if time == 6 else 1
            state = add(state, row, told)
        state, batch = sample(state, key)
        told = 0.5 + np.arange(8, dtype=bad.dtype) / 4
        told[2] = bad
        return update(state, batch, told)

    with jax.enable_x64(True):
        bad = np.float64(-1e300)
        assert jnp.asarray(bad).dtype == jnp.float64
        found = run(jax.random.key(0), bad)
    for leaf in map(np.asarray, jax.tree.leaves(found)):
        assert not np.isinf(leaf).any()
    assert int(found.dropped) == 1 + bool(new)  # of a batch, and of new transitions
    expected = run(jax.random.key(0), np.float32(-np.inf))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("given", [jnp.float32, jnp.int32])
@pytest.mark.parametrize(
    "stored", [{}, {"store_next_obs": False}, {"frame_stack": 3}], ids=["twice", "once", "stacks"]
)
def test_numbers_beyond_the_dtype_that_stores_them_are_dropped_like_infinity(stored, given):
    obs = jnp.zeros((1, 3), jnp.float16)
    example = testing.EXAMPLE._replace(obs=obs, next_obs=obs, reward=jnp.zeros(()))
    replay = Replay(uniform.sampler(), capacity=8, batch_size=4, num_envs=2, **stored)
    wide = jnp.ones((2, 1, 3), given).at[1, 0, 2].set(100_000)  # float16 ends at 65 504
    row = jax.tree.map(lambda x: jnp.broadcast_to(x, (2, *x.shape)), example)
    state = replay.add(replay.init(jax.random.key(0), example), row._replace(obs=wide))
    assert int(state.dropped) == 1
    batch = replay.sample(state, jax.random.key(1))
    assert np.isfinite(np.asarray(batch.transition.obs, np.float32)).all()


def test_feedback_of_new_transitions_that_is_not_finite_is_counted():
    replay = Replay(per.sampler(per.PERConfig(initial="td")), capacity=8, batch_size=4, num_envs=2)
    (name,) = replay.requires.feedback_of_new
    state = replay.init(jax.random.key(0), testing.EXAMPLE)
    row = jax.tree.map(lambda x: jnp.broadcast_to(x, (2, *jnp.shape(x))), testing.EXAMPLE)
    state = replay.add(state, row, **{name: jnp.array([1.0, jnp.nan])})
    assert int(state.dropped) == 1
