"""Methods over other methods keep the contract, and invalid compositions are refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, testing
from jaxreplay.contrib import cer, masked, reaper, reshuffled, reverse, sil
from jaxreplay.methods import (
    ere,
    ero,
    her,
    lap,
    latest,
    ners,
    per,
    pser,
    rank,
    refer,
    sequences,
    slices,
    uniform,
    windows,
)
from jaxreplay.mixing import mix
from jaxreplay.sampler import Method
from jaxreplay.testing import EXAMPLE, E, rows
from tests.methods import checks, quick
from tests.refusals import refused


def over(wrap, method: Method, *config) -> Method:
    return method._replace(sampler=wrap(method.sampler, *config))


def sliced(method: Method, **options) -> Method:
    return over(slices.Slices, method, slices.SlicesConfig(**({"length": 3} | options)))


COMPOSITIONS = {
    "her(per)": over(her.Hindsight, per.method()),
    "her(lap)": over(her.Hindsight, lap.method(), her.HERConfig(strategy="final", write_back=True)),
    "her(cer(rank))": over(her.Hindsight, cer.combine(rank.method())),
    "her(masked)": over(her.Hindsight, masked.method()),
    "her(reshuffled)": over(her.Hindsight, reshuffled.method()),
    "cer(rank)": cer.combine(rank.method()),
    "cer(lap)": cer.combine(lap.method(), cer.CERConfig(newest=3)),
    "cer(pser)": cer.combine(pser.method(), cer.CERConfig(unbiased=True)),
    "cer(ere)": cer.combine(ere.method()),
    "cer(reaper)": cer.combine(reaper.method()),
    "cer(reverse)": cer.combine(reverse.method(reverse.ReverseConfig(sweeps=3))),
    "sil(cer(rank))": sil.combine(cer.combine(rank.method())),
    "slices(masked)": sliced(masked.method()),
    "slices(uniform)": sliced(uniform.method()),
    "slices(per)": sliced(per.method(), burn_in=1),
    "slices(pser)": sliced(pser.method(), length=4, burn_in=3),
    "slices(lap) whole": sliced(lap.method(), length=5, whole=True),
    "slices(rank) whole": sliced(rank.method(), whole=True),
    "slices(cer(rank))": sliced(cer.combine(rank.method())),
    "slices(reshuffled)": sliced(reshuffled.method(), length=1),
    "slices(ero)": sliced(ero.method()),
    "slices(ners)": sliced(ners.method(), burn_in=2),
}
# The others consist of parts of these, or of methods that test_samplers.py checks.
QUICK = ("her(cer(rank))", "slices(pser)", "slices(lap) whole")
SLOW = tuple(name for name in COMPOSITIONS if name not in QUICK)
FEW = dict.fromkeys(
    (testing.eager_jit_vmap_and_scan_agree, testing.donation_changes_nothing,
     testing.batch_size_may_equal_the_capacity), (),
)  # fmt: skip


@functools.cache
def case_of(name):
    return testing.Case(COMPOSITIONS[name])


@pytest.mark.parametrize(("name", "law"), checks(COMPOSITIONS, SLOW, FEW))
def test_compositions_keep_the_contract(name, law):
    law(case_of(name))


MIXTURES = {
    "mix(lap, uniform)": (lap.method(), uniform.method()),
    "mix(her, per)": (over(her.Hindsight, uniform.method()), per.method()),
    "mix(cer(rank), pser)": (cer.combine(rank.method()), pser.method()),
    "mix(slices(per), slices)": (sliced(per.method()), sliced(uniform.method(), whole=True)),
    "mix(slices(per), sequences)": (
        sliced(per.method(), burn_in=1),
        sequences.method(sequences.SequencesConfig(length=3, period=2)),
    ),
}


def mixture(name):
    samplers = [testing.with_goals(method).sampler for method in MIXTURES[name]]
    sizes = ((24, 8), (12, 8))
    parts = [
        Replay(sampler, capacity=capacity, batch_size=batch_size, num_envs=E)
        for sampler, (capacity, batch_size) in zip(samplers, sizes, strict=True)
    ]
    return mix(*parts, 0.5)


# test_mixing.py scans vmapped states of a mixture with her.
@pytest.mark.parametrize("name", quick(MIXTURES, of=("mix(slices(per), slices)",)))
def test_mixtures_keep_types_probabilities_and_in_place_equivalence(name):
    both = mixture(name)

    def cycle(state, time):
        state = both.add(state, rows(time))
        batch = both.sample(state, jax.random.key(time))
        td = jax.random.normal(jax.random.key(99), batch.indices.shape) + time
        return both.update(state, batch, td_error=td), batch

    @jax.jit
    def filled(key):
        add = lambda state, time: (both.add(state, rows(time)), None)
        return jax.lax.scan(add, both.init(key, EXAMPLE), jnp.arange(9))[0]

    start, times, step = filled(jax.random.key(0)), jnp.arange(9, 15), jax.jit(cycle)
    state = start
    for time in times:
        state, batch = step(state, time)
    found, batches = jax.jit(lambda state: jax.lax.scan(cycle, state, times))(start)
    testing.same((found, jax.tree.map(lambda x: x[-1], batches)), (state, batch), rtol=1e-5)
    assert jax.eval_shape(cycle, start, 0)[0] == jax.eval_shape(lambda x: x, start)
    chance = jax.jit(both.probability)(state, jnp.arange(both.slots))
    chance = np.asarray(chance, np.float64)
    np.testing.assert_allclose(chance.sum(), 1.0, rtol=1e-5)
    keys = jax.random.split(jax.random.key(1), 2000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: both.sample(state, key)))(keys).indices)
    counts = np.bincount(drawn.ravel(), minlength=both.slots)
    expected = drawn.size * chance
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()


SEVERAL = {
    "sequences": sequences.sampler(), "windows": windows.sampler(), "latest": latest.sampler(),
    "refer": refer.sampler(), "slices": slices.sampler(slices.SlicesConfig(length=3)),
    "her": her.Hindsight(), "sil": sil.SelfImitation(),
}  # fmt: skip
WRAPPERS = {
    "cer": cer.CombinedExperience,
    "her": her.Hindsight,
    "sil": sil.SelfImitation,
    "slices": slices.Slices,
}


@pytest.mark.parametrize("inner", SEVERAL)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_reject_incompatible_inner_samplers(wrapper, inner):
    with refused("inner", type(SEVERAL[inner]).__name__):
        WRAPPERS[wrapper](SEVERAL[inner])


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_reject_values_that_are_not_samplers(wrapper):
    with refused("inner", "sampler", "3"):
        WRAPPERS[wrapper](3)
    with refused("inner", "sampler", "Method"):
        WRAPPERS[wrapper](per.method())


@pytest.mark.parametrize("module", [ero, ners])
def test_cer_rejects_samplers_that_learn_from_returns(module):
    with refused("inner", "returns"):
        cer.CombinedExperience(module.sampler())


def test_mixtures_of_transitions_and_sequences_are_refused():
    one, three, four = (
        Replay(sampler, capacity=16, batch_size=4)
        for sampler in (
            per.sampler(),
            *(slices.sampler(slices.SlicesConfig("per", length=n)) for n in (3, 4)),
        )
    )
    with refused("length", "None", "3"):
        mix(one, three)
    with refused("length", "3", "4"):
        mix(three, four)


@pytest.mark.parametrize("module", [cer, her, slices])
def test_schedules_of_the_inner_method_follow_the_length_of_the_run(module):
    make = {"cer": cer.CERConfig, "her": her.HERConfig, "slices": slices.SlicesConfig}
    config = make[module.__name__.rpartition(".")[2]]
    timed = config(over="per").for_run(50)
    assert timed.over_updates == 50
    inner = per.method(per.PERConfig().for_run(50))
    assert timed.for_run(70) == timed
    made = module.method(timed)
    assert made.sampler.inner == inner.sampler and made.objective == inner.objective
    assert made.sampler == module.sampler(timed)
    assert made.sampler != module.sampler(config(over="per").for_run(70))
