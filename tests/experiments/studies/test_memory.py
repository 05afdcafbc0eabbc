"""Waves wait for memory that others hold, and what can never fit is refused."""

import threading

import jax
import jax.numpy as jnp

from experiments.studies.memory import Budget, bytes_of
from tests.refusals import refused


def test_a_program_says_what_it_takes():
    def double(x):
        return 2.0 * x

    x = jnp.zeros(1000)
    assert bytes_of(jax.jit(double).lower(x).compile()) == 8000
    assert bytes_of(jax.jit(double, donate_argnums=0).lower(x).compile()) == 4000  # in its place


def test_waves_wait_until_there_is_room():
    budget, held, order = Budget(10), threading.Event(), []

    def wave(name, size, until):
        with budget.taken(size):
            order.append(name)
            held.set()
            until.wait(10)
        order.append(f"{name} ended")

    first_ends, now = threading.Event(), threading.Event()
    now.set()
    first = threading.Thread(target=wave, args=("first", 6, first_ends))
    first.start()
    assert held.wait(10)
    with budget.taken(4):  # fits beside it
        pass
    second = threading.Thread(target=wave, args=("second", 5, now))
    second.start()
    second.join(0.2)
    assert order == ["first"]
    first_ends.set()
    for thread in (first, second):
        thread.join(10)
    assert set(order) == {"first", "first ended", "second", "second ended"}
    with budget.taken(10):  # all of it has come back
        pass


def test_what_can_never_fit_is_refused():
    with refused("1.1e-08", "1e-08", "--width"), Budget(10).taken(11):
        pass
