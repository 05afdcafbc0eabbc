"""The optimised HLO of the train step has no copies of the size of the replay.

XLA copies the ring or the tree on every step if a read does not finish before the next write in
place.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.dqn import DQNConfig, dqn
from experiments import environments
from experiments.training.config import LoopConfig
from experiments.training.loop import make_program
from experiments.training.seeds import over_seeds
from jaxreplay import Frames, Replay, SharedObservations, Transition, Transitions, sum_tree
from jaxreplay._internal.tuned import gather
from jaxreplay.methods import METHODS, her, ners, per, pser, rank, refer, sequences, slices
from jaxreplay.testing import assert_in_place, large_copies, with_goals
from tests.methods import DISTINCT
from tests.xla import AS_USERS

# A prime, so that no other array has a dimension of this size. XLA reads arrays that exceed the
# cache in another way than small ones.
CAPACITY = 200_003
CHILDREN = 8  # per node of the tree, which is also read in rows of this length
BATCH, SEEDS, MANY_SEEDS = 64, 3, 64
EXAMPLE = Transition(
    obs=jnp.zeros(5),
    action=jnp.zeros(2),
    reward=jnp.zeros(()),
    discount=jnp.zeros(()),
    next_obs=jnp.zeros(5),
    first=jnp.zeros((), bool),
    last=jnp.zeros((), bool),
)
VARIANTS = {
    name: with_goals(entry.method(entry.config().for_run(100))) for name, entry in METHODS.items()
} | {
    "per-buffer": per.method(per.PERConfig(normalise="buffer")),
    "per-stored": per.method(per.PERConfig(maximum="stored")),
    "rank-stored": rank.method(rank.RankConfig(maximum="stored")),
    "pser-add": pser.method(pser.PSERConfig(combine="add")),
    "refer-returns": refer.method(refer.ReFERConfig(returns=True)),
    "her-per": with_goals(her.method(her.HERConfig(over="per", strategy="episode"))),
    "sequences": sequences.method(sequences.SequencesConfig(length=8, period=4, burn_in=2)),
    "slices": slices.method(slices.SlicesConfig(over="pser", length=8, burn_in=2)),
}


def compiled(lowered, options=AS_USERS) -> str:
    return lowered.compile(options).as_text()


def critic(params, batch):
    hidden = jnp.tanh(batch.transition.obs @ params["w"])
    td = batch.transition.reward - hidden @ params["v"]
    return (batch.weights * (td**2).T).mean(), td  # td is [B, T] for sequences


def train_step(replay, order):
    """Return a small train step that adds first, last, or between sample and update."""

    def learn(params, state, row, key):
        batch = replay.sample(state, key)
        if order == "add between":
            state = add(replay.after_reading(state, batch), row)
        (_, td), grads = jax.value_and_grad(critic, has_aux=True)(params, batch)
        params = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
        names = ("td_error", "target", "log_ratio", "value", "advantage", "next_value")
        names += ("reducible_loss", "expected_td_error")
        return params, replay.update(state, batch, **dict.fromkeys(names, td))

    def add(state, row):
        return replay.add(state, row, **dict.fromkeys(replay.requires.feedback_of_new, row.reward))

    def step(carry, key):
        params, state = carry
        row = jax.tree.map(lambda x: x[None], EXAMPLE)
        row = row._replace(reward=jax.random.normal(key, (1,)))
        if order == "add first":
            state = add(state, row)
        params, state = learn(params, state, row, key)
        if order == "add last":
            state = add(state, row)
        return (params, state), None

    return step


# Compilation is expensive: the harder order runs for all methods, the others for some. Slow tests
# are methods that consist of parts of others, variants, and most methods without vmap.
ALONE = ("per", "rank", "sequences")
ORDERS = [
    *((name, "add last") for name in VARIANTS),
    ("per", "add first"), ("pser", "add first"), ("per", "add between"), ("uniform", "add between"),
]  # fmt: skip
CASES = [
    pytest.param(
        name,
        order,
        vmapped,
        id=f"{'vmapped' if vmapped else 'alone'}-{name}-{order}",
        marks=() if name in (DISTINCT if vmapped else ALONE) else pytest.mark.slow,
    )
    for vmapped in (False, True)
    for name, order in ORDERS
]


@pytest.mark.parametrize(("name", "order", "vmapped"), CASES)
def test_scanned_step_has_no_large_copies(name, order, vmapped):
    text = scanned(name, order, SEEDS if vmapped else None)
    assert str(CAPACITY) in text
    least = (
        CAPACITY // 4 if name.startswith("rank") else CAPACITY
    )  # buckets, with four slots per word
    copies = large_copies(text, least, CHILDREN)
    if name.startswith("refer"):  # periodically reads the whole memory
        copies = [copy for copy in copies if "/cond/branch_1_fun/" not in copy]
    assert copies == []


# A separate loop reads this many rows in parts.
@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("uniform", "add last"),
        pytest.param("uniform", "add first", marks=pytest.mark.slow),
        ("per", "add last"),
        pytest.param("per", "add first", marks=pytest.mark.slow),
    ],
)
def test_step_of_many_seeds_has_no_large_copies(name, order, monkeypatch):
    monkeypatch.setattr(gather, "_CACHE", 0)
    monkeypatch.setattr(gather, "_NEAR", 2**11)  # half of a seed's batch of 64 bytes per row
    text = scanned(name, order, MANY_SEEDS)
    assert re.search(rf"u32\[{MANY_SEEDS},{BATCH},15\].* while\(", text)
    assert large_copies(text, CAPACITY, CHILDREN) == []


# Other operations read arrays that fit into the cache, and XLA may recompute them per consumer.
def test_step_with_a_small_order_has_no_copies():
    capacity = 10_007
    text = scanned("rank", "add first", None, capacity)
    assert str(capacity) in text
    assert large_copies(text, capacity // 4) == []


def scanned(name, order, seeds, capacity=CAPACITY):
    """Compile a loop of train steps, for one seed (None) or for several; return its HLO."""
    replay = Replay(VARIANTS[name].sampler, capacity=capacity, batch_size=BATCH)
    step = train_step(replay, order)
    params = {"w": jnp.ones((5, 4)), "v": jnp.ones(4)}

    def run(carry, key):
        return jax.lax.scan(step, carry, jax.random.split(key, 10))[0]

    def whole(key):  # vmap over keys leaves clocks unbatched
        return run((params, replay.init(key, EXAMPLE)), key)

    if seeds is not None:
        keys = jax.random.split(jax.random.key(0), seeds)
        return compiled(jax.jit(jax.vmap(whole)).lower(keys))
    carry = (params, replay.init(jax.random.key(0), EXAMPLE))
    return compiled(jax.jit(run, donate_argnums=0).lower(carry, jax.random.key(0)))


def test_step_called_from_python_has_no_large_copies():
    replay = Replay(VARIANTS["per"].sampler, capacity=CAPACITY, batch_size=BATCH)

    def turn(state, batch, td, row, key):
        state = replay.add(replay.update(state, batch, td_error=td), row)
        return state, replay.sample(state, key)

    key = jax.random.key(1)
    state = jax.eval_shape(replay.init, key, EXAMPLE)
    batch = jax.eval_shape(replay.sample, state, key)
    row = jax.tree.map(lambda x: np.asarray(x)[None], EXAMPLE)
    lowered = jax.jit(turn, donate_argnums=0).lower(state, batch, jnp.ones(BATCH), row, key)
    text = compiled(lowered)
    assert f"[{CAPACITY}," in text
    shapes = re.findall(r"= \w+\[([\d,]+)\][^=]*? copy(?:-start)?\(", text)
    assert all(int(size) < CAPACITY for shape in shapes for size in shape.split(","))


# Capacities without padding compile to other operations.
@pytest.mark.parametrize("capacity", [8**5, 2**16])
@pytest.mark.parametrize("vmapped", [False, True], ids=["alone", "vmapped"])
def test_sum_tree_is_not_copied_at_any_capacity(capacity, vmapped):
    def step(tree, key):
        indices = sum_tree.sample(tree, key, BATCH)
        return sum_tree.set(tree, indices, jax.random.uniform(key, (BATCH,))), None

    def run(tree, key):
        return jax.lax.scan(step, tree, jax.random.split(key, 10))[0]

    tree, key = sum_tree.init(capacity), jax.random.key(0)
    if vmapped:
        tree = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], SEEDS, axis=0), tree)
        run, key = jax.vmap(run), jax.random.split(key, SEEDS)
    text = compiled(jax.jit(run, donate_argnums=0).lower(tree, key))
    assert large_copies(text, capacity, CHILDREN) == []


@pytest.mark.parametrize("order", ["add first", "add last"])
def test_step_without_padding_has_no_large_copies(order):
    replay = Replay(VARIANTS["per"].sampler, capacity=8**5, batch_size=BATCH)
    step = train_step(replay, order)
    carry = ({"w": jnp.ones((5, 4)), "v": jnp.ones(4)}, replay.init(jax.random.key(0), EXAMPLE))
    keys = jax.random.split(jax.random.key(0), 10)
    lowered = jax.jit(lambda c: jax.lax.scan(step, c, keys)[0], donate_argnums=0).lower(carry)
    assert large_copies(compiled(lowered), 8**5, CHILDREN) == []


@pytest.mark.parametrize(
    ("order", "vmapped"),
    [
        ("add last", False),
        ("add last", True),
        pytest.param("add first", False, marks=pytest.mark.slow),
        pytest.param("add first", True, marks=pytest.mark.slow),
    ],
)
def test_step_with_frame_storage_has_no_large_copies(order, vmapped):
    replay = Replay(
        per.sampler(),
        capacity=CAPACITY,
        batch_size=BATCH,
        storage=Frames(stack=4, spare=0.1),
    )
    stack = jnp.zeros((3, 5, 4), jnp.uint8)
    example = EXAMPLE._replace(obs=stack, next_obs=stack)

    def step(state, key):
        def add(state):
            row = jax.tree.map(lambda x: x[None], example)
            frame = jax.random.bits(key, (1, 3, 5, 4), jnp.uint8)
            return replay.add(state, row._replace(obs=frame, next_obs=frame))

        if order == "add first":
            state = add(state)
        batch = replay.sample(state, key)
        td = batch.transition.obs.astype(jnp.float32).mean(axis=(1, 2, 3))
        td -= batch.transition.next_obs.astype(jnp.float32).mean(axis=(1, 2, 3))
        state = replay.update(state, batch, td_error=td)
        return (add(state) if order == "add last" else state), None

    def whole(key):
        return jax.lax.scan(step, replay.init(key, example), jax.random.split(key, 10))[0]

    function = jax.vmap(whole) if vmapped else whole
    key = jax.random.key(0)
    text = compiled(jax.jit(function).lower(jax.random.split(key, SEEDS) if vmapped else key))
    places = CAPACITY + -(-CAPACITY // 10)  # and a few more
    assert re.search(rf"u8\[(?:{SEEDS},)?{str(places)[:2]}\d\d\d\d,15\]", text)
    assert large_copies(text, CAPACITY, CHILDREN) == []


@pytest.mark.parametrize("order", ["add last", pytest.param("add first", marks=pytest.mark.slow)])
def test_step_with_shared_observations_has_no_large_copies(order):
    replay = Replay(
        per.sampler(),
        capacity=CAPACITY,
        batch_size=BATCH,
        storage=SharedObservations(spare=0.1),
    )
    step = train_step(replay, order)
    params = {"w": jnp.ones((5, 4)), "v": jnp.ones(4)}

    def whole(key):
        start = params, replay.init(key, EXAMPLE)
        return jax.lax.scan(step, start, jax.random.split(key, 10))[0]

    text = compiled(jax.jit(whole).lower(jax.random.key(0)))
    places = CAPACITY + -(-CAPACITY // 10)  # and a few more
    assert re.search(rf"u32\[{str(places)[:2]}\d\d\d\d,5\]", text)
    assert large_copies(text, CAPACITY, CHILDREN) == []


# A sampler that learns after episodes occasionally reads the arrays that every update writes.
@pytest.mark.parametrize(
    "method",
    [
        pytest.param(per.method(), id="per"),
        pytest.param(
            ners.method(ners.NERSConfig(reward="training", hidden=(8, 4), score_hidden=(4,))),
            id="ners_star",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_warm_up_and_training_have_no_large_copies(method):
    environment = environments.make("gymnax/CartPole-v1")
    agent = dqn(DQNConfig(hidden=(8,)), environment.action_space, method.objective)
    replay = Replay(method.sampler, capacity=CAPACITY, batch_size=BATCH)
    config = LoopConfig(steps=400, warmup=100, eval_every=100, n_step=3)
    seeds = over_seeds(make_program(environment, agent, replay, config))
    keys = jax.random.split(jax.random.key(0), SEEDS)
    for lowered, options in (
        (seeds.init.lower(keys), None),  # it sets its own compiler options
        (seeds.chunk.lower(seeds.like(SEEDS), jnp.asarray(1, jnp.int32)), AS_USERS),
    ):
        text = compiled(lowered, options)
        assert str(CAPACITY) in text
        assert large_copies(text, CAPACITY, CHILDREN) == []


def test_reads_after_writes_are_detected_as_copies():
    """The search finds the copy in a loop that reads the old array."""

    def careless(array, key):
        old = array
        array = array.at[key].set(1.0)
        return array, old[key + 1] + old[array[key].astype(int)]

    keys = jnp.arange(10)
    run = jax.jit(lambda array: jax.lax.scan(careless, array, keys), donate_argnums=0)
    text = compiled(run.lower(jnp.zeros(CAPACITY)))
    assert large_copies(text, CAPACITY) != []


STORAGES = {
    "transitions": (Transitions(), EXAMPLE),
    "shared": (SharedObservations(spare=0.1), EXAMPLE),
    "frames": (
        Frames(stack=4, spare=0.1),
        EXAMPLE._replace(obs=jnp.zeros((3, 4)), next_obs=jnp.zeros((3, 4))),
    ),
}


@pytest.mark.parametrize("storage", STORAGES)
def test_adding_between_sample_and_update_is_in_place(storage):
    how, example = STORAGES[storage]
    replay = Replay(per.sampler(), capacity=CAPACITY, batch_size=BATCH, storage=how)
    row = jax.tree.map(lambda x: x[None], example)

    def step(state, key, waits=True):
        batch = replay.sample(state, key)
        if waits:
            state = replay.after_reading(state, batch)
        state = replay.add(state, row)
        return replay.update(state, batch, td_error=batch.transition.reward)

    state = jax.eval_shape(replay.init, jax.random.key(0), example)
    assert_in_place(step, state, jax.random.key(1))
    with pytest.raises(AssertionError, match=r"\.sampler\.tree\.nodes"):
        assert_in_place(lambda *args: step(*args, waits=False), state, jax.random.key(1))


@pytest.mark.parametrize("name", ["uniform", "per", "rank"])
def test_sampling_before_the_previous_update_is_in_place(name):
    replay = Replay(VARIANTS[name].sampler, capacity=CAPACITY, batch_size=BATCH)
    row = jax.tree.map(lambda x: x[None], EXAMPLE)

    def step(carry, key):
        state, batch = carry
        ahead = replay.sample(state, key)
        state = replay.after_reading(state, ahead)
        state = replay.update(state, batch, td_error=batch.transition.reward)
        return replay.add(state, row), ahead

    state = jax.eval_shape(replay.init, jax.random.key(0), EXAMPLE)
    batch = jax.eval_shape(replay.sample, state, jax.random.key(0))
    assert_in_place(step, (state, batch), jax.random.key(1))
