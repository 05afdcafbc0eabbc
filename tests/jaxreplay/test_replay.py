"""A replay as a value, and its methods: sizes, storage, feedback, invalid samplers."""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Frames, Replay, Sampler, SharedObservations, Transitions, testing
from jaxreplay.methods import METHODS, ero, latest, per, rank, refer, sequences, slices, uniform
from tests.refusals import refused


def held(sampler, **sizes):
    sizes = {"capacity": 24, "batch_size": 8, "num_envs": testing.E} | sizes
    replay = Replay(sampler, **sizes)
    return replay, jax.eval_shape(replay.init, jax.random.key(0), testing.EXAMPLE)


VERBS = [name for name, _ in inspect.getmembers(Replay, inspect.isfunction) if name[0] != "_"]


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (0, ("batch_size", "0")),
        (25, ("batch_size", "25", "capacity", "24")),
        (2.5, ("batch_size", "2.5")),
        (True, ("batch_size", "True")),
    ],
)
def test_invalid_batch_sizes_are_refused(size, parts):
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
        ({"storage": "once"}, ("storage", "'once'", "SharedObservations()")),
        ({"storage": Frames}, ("storage", "Frames", "SharedObservations()")),
    ],
)
def test_invalid_constructor_arguments_are_refused(options, parts):
    with refused(*parts):
        held(uniform.sampler(), **options)


@pytest.mark.parametrize(
    ("kind", "options", "parts"),
    [
        (SharedObservations, {"spare": "x"}, ("spare", "'x'")),
        (SharedObservations, {"spare": -0.5}, ("spare", "-0.5")),
        (SharedObservations, {"ahead": 0}, ("ahead", "0")),
        (SharedObservations, {"ahead": 1.5}, ("ahead", "1.5")),
        (Frames, {"stack": 0}, ("stack", "0")),
        (Frames, {"stack": "x"}, ("stack", "'x'")),
        (Frames, {"stack": 4, "spare": -0.1}, ("spare", "-0.1")),
        (Frames, {"stack": 4, "ahead": -7}, ("ahead", "-7")),
    ],
)
def test_invalid_storage_options_are_refused(kind, options, parts):
    with refused(*parts):
        kind(**options)


MAKERS = {name: (entry.config, entry.method) for name, entry in METHODS.items()}
MAKERS["sequences"] = sequences.SequencesConfig, sequences.method
MAKERS["slices"] = slices.SlicesConfig, slices.method


@pytest.mark.parametrize("name", MAKERS)
def test_replays_built_alike_are_equal_and_hash_alike(name):
    config, method = MAKERS[name]

    def build(updates=100, **sizes):
        sampler = testing.with_goals(method(config().for_run(updates))).sampler
        sizes = {"capacity": 64, "batch_size": 16, "storage": SharedObservations(ahead=3)} | sizes
        return Replay(sampler, **sizes)

    replays = build(), build()
    assert replays[0].sampler is not replays[1].sampler
    assert replays[0] == replays[1] and hash(replays[0]) == hash(replays[1])
    others = [{"capacity": 128}, {"batch_size": 32}, {"storage": Transitions()}]
    # The base method's own horizon (`over_updates`) has an effect only if it has schedules.
    others += [{"updates": 50}] if hasattr(config(), "updates") else []
    assert all(build(**other) != replays[0] for other in others)
    traces = []

    @functools.partial(jax.jit, static_argnums=0)
    def traced(replay):
        traces.append(replay)
        return replay.capacity

    assert [int(traced(replay)) for replay in replays] == [64, 64] and len(traces) == 1


@pytest.mark.parametrize("verb", [name for name in VERBS if name != "init"])
def test_methods_refuse_objects_that_are_not_a_state(verb):
    replay, state = held(per.sampler())
    batch = jax.eval_shape(replay.sample, state, jax.random.key(0))
    rest = {
        "add": (testing.EXAMPLE,), "update": (batch,), "can_sample": (), "metrics": (),
        "sample": (jax.random.key(0),), "observe_return": (1.0, jax.random.key(0)),
        "probability": ([0],), "refresh": ([0],),
        "end_episodes": (), "add_rollout": (testing.EXAMPLE,), "after_reading": (batch,),
    }  # fmt: skip
    for other in (batch, (state, batch), {}):
        with refused(verb, type(other).__name__):
            getattr(replay, verb)(other, *rest[verb])


@pytest.mark.parametrize("verb", ["update", "after_reading"])
def test_update_and_after_reading_refuse_objects_that_are_not_a_batch(verb):
    replay, state = held(per.sampler())
    for other in (np.zeros(8), state):
        with refused(type(other).__name__, "replay.sample"):
            getattr(replay, verb)(state, other)


