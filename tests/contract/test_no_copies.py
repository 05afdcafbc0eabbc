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
from jaxreplay import Frames, Replay, SharedObservations, Transition, Transitions
from jaxreplay._internal.tuned import gather
from jaxreplay.methods import METHODS, her, ners, per, pser, rank, refer, sequences, slices
from jaxreplay.testing import assert_in_place, large_copies, with_goals
from tests.methods import DISTINCT, quick
from tests.xla import AS_USERS

# A prime, so that no other array has a dimension of this size. XLA reads arrays that exceed the
# cache in another way than small ones.
CAPACITY = 200_003
WIDTHS = 8, 128  # of the rows in which a tree is read and stored
BATCH, SEEDS, MANY_SEEDS = 64, 3, 64


def example_of(obs):
    number, flag = jnp.zeros(()), jnp.zeros((), bool)
    return Transition(obs, jnp.zeros(2), number, number, obs, flag, flag)


EXAMPLE = example_of(jnp.zeros(5))
STORAGES = {
    "transitions": (Transitions(), EXAMPLE),
    "shared": (SharedObservations(spare=0.1), EXAMPLE),
    "frames": (Frames(stack=4, spare=0.1), example_of(jnp.zeros((3, 5, 4), jnp.uint8))),
}
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


def replay_of(name, storage=Transitions(), capacity=CAPACITY):
    return Replay(VARIANTS[name].sampler, capacity=capacity, batch_size=BATCH, storage=storage)


def copies_in(text, size):
    """Return the copies of large arrays in HLO, trees included."""
    return [copy for width in WIDTHS for copy in large_copies(text, size, width)]


def compiled(lowered, options=AS_USERS) -> str:
    return lowered.compile(options).as_text()


def critic(params, batch):
    t = batch.transition
    obs, next_obs = (
        x.astype(jnp.float32).reshape(*t.reward.shape, -1) for x in (t.obs, t.next_obs)
    )
    td = t.reward + next_obs.sum(axis=-1) - jnp.tanh(obs @ params["w"]) @ params["v"]
    return (batch.weights * (td**2).T).mean(), td  # td is [B, T] for sequences


def train_step(replay, order, example):
    """Return a small train step that adds first, last, or between sample and update."""

    def learn(params, state, row, key):
        batch = replay.sample(state, key)
        if order == "add between":
            state = add(replay.after_reading(state, batch), row)
        (_, td), grads = jax.value_and_grad(critic, has_aux=True)(params, batch)
        params = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
        return params, replay.update(state, batch, **dict.fromkeys(replay.requires.feedback, td))

    def add(state, row):
        return replay.add(state, row, **dict.fromkeys(replay.requires.feedback_of_new, row.reward))

    def step(carry, key):
        params, state = carry
        number = jax.random.normal(key, (1,))
        obs = jnp.full((1, *example.obs.shape), number[0]).astype(example.obs.dtype)
        row = jax.tree.map(lambda x: x[None], example)
        row = row._replace(reward=number, obs=obs, next_obs=obs)
        if order == "add first":
            state = add(state, row)
        params, state = learn(params, state, row, key)
        if order == "add last":
            state = add(state, row)
        return (params, state), None

    return step


def scanned(replay, order, seeds, example=EXAMPLE):
    """Compile a loop of train steps, for one seed (None) or for several; return its HLO."""
    step = train_step(replay, order, example)
    params = {"w": jnp.ones((example.obs.size, 4)), "v": jnp.ones(4)}

    def run(carry, key):
        return jax.lax.scan(step, carry, jax.random.split(key, 10))[0]

    def whole(key):  # vmap over keys leaves clocks unbatched
        return run((params, replay.init(key, example)), key)

    key = jax.random.key(0)
    if seeds is not None:
        return compiled(jax.jit(jax.vmap(whole)).lower(jax.random.split(key, seeds)))
    state = jax.eval_shape(replay.init, key, example)
    return compiled(jax.jit(run, donate_argnums=0).lower((params, state), key))


# Compilation is expensive: the harder order runs for all methods, the others for some. Slow tests
# are methods that consist of parts of others, such as the ring of uniform replay, variants, most
# methods without vmap, and what tests below compile: PER in a whole loop with several seeds, and
# additions between sample and update.
ALL = [(name, "add last", seeds) for name in VARIANTS for seeds in (None, SEEDS)] + [
    (name, order, seeds)
    for name, order in (
        ("per", "add first"), ("pser", "add first"), ("per", "add between"),
        ("uniform", "add between"),
    )
    for seeds in (None, SEEDS)
]  # fmt: skip
QUICK = {(name, "add last", SEEDS) for name in DISTINCT if name not in ("uniform", "per")} | {
    ("per", "add last", None), ("rank", "add last", None), ("per", "add first", None),
    ("pser", "add first", SEEDS),
}  # fmt: skip
# Capacities without padding compile to other operations.
CAPACITIES = {("per", "add first"): 8**5, ("per", "add between"): 2**16}


