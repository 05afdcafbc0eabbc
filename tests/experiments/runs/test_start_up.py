"""How long JAX took to make programs, beside the time that passed."""

import threading

import jax
import jax.numpy as jnp
from hypothesis import given
from hypothesis import strategies as st

from experiments.runs import compilation, start_up
from experiments.runs.start_up import Spent, covered, measured


def compiles(constant: int) -> None:
    """Compile a program that no other test has, and that calls another."""
    inner = jax.jit(lambda x: jnp.sin(x) * constant)
    jax.jit(lambda x: inner(x) + inner(x[:2]).sum())(jnp.ones(3)).block_until_ready()


def test_what_is_made_is_told_from_what_runs():
    with measured() as spent:
        compiles(7)
        first = spent()
        compiled = jax.jit(lambda x: x + 1).lower(jnp.ones(3)).compile()
        made = spent()
        compiled(jnp.ones(3)).block_until_ready()
        ran = spent()
    for found in (first, made):
        assert 0 < found.compiling <= found.seconds
    assert ran.compiling == 0 < ran.seconds


def test_what_was_spent_before_counts_once():
    with measured(before=Spent(100.0, 50.0)) as spent:
        first, second = spent(), spent()
    assert first.seconds > 100 and first.compiling == 50
    assert second.seconds < 100 and second.compiling == 0


def test_loading_a_kept_program_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    for _ in range(2):
        with compilation.kept(tmp_path), measured() as spent:
            compiles(11)
            assert spent().compiling > 0


def test_compiling_side_by_side_counts_once():
    with measured() as spent:
        threads = [threading.Thread(target=compiles, args=(20 + each,)) for each in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = spent()
    assert 0 < found.compiling <= found.seconds


def test_covered_by_hand():
    assert covered([]) == 0
    assert covered([(3, 4), (0, 1), (0.5, 2), (0.6, 0.7)]) == 3


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted), max_size=6))
def test_covered_counts_every_moment_once(spans):
    moments = {at for start, end in spans for at in range(start, end)}
    assert covered([tuple(span) for span in spans]) == len(moments)


def test_nobody_listens_afterwards():
    from jax._src import monitoring  # no public name lists listeners

    before = monitoring.get_event_duration_listeners()
    with start_up.measured():
        assert len(monitoring.get_event_duration_listeners()) == len(before) + 1
    assert monitoring.get_event_duration_listeners() == before