def test_after_reading_changes_no_value():
    replay = Replay(per.sampler(), capacity=24, batch_size=8, num_envs=testing.E)

    @functools.partial(jax.jit, static_argnums=1)
    def played(key, waits):
        def step(state, time):
            batch = replay.sample(state, jax.random.fold_in(key, time))
            if waits:
                state = replay.after_reading(state, batch)
            state = replay.add(state, testing.rows(time))
            state = replay.update(state, batch, td_error=batch.transition.reward)
            return state, batch

        state = replay.add(replay.init(key, testing.EXAMPLE), testing.rows(0))
        return jax.lax.scan(step, state, jnp.arange(20))

    testing.same(played(jax.random.key(0), True), played(jax.random.key(0), False))
    state, batches = played(jax.random.key(0), True)
    batch = jax.tree.map(lambda x: x[-1], batches)
    testing.same(jax.jit(replay.after_reading)(state, batch), state)
    many = jax.tree.map(lambda x: jnp.stack([x, x]), (state, batch))
    testing.same(jax.jit(jax.vmap(replay.after_reading))(*many), many[0])


@pytest.mark.parametrize("method", [uniform, ero, refer], ids=["uniform", "ero", "refer"])
@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (np.zeros(2), ("episode_return", "[2]", "[]")),
        (np.bool_(True), ("episode_return", "bool")),
        (None, ("episode_return", "NoneType")),
    ],
)
def test_observe_refuses_returns_that_are_not_one_number(method, given, parts):
    replay, state = held(method.sampler())
    with refused(*parts):
        replay.observe_return(state, given, jax.random.key(0))


@pytest.mark.parametrize("method", [per, rank, latest], ids=lambda m: m.__name__)
def test_slots_out_of_range_have_probability_0(method):
    replay = Replay(method.sampler(), capacity=8, batch_size=2)
    state, add = jax.jit(replay.init)(jax.random.key(0), {"a": np.float32(0)}), jax.jit(replay.add)
    feedback = {name: np.zeros(1, np.float32) for name in replay.requires.feedback_of_new}
    for _ in range(8):
        state = add(state, {"a": np.ones(1, np.float32)}, **feedback)
    probability = lambda slots: np.asarray(jax.jit(lambda s: replay.probability(s, slots))(state))
    np.testing.assert_array_equal(probability([-9, -8, -1, 8, 9, 15, 2**31 - 1]), 0.0)
    assert probability(range(8)).sum() == pytest.approx(1.0)
    for slots, dtype in (([0.0], "float64"), ([True], "bool")):
        with refused("slots", dtype):
            replay.probability(state, slots)


def test_latest_requires_batches_of_whole_rows():
    with refused("batch_size", "15", "2", "14"):
        held(latest.sampler(), batch_size=15)


def test_batch_size_must_be_static_under_jit():
    replay, state = held(per.sampler())
    with pytest.raises(ValueError, match="static_argnames='batch_size'"):
        jax.eval_shape(jax.jit(replay.sample), state, jax.random.key(0), 4)
    sample = jax.jit(replay.sample, static_argnames="batch_size")
    batch = jax.eval_shape(lambda s, k: sample(s, k, batch_size=4), state, jax.random.key(0))
    assert batch.indices.shape == batch.weights.shape == (4,)


def test_can_sample_depends_on_the_batch_size():
    replay = Replay(per.sampler(), capacity=8, batch_size=6, num_envs=2)
    state = replay.init(jax.random.key(0), {"a": np.float32(0)})
    for _ in range(2):
        state = jax.jit(replay.add)(state, {"a": np.ones(2, np.float32)})
    assert [bool(replay.can_sample(state, size)) for size in (None, 4, 5)] == [False, True, False]


@pytest.mark.parametrize("method", [per, rank], ids=["per", "rank"])
def test_feedback_for_an_empty_replay_is_dropped(method):
    replay = Replay(method.sampler(), capacity=8, batch_size=4)
    state = jax.jit(replay.init)(jax.random.key(0), {"a": np.float32(0)})
    batch, metrics = jax.jit(replay.sample)(state, jax.random.key(1)), jax.jit(replay.metrics)
    after = jax.jit(replay.update)(state, batch, td_error=jnp.full(4, 100.0))
    assert after.dropped == 4
    before, changed = metrics(state), metrics(after)
    assert changed["max_priority"] == before["max_priority"]
    assert changed["mean_priority"] == before["mean_priority"]


def test_latest_refuses_another_batch_size():
    replay, state = held(latest.sampler())
    with refused("batch_size", "4", "8"):
        jax.eval_shape(lambda s, k: replay.sample(s, k, 4), state, jax.random.key(0))
    jax.eval_shape(lambda s, k: replay.sample(s, k, 8), state, jax.random.key(0))


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (per, "module"),
        (per.method(), "Method"),
        (per.sampler, "function"),
        (per.PERConfig, "type"),
        (None, "NoneType"),
    ],
)
def test_objects_that_are_not_samplers_are_refused(given, kind):
    with refused("Sampler", kind, "per.sampler()", "method.sampler"):
        Replay(given, capacity=8, batch_size=2)