@pytest.mark.parametrize(
    ("name", "order", "seeds"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in ALL],
)
def test_scanned_step_has_no_large_copies(name, order, seeds):
    capacity = CAPACITIES.get((name, order), CAPACITY)
    text = scanned(replay_of(name, capacity=capacity), order, seeds)
    assert str(capacity) in text
    least = capacity // 4 if name.startswith("rank") else capacity  # four slots per word of buckets
    copies = copies_in(text, least)
    if name.startswith("refer"):  # periodically reads the whole memory
        copies = [copy for copy in copies if "/cond/branch_1_fun/" not in copy]
    assert copies == []


@pytest.mark.parametrize(
    ("storage", "order", "seeds"),
    [
        ("frames", "add last", SEEDS),
        ("shared", "add last", None),
        pytest.param("frames", "add last", None, marks=pytest.mark.slow),
        pytest.param("frames", "add first", None, marks=pytest.mark.slow),
        pytest.param("frames", "add first", SEEDS, marks=pytest.mark.slow),
        pytest.param("shared", "add first", None, marks=pytest.mark.slow),
    ],
)
def test_step_with_observations_stored_once_has_no_large_copies(storage, order, seeds):
    how, example = STORAGES[storage]
    text = scanned(replay_of("per", how), order, seeds, example)
    places = str(CAPACITY + -(-CAPACITY // 10))  # and a few more
    assert re.search(rf"\[(?:{SEEDS},)?{places[:2]}\d\d\d\d,(15|5)\]", text)
    assert copies_in(text, CAPACITY) == []


# A separate loop reads this many rows in parts.
@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("per", "add last"),
        pytest.param("per", "add first", marks=pytest.mark.slow),
        pytest.param("uniform", "add last", marks=pytest.mark.slow),
        pytest.param("uniform", "add first", marks=pytest.mark.slow),
    ],
)
def test_step_of_many_seeds_has_no_large_copies(name, order, monkeypatch):
    monkeypatch.setattr(gather, "_CACHE", 0)
    monkeypatch.setattr(gather, "_NEAR", 2**11)  # less than a batch of a seed
    text = scanned(replay_of(name), order, MANY_SEEDS, example_of(jnp.zeros(8)))
    assert re.search(rf"u32\[{MANY_SEEDS},{BATCH},21\].* while\(", text)
    assert copies_in(text, CAPACITY) == []


# Other operations read arrays that fit into the cache, and XLA may recompute them per consumer.
def test_step_with_a_small_order_has_no_copies():
    capacity = 10_007
    text = scanned(replay_of("rank", capacity=capacity), "add first", None)
    assert str(capacity) in text
    assert large_copies(text, capacity // 4) == []


def test_step_called_from_python_has_no_large_copies():
    replay = replay_of("per")

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
        assert copies_in(text, CAPACITY) == []


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


@pytest.mark.parametrize(
    ("storage", "waits"),
    [
        ("transitions", False),
        ("frames", True),
        pytest.param("shared", True, marks=pytest.mark.slow),
        pytest.param("frames", False, marks=pytest.mark.slow),
        pytest.param("shared", False, marks=pytest.mark.slow),
    ],
)
def test_adding_between_sample_and_update_is_in_place_if_it_waits(storage, waits):
    how, example = STORAGES[storage]
    replay = replay_of("per", how)
    row = jax.tree.map(lambda x: x[None], example)

    def step(state, key):
        batch = replay.sample(state, key)
        if waits:
            state = replay.after_reading(state, batch)
        state = replay.add(state, row)
        return replay.update(state, batch, td_error=batch.transition.reward)

    state = jax.eval_shape(replay.init, jax.random.key(0), example)
    if waits:
        assert_in_place(step, state, jax.random.key(1))
        return
    with pytest.raises(AssertionError, match=r"\.sampler\.tree\.nodes"):
        assert_in_place(step, state, jax.random.key(1))


@pytest.mark.parametrize("name", quick(["per", "rank", "uniform"], of=["per"]))
def test_sampling_before_the_previous_update_is_in_place(name):
    replay = replay_of(name)
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


def test_large_copies_are_found_in_all_computations_of_a_loop():
    text = """
%fused (p: f32[40000]) -> f32[40000] {
  ROOT %copy.1 = f32[40000]{0} copy(%p)
}
%branch (p: f32[40000]) -> f32[40000] {
  ROOT %copy.2 = f32[40000]{0} copy(%p)
}
%loop (p: (f32[40000])) -> (f32[40000]) {
  %a = f32[40000]{0} fusion(%x), kind=kLoop, calls=%fused
  %b = f32[40000]{0} conditional(%c, %x, %y), branch_computations={%other, %branch}
  %copy.4 = f32[5000,8]{1,0} copy(%d)
  %copy.5 = f32[256,43]{1,0} copy(%e)
}
ENTRY %main (p: f32[40000]) -> f32[40000] {
  %copy.6 = f32[40000]{0} copy(%p)
  %w = (f32[40000]) while(%t), condition=%until, body=%loop
}
"""
    names = [line.split()[0].strip("%") for line in large_copies(text, 40_000, children=8)]
    assert [name for name in names if name != "ROOT"] == ["copy.4"]
    assert len(names) == 3  # plus those of the fusion and the branch
    assert len(large_copies(text, 40_000)) == 2
