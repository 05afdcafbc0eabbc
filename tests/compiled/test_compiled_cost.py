"""The costs of loops whose operations are known, on a GPU and a TPU; pages about them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay
from jaxreplay.methods import per
from jaxreplay.testing import EXAMPLE, assert_in_place, compiled_cost
from tests import documents

PLATFORMS = ("gpu", "tpu")
platforms = pytest.mark.parametrize("platform", PLATFORMS)
LARGE = 100_003


def branching(state, key):
    chosen = jax.random.uniform(key) < 0.5
    return jax.lax.cond(chosen, lambda x: jnp.sort(x), lambda x: jnp.cumsum(x), state)


@platforms
def test_branches_on_data_are_counted(platform):
    cost = compiled_cost(branching, jnp.zeros(1000), jax.random.key(0), platform=platform)
    assert (cost.platform, cost.conditionals) == (platform, 1)
    assert (cost.cycles is None) == (platform == "gpu")
    straight = compiled_cost(lambda state: jnp.sort(state), jnp.zeros(1000), platform=platform)
    assert straight.conditionals == 0 and straight.launches < cost.launches


@platforms
def test_loops_inside_count_with_all_iterations(platform):
    def step(state, times):
        return jax.lax.fori_loop(0, times, lambda _, x: jnp.sort(x), state)

    few, many = (
        compiled_cost(lambda state, n=n: step(state, n), jnp.zeros(999), platform=platform).launches
        for n in (10, 30)
    )
    assert many - few >= 20 and many <= 3 * few


@platforms
def test_functions_with_a_loop_cost_one_of_its_iterations(platform):
    def step(state, _):
        return jnp.sort(state) + 1, state.sum()

    def train(state):
        last, sums = jax.lax.scan(step, state, length=50)
        return {"last": last, "sums": sums}

    one = compiled_cost(step, jnp.zeros(999), jnp.zeros(()), platform=platform)
    whole = compiled_cost(train, jnp.zeros(999), platform=platform)
    assert 2 <= whole.launches <= one.launches + 2


@platforms
def test_copies_name_the_array(platform):
    def careless(state, index):
        old = state["table"]
        table = old.at[index].set(1.0)
        return {"table": table.at[index + 1].set(old[table[index].astype(int)])}

    state = {"table": jax.ShapeDtypeStruct((LARGE,), jnp.float32)}
    with pytest.raises(AssertionError, match=r"f32\[100003\] \(\['table'\]\)"):
        assert_in_place(careless, state, jnp.int32(3), platform=platform)
    assert compiled_cost(careless, state, jnp.int32(3), platform=platform).copies > 0


@platforms
def test_replays_are_traced_for_the_platform_and_used_on_this_machine_afterwards(platform):
    replay = Replay(per.sampler(), capacity=LARGE, batch_size=32)
    init = jax.jit(lambda key: replay.init(key, EXAMPLE))

    @jax.jit
    def step(state, key):
        row = jax.tree.map(lambda x: jnp.asarray(x)[None], EXAMPLE)
        state = replay.add(state, row)
        batch = replay.sample(state, key)
        return replay.update(state, batch, td_error=batch.weights)

    key = jax.random.key(0)
    before = step(init(key), key)
    cost = compiled_cost(step, jax.eval_shape(init, key), key, platform=platform)
    assert cost.copies == 0
    jax.tree.map(np.testing.assert_array_equal, step(init(key), key), before)
    if jax.config.jax_traceback_in_locations_limit:  # origins in the source, not names in JAX
        file = __file__.rpartition("/")[2]
        assert any(f"{file}:" in each.origin for each in cost.operations)


def test_decisions_by_platform_are_those_of_the_compiled_platform():
    def step(state):
        def sort(state, times=1):
            for _ in range(times):
                state = jnp.sort(state)[::-1] * 2
            return state

        return jax.lax.platform_dependent(state, tpu=lambda state: sort(state, 3), default=sort)

    gpu, tpu = (compiled_cost(step, jnp.zeros(1000), platform=name) for name in PLATFORMS)
    kinds = [sum(each.kind == "sort" for each in cost.operations) for cost in (gpu, tpu)]
    assert kinds[1] > kinds[0]


def test_page_about_gpus_runs():
    names = {"__name__": "page"}
    for block in documents.python(documents.PAGES["how_to/fast_on_a_gpu.md"]):
        exec(compile(block.text, "<page>", "exec"), names)  # copies are those of its capacity
