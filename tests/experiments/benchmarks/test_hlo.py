"""What compiled programs consist of, and which large arrays they copy."""

import jax
import jax.numpy as jnp

from experiments.benchmarks.hlo import counts
from jaxreplay.testing import large_copies


def test_large_copies_are_found():
    def careless(array, key):
        old = array
        array = array.at[key].set(1.0)
        return array, old[key + 1] + old[array[key].astype(int)]

    size = 30_011
    run = jax.jit(lambda a: jax.lax.scan(careless, a, jnp.arange(10)), donate_argnums=0)
    text = run.lower(jnp.zeros(size)).compile({"xla_backend_optimization_level": 3}).as_text()
    assert large_copies(text, size) != []
    assert large_copies(text, size + 1) == []


def test_large_copies_are_found_wherever_a_loop_goes():
    text = """
%fused (p: f32[40000]) -> f32[40000] {
  ROOT %copy.1 = f32[40000]{0} copy(%p)
}
%branch (p: f32[40000]) -> f32[40000] {
  ROOT %copy.2 = f32[40000]{0} copy(%p)
}
%outside (p: f32[40000]) -> f32[40000] {
  ROOT %copy.3 = f32[40000]{0} copy(%p)
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
    assert len(names) == 3  # and those of the fusion and of the branch
    assert len(large_copies(text, 40_000)) == 2


def test_what_programs_consist_of_is_counted():
    def program(x):
        return jax.lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x @ x) + i, x)

    found = counts(jax.jit(program).lower(jnp.ones((32, 32))).compile().as_text())
    assert found.loops == 1 and found.products >= 1
    assert found.instructions > found.fusions + found.loops + found.products