@dataclasses.dataclass(frozen=True)
class Listed(uniform.Uniform):
    """A sampler with an option that cannot be hashed."""

    options: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Thawed(Sampler):
    """A sampler whose options are mutable."""

    option: int = 0


@pytest.mark.parametrize(("sampler", "why"), [(Listed(), "list"), (Thawed(), "Thawed")])
def test_unhashable_samplers_are_refused(sampler, why):
    with refused(type(sampler).__name__, why, "frozen"):
        Replay(sampler, capacity=8, batch_size=2)


def test_float64_feedback_beyond_float32_is_dropped_like_infinity():
    replay = Replay(
        per.sampler(per.PERConfig(initial="td")), capacity=24, batch_size=8, num_envs=testing.E
    )
    new = replay.requires.feedback_of_new
    init, sample = jax.jit(lambda key: replay.init(key, testing.EXAMPLE)), jax.jit(replay.sample)
    add = jax.jit(lambda state, row, told: replay.add(state, row, **dict.fromkeys(new, told)))
    update = jax.jit(lambda state, batch, told: replay.update(state, batch, td_error=told))
    rows = [testing.rows(time) for time in range(12)]

    def run(key, bad):
        state = init(key)
        for time, row in enumerate(rows):
            told = np.ones(testing.E, bad.dtype)
            told[0] = bad if time == 6 else 1
            state = add(state, row, told)
        batch = sample(state, key)
        told = 0.5 + np.arange(8, dtype=bad.dtype) / 4
        told[2] = bad
        return update(state, batch, told)

    with jax.enable_x64(True):
        bad = np.float64(-1e300)
        assert jnp.asarray(bad).dtype == jnp.float64
        found = run(jax.random.key(0), bad)
    for leaf in map(np.asarray, jax.tree.leaves(found)):
        assert not np.isinf(leaf).any()
    assert int(found.dropped) == 2  # of a batch and of new transitions
    expected = run(jax.random.key(0), np.float32(-np.inf))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("storage", "given"),
    [
        (Transitions(), jnp.float32),
        (Transitions(), jnp.int32),
        (SharedObservations(), jnp.float32),
        (Frames(stack=3), jnp.float32),
    ],
)
def test_observations_beyond_their_stored_dtype_are_dropped(storage, given):
    obs = jnp.zeros((1, 3), jnp.float16)
    example = testing.EXAMPLE._replace(obs=obs, next_obs=obs, reward=jnp.zeros(()))
    replay = Replay(uniform.sampler(), capacity=8, batch_size=4, num_envs=2, storage=storage)
    wide = jnp.ones((2, 1, 3), given).at[1, 0, 2].set(100_000)  # the largest float16 is 65 504
    row = jax.tree.map(lambda x: jnp.broadcast_to(x, (2, *x.shape)), example)

    @jax.jit
    def run(key, wide):
        state = replay.add(replay.init(key, example), row._replace(obs=wide))
        return state.dropped, replay.sample(state, key)

    dropped, batch = run(jax.random.key(0), wide)
    assert int(dropped) == 1
    assert np.isfinite(np.asarray(batch.transition.obs, np.float32)).all()


def test_new_transitions_with_feedback_that_is_not_finite_are_counted():
    replay = Replay(per.sampler(per.PERConfig(initial="td")), capacity=8, batch_size=4, num_envs=2)
    (name,) = replay.requires.feedback_of_new
    state = replay.init(jax.random.key(0), testing.EXAMPLE)
    row = jax.tree.map(lambda x: jnp.broadcast_to(x, (2, *jnp.shape(x))), testing.EXAMPLE)
    state = jax.jit(replay.add)(state, row, **{name: jnp.array([1.0, jnp.nan])})
    assert int(state.dropped) == 1


def test_functions_of_equal_replays_are_traced_once():
    traces = []

    @dataclasses.dataclass(frozen=True)
    class Counting(uniform.Uniform):
        def sample(self, state, ring, key, batch_size):
            traces.append(batch_size)
            return super().sample(state, ring, key, batch_size)

    replays = [Replay(Counting(), capacity=8, batch_size=2, num_envs=2) for _ in range(2)]
    state = replays[0].init(jax.random.key(0), testing.EXAMPLE)
    row = testing.rows(0)
    state = jax.jit(replays[0].add)(state, row)
    for replay in (*replays, *replays):
        jax.jit(replay.sample)(state, jax.random.key(1))
    assert traces == [2]
    assert replays[0].sample == replays[1].sample


def test_numpy_integers_are_valid_batch_sizes():
    replay, state = held(uniform.sampler())
    sample = lambda state: replay.sample(state, jax.random.key(0), batch_size=np.int32(4))
    batch = jax.eval_shape(sample, state)
    assert batch.weights.shape == (4,)
