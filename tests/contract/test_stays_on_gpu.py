"""Replay functions stay on the GPU: no program waits for the host.

Programs are lowered for CUDA, which does not need a GPU.
"""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

from jaxreplay import testing
from jaxreplay.methods import METHODS
from tests.methods import quick, short

# Custom calls that run on the device: JAX's hash of PRNG keys.
ON_DEVICE = {"cu_threefry2x32_ffi"}


def leaves_device(function, *args):
    """Return the host operations of a function that is lowered for CUDA."""
    traced = jax.jit(function).trace(*args)
    calls = set(re.findall(r"\b(\w*callback|debug_print|infeed|outfeed)\[", str(traced.jaxpr)))
    if calls:  # these can't be lowered without the device
        return calls
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    calls = set(re.findall(r"custom_call @(\w+)", text)) - ON_DEVICE
    return calls | set(re.findall(r"stablehlo\.(infeed|outfeed|send|recv)", text))


@pytest.mark.parametrize("name", quick(METHODS))
def test_replay_functions_stay_on_the_gpu(name):
    case = testing.Case(short(name, 100))

    def all_of_it(key, time):
        state = case.replay.init(key, case.example)
        state, batch = case.cycle(state, time)
        replay, slots = case.replay, batch.indices.ravel()
        return state, batch, replay.metrics(state), replay.probability(state, slots)

    assert leaves_device(all_of_it, jax.random.key(0), jnp.zeros((), jnp.int32)) == set()


def to_the_host(x):
    return jax.device_put(x, jax.memory.Space.Host)


def printed(x):
    jax.debug.print("{}", x)
    return x


def asked(x):
    return jax.pure_callback(lambda y: y, x, x)


def told(x):
    io_callback(lambda y: None, None, x)
    return x


@pytest.mark.parametrize("how", [to_the_host, printed, asked, told])
def test_host_operations_are_detected(how):
    assert leaves_device(how, jnp.ones(3))
    within = functools.partial(jax.lax.fori_loop, 0, 3, lambda _, x: how(x))
    if how is not to_the_host:  # a loop keeps its carry on the device
        assert leaves_device(within, jnp.ones(3))
