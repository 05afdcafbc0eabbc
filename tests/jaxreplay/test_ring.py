"""The ring and the n-step window compared with plain Python models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxreplay import Frames, SharedObservations, Transition, Transitions, n_step, ring
from jaxreplay.n_step import Step
from tests.refusals import refused


def transition(value, num_envs):
    """A row whose fields encode `value` and lane, with all dtypes that a user may store."""
    number = value * num_envs + np.arange(num_envs, dtype=np.float32)
    image = (number[:, None, None] % 251).astype(np.uint8) + np.zeros((1, 2, 3), np.uint8)
    return Transition(
        obs={"vector": np.stack([number, -number], 1), "image": image},
        action=number.astype(np.int32),
        reward=number / 8,
        discount=np.full(num_envs, 0.5, np.float32),
        next_obs={"vector": np.stack([number, number], 1), "image": image + 1},
        first=number % 3 == 0,
        last=number % 2 == 0,
        extras=(number.astype(jnp.bfloat16), number[:, None] > 4),
    )


def example(num_envs):
    return jax.tree.map(lambda x: x[0], transition(0, num_envs))


@jax.jit
def facts(held, slots, steps):
    """Return data, ages, versions and probabilities of slots, and their slots `steps` before."""
    earlier = jax.vmap(lambda steps: ring.previous(held, slots, steps))(steps)
    known = [f(held, slots) for f in (ring.age, ring.version, ring.even_probability)]
    return ring.gather(held, slots), *known, *earlier


@pytest.mark.parametrize(("capacity", "num_envs"), [(7, 1), (8, 2), (9, 3), (3, 3)])
def test_ring_equals_a_list(capacity, num_envs):
    held = ring.init(example(num_envs), capacity, num_envs)
    add = jax.jit(ring.add)
    rows, model = capacity // num_envs, [None] * capacity
    for value in range(2 * rows + 2):
        held, slots = add(held, transition(value, num_envs))
        ring.check_valid(held)
        expected_slots = [(value % rows) * num_envs + lane for lane in range(num_envs)]
        np.testing.assert_array_equal(slots, expected_slots)
        for lane, slot in enumerate(expected_slots):
            model[slot] = (value, lane)
        live = [slot for slot in range(capacity) if model[slot] is not None]
        assert int(ring.size(held)) == len(live) == min(value + 1, rows) * num_envs
        all_steps = np.int32([0, 1, 2, rows - 1, rows, rows + 1])
        found = jax.tree.map(np.asarray, facts(held, np.arange(capacity), all_steps))
        back, age, version, chance, earlier, exists = found
        back = jax.tree.map(lambda x: x[live], back)
        want = [jax.tree.map(lambda x: x[lane], transition(v, num_envs)) for v, lane in
                (model[slot] for slot in live)]  # fmt: skip
        want = jax.tree.map(lambda *x: np.stack(x), *want)
        jax.tree.map(np.testing.assert_array_equal, back, want)
        assert jax.tree.map(lambda x: x.dtype, back) == jax.tree.map(lambda x: x.dtype, want)
        np.testing.assert_array_equal(age[live], [value - model[s][0] for s in live])
        np.testing.assert_array_equal(version[live], [model[s][0] + 1 for s in live])
        even = [1 / len(live) if s in live else 0 for s in range(capacity)]
        np.testing.assert_allclose(chance, even)
        for steps, befores, theres in zip(all_steps, earlier, exists):
            for slot in live:
                origin = (model[slot][0] - steps, model[slot][1])
                assert theres[slot] == (origin in model), (slot, steps)
                if theres[slot]:
                    assert model[befores[slot]] == origin


def test_add_compiles_once_and_keeps_no_weak_types():
    held = ring.init(example(2), 6, 2)
    add = jax.jit(ring.add, donate_argnums=0)
    for value in range(5):
        held, _ = add(held, transition(value, 2))
    assert add._cache_size() <= 1
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(held))
    assert len(jax.tree.leaves(held)) == 2  # the words and the clock


def test_every_bit_of_every_dtype_is_stored():
    rng = np.random.default_rng(0)
    dtypes = [jnp.float32, jnp.float16, jnp.bfloat16, jnp.int32, jnp.uint32, jnp.int16, jnp.int8]
    bits = {
        dtype: rng.integers(0, 256, (4, 3 * jnp.dtype(dtype).itemsize), np.uint8).view(dtype)
        for dtype in dtypes
    }
    for special in (np.nan, -np.inf, -0.0, 1e-42):
        bits[jnp.float32][1] = special
        row = transition(1, 4)._replace(extras=tuple(bits.values()))
        held = ring.init(jax.tree.map(lambda x: x[0], row), 8, 4)
        held, slots = jax.jit(ring.add)(held, row)
        read = jax.jit(ring.gather)(held, slots)
        for stored, back in zip(jax.tree.leaves(row), jax.tree.leaves(read), strict=True):
            assert stored.dtype == back.dtype and stored.shape == back.shape
            assert np.asarray(stored).tobytes() == np.asarray(back).tobytes()


def test_fields_of_size_0_are_stored():
    row = transition(1, 4)._replace(extras=(np.zeros((4, 0), np.float32), np.ones((4, 2, 0), bool)))
    held = ring.init(jax.tree.map(lambda x: x[0], row), 8, 4)
    held, slots = jax.jit(ring.add)(held, row)
    read = jax.jit(ring.gather)(held, slots)
    assert [(x.shape, x.dtype) for x in read.extras] == [(x.shape, x.dtype) for x in row.extras]
    np.testing.assert_array_equal(read.reward, row.reward)


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "float64"])
@pytest.mark.parametrize(
    ("shape", "once", "vmapped"),
    [((0,), False, False), ((2, 0), False, True), ((2, 0), True, False)],
)
def test_fields_of_size_0_are_stored_without_other_fields_or_once(dtype, shape, once, vmapped):
    with jax.enable_x64(True):
        empty = jnp.zeros(shape, dtype)
        row = {"obs": empty, "next_obs": empty, "first": jnp.ones((), bool)}
        row = row if once else {"obs": empty}

        def read():
            held = ring.init(row, 8, 2, SharedObservations() if once else Transitions())
            held, slots = ring.add(held, jax.tree.map(lambda x: jnp.stack([x, x]), row))
            return ring.gather(held, slots)

        read = jax.vmap(lambda _: read())(jnp.arange(3)) if vmapped else read()
        lead = (3, 2) if vmapped else (2,)
        for name in row:
            assert (read[name].shape, read[name].dtype) == (
                (*lead, *row[name].shape),
                row[name].dtype,
            )


PARTS_OF_BYTES = ["int2", "uint2", "int4", "uint4", "float4_e2m1fn"]


@pytest.mark.parametrize("dtype", PARTS_OF_BYTES)
@pytest.mark.parametrize("storage", [Transitions(), SharedObservations(), Frames(stack=2)])
def test_dtypes_of_less_than_a_byte_are_refused(dtype, storage):
    stack = jnp.ones((3, 2), dtype)
    row = {"obs": stack, "next_obs": stack, "first": jnp.zeros((), bool)}
    with refused(dtype) as error:
        ring.init(row, 8, 2, storage)
    assert "obs" in str(error.value)  # obs or next_obs
    flag = np.bool_(0)
    step = n_step.Step(stack, np.int32(0), np.float32(0), flag, flag, stack, flag)
    with refused("obs", dtype):
        n_step.init(step, 2)


def test_64_bit_values_are_stored_with_x64():
    with jax.enable_x64(True):
        values = np.array([[1 / 3, 2**60 + 1.0], [-1e300, 5e-324]])
        row = transition(1, 2)._replace(extras=(values, np.array([2**40 + 1, -3])))
        held = ring.init(jax.tree.map(lambda x: x[0], row), 4, 2)
        held, slots = jax.jit(ring.add)(held, row)
        read = jax.jit(ring.gather)(held, slots)
        assert read.extras[0].dtype == jnp.float64 and read.extras[1].dtype == jnp.int64
        np.testing.assert_array_equal(read.extras[0], values)
        np.testing.assert_array_equal(read.extras[1], [2**40 + 1, -3])
        np.testing.assert_array_equal(read.obs["vector"], row.obs["vector"])


def test_rings_refuse_invalid_sizes_and_rows():
    with refused("extras", "complex64"):
        ring.init(example(2)._replace(extras=np.zeros((), np.complex64)), 6, 2)
    with refused("capacity", "10", "3", "9", "12"):
        ring.init(example(3), 10, 3)
    with refused("capacity", "2", "3"):
        ring.init(example(3), 2, 3)
    held = ring.init(example(2), 6, 2)
    with refused("obs['image']", "[3, 2, 3]", "[2, 2, 3]"):
        ring.add(held, transition(0, 3))
    with refused("extras[0]"):
        ring.add(held, transition(0, 2)._replace(extras=None))
    lists = transition(0, 2)._replace(reward=[0.0, 1.0])
    with refused("reward", "jnp.asarray(reward)"):
        ring.add(held, lists)
    nested = lists._replace(reward=[[0.0], [1.0]])
    with refused("reward", "jnp.asarray(reward)"):
        ring.add(held, nested)


def model_n_step(steps, n, gamma):
    """The transition that starts at each step of one environment, by definition."""
    out = []
    for start in range(len(steps) - n + 1):
        reward, discount = 0.0, 1.0
        for step in steps[start : start + n]:
            reward += discount * step["reward"]
            discount *= gamma
            last = step
            if step["terminated"] or step["truncated"]:
                break
        out.append((reward, 0.0 if last["terminated"] else discount, last["next"]))
    return out


flags = st.lists(st.sampled_from(["go", "go", "end", "cut"]), min_size=24, max_size=24)
_pushes = {}


@settings(max_examples=25, deadline=None, derandomize=True)
@given(flags, st.integers(1, 5))
def test_n_step_equals_its_definition(marks, n):
    lanes, gamma = 2, 0.9
    steps = [[], []]
    for time, mark in enumerate(marks):
        lane = time % lanes
        steps[lane].append(
            {
                "reward": float(time + 1),
                "terminated": mark == "end",
                "truncated": mark == "cut",
                "next": 100.0 + time,
            }
        )
    zero, flag = np.zeros((), np.float32), np.zeros((), bool)
    window = n_step.init(Step(zero, zero, zero, flag, flag, zero, flag), n, lanes)
    push = _pushes.setdefault(n, jax.jit(n_step.push))
    emitted = []
    for time in range(12):
        now = [steps[lane][time] for lane in range(lanes)]
        column = lambda name, kind=np.float32: np.array([step[name] for step in now], kind)
        window, out = push(
            window,
            Step(
                obs=np.full(lanes, time, np.float32),
                action=np.full(lanes, -time, np.float32),
                reward=column("reward"),
                terminated=column("terminated", bool),
                truncated=column("truncated", bool),
                next_obs=column("next"),
                first=np.full(lanes, time == 0),
            ),
            gamma,
        )
        assert bool(n_step.ready(window)) == (time >= n - 1)
        if n_step.ready(window):
            emitted.append(jax.tree.map(np.asarray, out))
    for lane in range(lanes):
        for start, want in enumerate(model_n_step(steps[lane], n, gamma)):
            out, origin = emitted[start], steps[lane][start]
            np.testing.assert_allclose(out.reward[lane], want[0], rtol=1e-5)
            np.testing.assert_allclose(out.discount[lane], want[1], rtol=1e-5)
            assert (out.next_obs[lane], out.obs[lane]) == (want[2], start)
            assert out.action[lane] == -start
            assert out.first[lane] == (start == 0)
            assert out.last[lane] == (origin["terminated"] or origin["truncated"])


def test_n_step_0_is_refused():
    zero = np.zeros((), np.float32)
    with refused("n_step", "0"):
        n_step.init(Step(zero, zero, zero, zero, zero, zero, zero), 0)
