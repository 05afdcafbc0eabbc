"""Contract tests for every replay method, under the transformations and settings of JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import monitoring
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from experiments.runs import registry
from jaxreplay import Replay, ring, sum_tree, testing
from jaxreplay.contrib import eper, faded, geometric, relo
from jaxreplay.methods import (
    METHODS,
    her,
    lap,
    per,
    proportional,
    pser,
    rank,
    refer,
    sequences,
    slices,
    windows,
)
from jaxreplay.methods.parts import bucket_order
from jaxreplay.option import options_of
from jaxreplay.ring import check_valid
from jaxreplay.testing import BATCH, CAPACITY, EXAMPLE, E, rows
from jaxreplay.types import Requirements
from tests.methods import DISTINCT, checks, quick
from tests.refusals import refused

VARIANTS = {name: entry.method(entry.config().for_run(100)) for name, entry in METHODS.items()} | {
    "per-buffer-iid": per.method(
        per.PERConfig(normalise="buffer", sampling="iid", initial="td").for_run(100)
    ),
    "per-none": per.method(per.PERConfig(normalise="none").for_run(100)),
    "pser-add": pser.method(pser.PSERConfig(combine="add", decay_on_add=True)),
    "refer-tight": refer.method(refer.ReFERConfig(capacity_factor=1)),
    "refer-returns": refer.method(
        refer.ReFERConfig(returns=True, refresh_every=2, capacity_factor=1)
    ),
    "windows": windows.method(windows.WindowsConfig(length=4)),
    "sequences": sequences.method(sequences.SequencesConfig(length=4, period=2, burn_in=1)),
    "slices": slices.method(slices.SlicesConfig(length=4, burn_in=1)),
    "rank-sorted": rank.method(rank.RankConfig(order="sorted", alpha_end=0.0).for_run(100)),
    **{
        f"geometric-{shape}": geometric.method(geometric.GeometricConfig(shape=shape, x=2.0))
        for shape in ("window", "newest_or_uniform", "comb", "linear", "weighted")
    },
    "her-rank": her.method(her.HERConfig(over="rank", strategy="episode").for_run(100)),
}


_rows = jax.jit(rows)


@functools.cache
def case_of(name):
    return testing.Case((VARIANTS | MORE)[name])


# Branches that the variants do not cover.
MORE = {
    "rank-greedy": rank.method(rank.RankConfig(sampling="greedy")),
    "rank-effective": rank.method(
        rank.RankConfig(order="sorted", weights="effective", normalise="buffer")
    ),
}
# Variants of methods that the quick tests already cover: test_geometric.py draws from every shape,
# EPER and ReLo equal PER below, and UPER is PER with a leaf that test_uper.py computes by hand.
SLOW = (
    "per-none", "rank-sorted", "her-rank", "pser-add", "refer-tight", "geometric-window",
    "geometric-newest_or_uniform", "geometric-comb", "geometric-linear", "geometric-weighted",
    "eper", "relo", "uper",
)  # fmt: skip
UNIFORM = ("pal", "laber", "discor")  # whose sampler is that of uniform replay
FEW = {
    # Outside of jit, every operation is compiled separately. A test below vmaps and scans others.
    testing.eager_jit_vmap_and_scan_agree: ("per",),
    testing.donation_changes_nothing: (),  # the same test donates
    # Other methods draw in the way of one of these.
    testing.batch_size_may_equal_the_capacity: (
        *DISTINCT, "windows", "slices", "latest", "cer", "reverse", "la3p", "masked", "sil",
    ),
}  # fmt: skip


def test_some_methods_have_the_sampler_of_uniform_replay():
    assert {VARIANTS[name].sampler for name in UNIFORM} == {VARIANTS["uniform"].sampler}


@pytest.mark.parametrize(
    ("name", "law"), checks([name for name in VARIANTS if name not in UNIFORM], SLOW, FEW)
)
def test_methods_keep_the_contract(name, law):
    law(case_of(name))


@pytest.mark.parametrize("name", [name for name in DISTINCT if name != "per"])
def test_vmapped_scans_of_donated_states_equal_steps(name):
    case, steps = case_of(name), 15
    stacked, step = jax.tree.map(lambda x: jnp.stack([x, x]), case.fill()), (case.fill(), None)
    for time in range(steps):
        step = case.step(step[0], time)
    assert case.traces == 1
    scan = jax.vmap(lambda s: jax.lax.scan(case.cycle, s, jnp.arange(steps)))
    run = jax.jit(scan, donate_argnums=0)
    found, batches = run(stacked)
    last = jax.tree.map(lambda x: x[:, -1], batches)
    testing.same((found, last), jax.tree.map(lambda x: np.stack([x, x]), step), rtol=1e-5)
    assert stacked.ring.words.is_deleted()


# Values that an option of a method refuses.
NAN = float("nan")
PRIORITIES = {
    "alpha": (-0.1, NAN), "beta": (-0.5, 1.1), "beta_updates": (0,), "normalise": ("max",),
    "loss": ("l2",),
}  # fmt: skip
REFUSED = {
    "per": PRIORITIES | {"epsilon": (-1.0,), "clip": (0.0,), "sampling": ("random",)},
    "rank": PRIORITIES | {
        "alpha_end": (-1.0,), "alpha_updates": (0,), "order": ("heap",), "sampling": ("heap",),
        "weights": ("exact",),
    },
    "pser": {
        "alpha": (-1.0,), "beta": (2.0,), "rho": (0.0, 1.0, 1.5, NAN), "eta": (-0.1, 1.1),
        "window": (0,), "threshold": (1.0,), "combine": ("sum",),
    },
    "ere": {"eta": (0.0, 1.1), "smallest": (0,), "eta_updates": (0,)},
    "ero": {"hidden": ((), (8, 0)), "learning_rate": (0.0,), "batch_size": (0,)},
    "ners": {
        "alpha": (-1.0,), "beta": (-0.5,), "features": ((), ("obs", "age")), "hidden": ((),),
        "reward": ("returns",), "gradient": ("subset",), "learning_rate": (0.0,),
        "train_size": (0,),
    },
    "refer": {
        "clip": (0.0, NAN, 1096.0), "anneal": (-1.0,), "target": (1.5,), "beta": (-0.1,),
        "beta_rate": (2.0,), "forget": ("newest",), "direction": ("both",), "refresh_every": (0,),
        "capacity_factor": (0,),
    },
    "faded": {"fade": (0.89, 1.1), "floor": (0.0, 1.1)},
    "reverse": {"sweeps": (0,)},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_options_out_of_range_are_refused(name):
    for option, values in REFUSED[name].items():
        for value in values:
            last = value if not isinstance(value, tuple) else value[-1] if value else option
            with refused(option, last):
                METHODS[name].config(**{option: value})


# Agents that offer what a method requires, of methods that few agents can learn from.
FED = {
    "discor": ["dqn", "discrete_sac", "td3", "td7", "sac", "ddpg", "naf"],
    "eper": ["dqn"],
    "laber": ["dqn", "rainbow", "discrete_sac", "td3", "td7", "sac", "ddpg", "naf"],
    "relo": [
        "dqn", "ensemble_qr", "discrete_sac", "td3", "td7", "sac", "iql", "ddpg", "naf"
    ],
    "uper": ["ensemble_qr"],
}  # fmt: skip
LACKING = {"eper": "expected_td_error", "relo": "reducible_loss", "uper": "epistemic"}


@pytest.mark.parametrize("name", FED)
def test_only_these_agents_feed_the_method(name):
    assert [agent for agent in registry.AGENTS if registry.feeds(agent, name)] == FED[name]
    for agent in registry.AGENTS.keys() - {*FED[name]}:
        example = registry.EXAMPLES[registry.AGENTS[agent].actions]
        with refused(name, agent):
            registry.check_fit(agent, name, example)
    if name in LACKING:
        with refused(name, "rainbow", LACKING[name]):
            registry.check_fit("rainbow", name, "gymnax/CartPole-v1")


# Methods that equal another one with these options: pairs of the two.
PER = per.method()
EQUAL = {
    "eper": (eper.method(), PER),
    "relo": (relo.method(relo.ReLoConfig(alpha=0.6, epsilon=1e-6)), PER),
    "faded": (faded.method(faded.FadedConfig(fade=1.0)), lap.method()),
}
case_for = functools.cache(testing.Case)


@pytest.mark.parametrize("name", EQUAL)
def test_methods_equal_others_with_these_options(name):
    """Given the same feedback."""
    cases = [case_for(method) for method in EQUAL[name]]
    states = [case.fill() for case in cases]
    rng = np.random.default_rng(0)
    for time in range(8, 20):
        states = [case.add(state, _rows(time)) for case, state in zip(cases, states)]
        key = jax.random.key(time)
        batches = [case.sample(state, key) for case, state in zip(cases, states)]
        np.testing.assert_array_equal(batches[0].indices, batches[1].indices)
        np.testing.assert_allclose(batches[0].weights, batches[1].weights, rtol=1e-4)
        td = np.float32(rng.gamma(1.0, 3.0, CAPACITY))[np.asarray(batches[1].indices)]
        states = [
            case.update(state, batch, case.feedback_of(td))
            for case, state, batch in zip(cases, states, batches)
        ]
        found, expected = (case.probability(state) for case, state in zip(cases, states))
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    first, second = (method.objective for method in EQUAL[name])
    if name != "faded":
        assert first._replace(requires=Requirements()) == second


@pytest.mark.parametrize("name", METHODS)
def test_options_survive_files_and_command_lines(name):
    testing.check_config(METHODS[name].config())


@pytest.mark.parametrize("name", ["per", "ners", "refer"])
def test_calls_outside_of_jit_do_not_recompile(name):
    case, compiled = case_of(name), []

    def told(event, seconds, **_):
        compiled.extend([seconds] if event.endswith("/backend_compile_duration") else [])

    def cycles(state, times):
        for time in times:
            state, _ = case.cycle(state, time)
        return state

    state = cycles(case.full, (20, 21))
    monitoring.register_event_duration_secs_listener(told)
    try:
        cycles(state, (22, 23))
    finally:
        monitoring.unregister_event_duration_listener(told)
    assert not compiled


def values(td):
    """Return feedback for a batch with constant TD errors `td`."""
    zeros = np.zeros(BATCH, np.float32)
    return dict.fromkeys(testing.FEEDBACK, zeros) | {"td_error": zeros + np.float32(td)}


@pytest.mark.parametrize("name", ["per", "lap", "pser", "ners", "rank", "per-buffer-iid"])
def test_batches_are_ordered_by_slot_or_rank_unless_iid(name):
    case = case_of(name)
    state = case.full
    for seed in range(3):
        batch = case.sample(state, jax.random.key(seed))
        td_error = {"td_error": jax.random.normal(jax.random.key(seed), (BATCH,))}
        state = case.update(state, batch, case.feedback_of(jnp.ones(BATCH)) | td_error)
    batch = case.sample(state, jax.random.key(7))
    order = np.asarray(batch.indices)
    if name == "rank":
        order = -np.log(bucket_order.values(state.sampler.order)[order])
    ties = 0.13 if name == "rank" else 0  # TD errors within 12.5 % may be in any order
    assert (np.diff(order) >= -ties).all() == (name != "per-buffer-iid")


# Methods with independent draws (of first steps, for `windows` and `sequences`).
INDEPENDENT = {
    name: VARIANTS[name] for name in ("uniform", "pal", "ere", "ero", "refer", "windows")
}
INDEPENDENT |= {
    f"{name}-iid": entry.method(entry.config(sampling="iid").for_run(100))
    for name, entry in METHODS.items()
    if any(x.name == "sampling" and "iid" in x.choices for x in options_of(entry.config))
}
INDEPENDENT["rank-sorted-iid"] = rank.method(rank.RankConfig(order="sorted", sampling="iid"))
INDEPENDENT["sequences-iid"] = sequences.method(
    sequences.SequencesConfig(length=4, period=2, sampling="iid")
)


def draws_of(case, count):
    """Return a function that maps a state to the indices of `count` batches.

    For sequences and windows, these are the slots of their first steps.
    """
    keys = jax.random.split(jax.random.key(1), count)
    sample = jax.jit(jax.vmap(case.replay.sample, (None, 0)))

    def draws(state):
        batches = sample(state, keys)
        if isinstance(batches.aux, windows.Aux):
            return np.asarray(batches.aux.slots)[:, 0]
        return np.asarray(batches.indices).reshape(count, BATCH, -1)[..., 0]

    return draws


@pytest.mark.parametrize("name", quick(INDEPENDENT))
def test_two_draws_coincide_as_often_as_independent_draws(name):
    """Two rows of a batch are both slot i with probability P(i)^2, also for equal priorities."""
    case = testing.Case(INDEPENDENT[name])
    draws, state = draws_of(case, 4000), case.fill(8)
    for updates in (0, 9):
        for time in range(8, 8 + updates):
            state, _ = case.step(state, time)
        drawn = draws(state)
        places = range(drawn.shape[1])
        pairs = [(drawn[:, i] == drawn[:, j]).mean() for i in places for j in places if i < j]
        square = (np.bincount(drawn.ravel()) / drawn.size) ** 2
        rtol = 0.15 if len(pairs) == 1 else 0.05
        np.testing.assert_allclose(np.mean(pairs), square.sum(), rtol=rtol)


@pytest.mark.parametrize("name", ["rank", "rank-greedy", "latest"])
def test_sampling_without_replacement_never_repeats_a_slot(name):
    case = case_of(name)
    draws, state = draws_of(case, 500), case.fill(8)  # all priorities are equal
    for time in range(8, 12):
        drawn = np.sort(draws(state), axis=1)
        assert (np.diff(drawn, axis=1) > 0).all()
        state, _ = case.step(state, time)


@settings(max_examples=24, deadline=None, derandomize=True)
@given(
    st.sampled_from(["uniform", "per", "lap", "per-buffer-iid"]),
    st.lists(
        st.one_of(
            st.just(("add", 0.0)),
            st.just(("add", 0.0)),  # so that slots are overwritten between draw and update
            st.tuples(
                st.just("update"),
                st.floats(-1e3, 1e3, width=32) | st.sampled_from([np.nan, np.inf, -np.inf]),
            ),
        ),
        min_size=15,
        max_size=40,
    ),
)
def test_any_sequence_of_operations_keeps_the_invariants(name, operations):
    case = case_of(name)
    state, batch, written, dropped = case.init(jax.random.key(0)), None, {}, 0
    largest, steps_added = 1.0, 0
    leaf_of = {
        "per": lambda td: (abs(td) + 1e-6) ** 0.6,
        "per-buffer-iid": lambda td: (abs(td) + 1e-6) ** 0.6,
        "lap": lambda td: max(abs(td), 1.0) ** 0.4,
    }.get(name)
    for number, (what, value) in enumerate(operations):
        if what == "add":
            started = largest
            for place in range(steps_added * E, steps_added * E + E):
                # The reward of a new step, which is its place, may be its feedback.
                leaf = leaf_of(place) if case.replay.requires.feedback_of_new else started
                largest = max(largest, leaf)
                written[place % CAPACITY] = (steps_added, leaf)
            state, steps_added = case.add(state, _rows(steps_added)), steps_added + 1
        elif steps_added * E >= BATCH:
            # Half of the updates are late, after other operations.
            if batch is None or number % 2:
                batch = case.sample(state, jax.random.key(number))
            state = case.update(state, batch, values(value))
            for slot, version in zip(np.asarray(batch.indices), np.asarray(batch.version)):
                if written[slot][0] + 1 != version or not np.isfinite(value):
                    dropped += 1
                elif leaf_of:
                    written[slot] = (written[slot][0], leaf_of(value))
            if leaf_of and np.isfinite(value):
                live = [written[s][1] for s in np.asarray(batch.indices)]
                largest = max(largest, *live)
    check_valid(state.ring)
    assert int(state.dropped) == dropped
    assert int(ring.size(state.ring)) == len(written)
    held = ring.gather(state.ring, jnp.arange(CAPACITY))
    for slot, (row, leaf) in written.items():
        assert float(held.reward[slot]) == row * E + slot % E
        if leaf_of:
            np.testing.assert_allclose(sum_tree.leaves(state.sampler.tree)[slot], leaf, rtol=1e-4)
    if leaf_of:
        proportional.check_valid(state.sampler, state.ring)
        np.testing.assert_allclose(state.sampler.max_leaf, largest, rtol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ({"capacity": 8, "batch_size": 0}, ("batch_size", "0")),
        ({"capacity": 8, "batch_size": 9}, ("batch_size", "9", "capacity", "8")),
        ({"capacity": 10, "batch_size": 2, "num_envs": 4}, ("capacity", "10", "4", "8")),
    ],
)
def test_invalid_sizes_are_refused(sizes, parts):
    with refused(*parts):
        Replay(VARIANTS["uniform"].sampler, **sizes)


@pytest.mark.parametrize("name", quick(sorted(VARIANTS | MORE)))
@pytest.mark.filterwarnings("error")
def test_replays_keep_their_dtypes_with_x64_enabled(name):
    """Dtypes of the state, batches, probabilities and metrics."""
    replay, shape = case_of(name).replay, case_of(name).shape

    def steps(key):
        row = jax.tree.map(lambda x: jnp.broadcast_to(x, (E, *x.shape)), EXAMPLE)
        before = replay.init(key, EXAMPLE)
        double = jnp.linspace(0.1, 1.0, BATCH)
        state = replay.add(
            before, row, **dict.fromkeys(replay.requires.feedback_of_new, double[:E])
        )
        batch = replay.sample(state, key)
        td = jnp.broadcast_to(double.reshape(-1, *(1,) * (len(shape) - 1)), shape)
        state = replay.update(state, batch, **dict.fromkeys(testing.FEEDBACK, td))
        state = replay.observe_return(state, double[0], key)
        seen = batch, replay.probability(state, batch.indices.ravel()), replay.metrics(state)
        return before, state, seen, double

    def dtypes():
        return jax.tree.map(lambda x: x.dtype, jax.eval_shape(steps, jax.random.key(0)))

    with jax.enable_x64(True):
        before, after, seen, double = dtypes()
    assert double == jnp.float64
    assert after == before
    assert seen == dtypes()[2]


SHARDED = [(name, varies, None) for name in VARIANTS for varies in ("key", "rows")]
SHARDED += [("per", "key", 2), ("per", "rows", 2), ("rank", "rows", 2)]


@pytest.mark.parametrize(
    ("name", "varies", "seeds"),
    [pytest.param(*x, marks=() if x[0] in DISTINCT else pytest.mark.slow) for x in SHARDED],
)
def test_replays_can_be_made_and_scanned_within_shard_map(name, varies, seeds):
    """A mesh of one device suffices for all checks of shard_map."""
    case, mesh = case_of(name), Mesh(jax.devices()[:1], "d")

    def train(key, offset):
        state = case.replay.init(key, EXAMPLE)

        def step(state, time):
            return case.cycle(state, time + offset)[0], None

        return jax.lax.scan(step, state, jnp.arange(3))[0]

    def program(key, offset):
        own = (jax.random.fold_in(key, 0 * offset[0]), jnp.int32(0))
        if varies == "rows":
            own = key, offset[0]
        run = train if seeds is None else jax.vmap(train, (None, None), axis_size=seeds)
        return jax.tree.map(lambda x: x[None], run(*own))

    program = jax.shard_map(program, mesh=mesh, in_specs=(P(), P("d")), out_specs=P("d"))
    given = jax.random.key(0), jnp.zeros(1, jnp.int32)
    if name != "per":
        jax.eval_shape(program, *given)
    elif seeds is None:
        found = jax.tree.map(lambda x: x[0], jax.jit(program)(*given))
        testing.same(found, jax.jit(train)(jax.random.key(0), jnp.int32(0)))


STRICT = {"numpy_dtype_promotion": "strict", "numpy_rank_promotion": "raise"}


@pytest.mark.parametrize("name", quick(sorted(VARIANTS | MORE)))
def test_replays_work_with_strict_dtype_and_rank_promotion(name):
    case = case_of(name)
    replay, key = case.replay, jax.random.key(0)
    told = jnp.ones(case.shape)
    row = jax.tree.map(lambda x: jnp.broadcast_to(x, (E, *x.shape)), EXAMPLE)

    def steps(key):
        state = replay.init(key, EXAMPLE)
        new = dict.fromkeys(replay.requires.feedback_of_new, jnp.ones(E))
        state = replay.end_episodes(replay.add(state, row, **new))
        batch = replay.sample(state, key)
        state = replay.update(state, batch, **case.feedback_of(told))
        state = replay.observe_return(state, told.mean(), key)
        slots = jnp.arange(3)
        return replay.can_sample(state), replay.probability(state, slots), replay.metrics(state)

    expected = jax.eval_shape(steps, key)
    for setting, value in STRICT.items():
        with getattr(jax, setting)(value):
            assert jax.eval_shape(steps, key) == expected


@pytest.mark.parametrize("name", quick(METHODS, of=("per", "refer")))
def test_replays_work_with_debug_nans(name):
    """No replay function raises under `jax_debug_nans`, inside or outside of jit."""
    method = testing.with_goals(METHODS[name].method())
    replay = Replay(method.sampler, capacity=16, batch_size=4)
    row = jax.tree.map(lambda x: jnp.asarray(x)[None], EXAMPLE)
    new = dict.fromkeys(replay.requires.feedback_of_new, jnp.ones(1))
    told = dict.fromkeys(replay.requires.feedback, jnp.ones(4))
    with jax.debug_nans(True):
        state = jax.jit(replay.init)(jax.random.key(0), EXAMPLE)
        add = jax.jit(replay.add)
        for _ in range(6):
            state = add(state, row, **new)
        batch = replay.sample(state, jax.random.key(1))
        state = replay.update(state, batch, **told)
        for episode_return in (1.0, 2.0):
            state = replay.observe_return(state, jnp.float32(episode_return), jax.random.key(2))
        replay.metrics(state)


def _losses(case, told_of):
    """Return a loss that scans three steps of add, sample, update and observe.

    Rows and feedback are multiplied by `told_of(weight)`.
    """

    def step(carry, time):
        state, weight = carry
        told = told_of(weight)
        row = case.rows(time)
        row = row._replace(obs=row.obs * told, reward=row.reward * told)
        new = dict.fromkeys(case.replay.requires.feedback_of_new, row.reward)
        state = case.replay.add(state, row, **new)
        batch = case.replay.sample(state, jax.random.key(time))
        td = batch.transition.obs.sum(axis=-1) * weight - 1.0
        about = batch._replace(weights=batch.weights * told)
        own = batch.transition.obs.sum(axis=-1) * told - 1.0
        state = case.replay.update(state, about, **case.feedback_of(own))
        state = case.replay.observe_return(state, own.mean(), jax.random.key(7))
        return (state, weight), (batch.weights * jnp.square(td).T).mean()

    def loss(weight, state):
        (state, _), losses = jax.lax.scan(step, (state, weight), jnp.arange(3))
        return losses.sum(), state

    return loss


DERIVED = {
    "grad": lambda loss: jax.grad(loss, has_aux=True),
    "vmap": lambda loss: jax.vmap(jax.value_and_grad(loss, has_aux=True), (0, None)),
    "jvp": lambda loss: lambda w, s: jax.jvp(lambda w: loss(w, s), (w,), (1.0,), has_aux=True),
    "linearize": lambda loss: (
        lambda w, s: jax.linearize(lambda w: loss(w, s), w, has_aux=True)[1](1.0)
    ),
}


@pytest.mark.parametrize("how", quick(DERIVED, of=("vmap", "jvp")))  # gradients, and tangents
@pytest.mark.parametrize("name", quick(METHODS, of=("per",)))
def test_losses_may_pass_traced_feedback_to_the_replay(name, how):
    case = case_of(name)
    weight = jnp.array([0.5, 2.0]) if how == "vmap" else 0.5
    found, expected = (
        jax.jit(DERIVED[how](_losses(case, told_of)))(weight, case.full)
        for told_of in (lambda weight: weight, jax.lax.stop_gradient)
    )
    testing.same(found, expected)


@pytest.mark.parametrize("name", quick(METHODS))
def test_losses_may_update_the_replay(name):
    """Loops of a sampler, of which some have no reverse-mode derivative, receive constants."""
    case = case_of(name)

    def loss(weight, state):
        batch = case.replay.sample(state, jax.random.key(1))
        td = batch.transition.obs.sum(axis=-1) * weight - 1.0
        state = case.replay.update(state, batch, **case.feedback_of(td))
        state = case.replay.observe_return(state, td.mean(), jax.random.key(2))
        return (batch.weights * jnp.square(td).T).mean(), state

    state = jax.eval_shape(case.init, jax.random.key(0))
    assert jax.eval_shape(jax.grad(loss, has_aux=True), 0.5, state)[1] == state
