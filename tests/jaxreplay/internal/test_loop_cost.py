"""Costs of loops: read off HLO written by hand, compiled for this machine, and refused."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest

from jaxreplay._internal import hlo
from jaxreplay.testing import assert_in_place, compiled_cost

# A loop of 7 around a loop of 5, a loop of unknown length, and a branch.
TEXT = """HloModule jit_train

FileNames
1 "/home/me/train.py"

FunctionNames
1 "step"
2 "train.<locals>.body"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=1 end_column=2}
2 {file_name_id=1 function_name_id=2 line=30 end_line=30 column=1 end_column=2}

StackFrames
1 {file_location_id=2 parent_frame_id=1}
2 {file_location_id=1 parent_frame_id=2}

%small (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %sort.1 = f32[4]{0} sort(%p), dimensions={0}, backend_config={"estimated_cycles":"10"}
}
%until (p: s32[]) -> pred[] {
  %constant.3 = s32[] constant(5)
  ROOT %lt = pred[] compare(%p, %constant.3), direction=LT
}
%until_found (p: s32[]) -> pred[] {
  ROOT %lt = pred[] compare(%p, %q), direction=LT
}
%left (p: f32[4]) -> f32[4] {
  ROOT %a = f32[4]{0} fusion(%p), kind=kLoop, calls=%x
}
%right (p: f32[4]) -> f32[4] {
  %a = f32[4]{0} fusion(%p), kind=kLoop, calls=%x
  ROOT %b = f32[4]{0} fusion(%a), kind=kLoop, calls=%x
}
%called (p: f32[4]) -> f32[4] {
  ROOT %negate = f32[4]{0} negate(%p)
}
%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %get.1 = f32[4]{0} get-tuple-element(%p), index=1
  %start = (f32[4]{0}, f32[4]{0}, u32[]) copy-start(%get.1)
  %done = f32[4]{0} copy-done(%start)
  %one = f32[4]{0} fusion(%done), kind=kLoop, calls=%x, metadata={op_name="jit(train)/while/body/add" stack_frame_id=2}
  %w = f32[4]{0} while(%one), condition=%until, body=%small, metadata={op_name="while"}
  %v = f32[4]{0} while(%w), condition=%until_found, body=%small, metadata={op_name="while"}
  %c = f32[4]{0} conditional(%i, %v, %v), branch_computations={%left, %right}
  %d = f32[4]{0} call(%c), to_apply=%called
  ROOT %t = (s32[], f32[4]{0}) tuple(%n, %d)
}
ENTRY %main (p: f32[4]) -> f32[4] {
  %w = (s32[], f32[4]{0}) while(%t), condition=%unknown, body=%body, backend_config={"known_trip_count":{"n":"7"}}
}
"""  # noqa: E501


def test_operations_of_an_iteration_are_those_of_the_outermost_loop():
    found = hlo.iteration(TEXT)
    times = {}
    for each in found:
        times[each.kind] = times.get(each.kind, 0) + each.times
    assert times == {
        "copy-start": 1, "fusion": 1 + 2, "while": 2, "sort": 5 + 1, "conditional": 1, "negate": 1,
    }  # fmt: skip
    assert [each.kind for each in found if each.waits] == ["while", "conditional"]
    assert sum(each.times * each.cycles for each in found) == 60


def test_origins_are_lines_of_the_source():
    (fusion,) = [each for each in hlo.iteration(TEXT) if "train.py" in each.origin]
    assert fusion.origin.startswith("train.py:12 step")


def test_programs_without_loops_have_no_iteration():
    assert hlo.iteration(TEXT[: TEXT.index("%body")]) == []


def test_copies_of_a_tpu_are_generated_loops_but_no_moves_between_memories():
    text = """
%loop (p: (f32[4,1000])) -> (f32[4,1000]) {
  %generated = (u32[], f32[4,1000]{1,0}, /*index=2*/f32[4000]{0}) while(%t), condition=%c, body=%b
  %traced = (u32[], f32[4,1000]{1,0}) while(%t), condition=%c, body=%b, metadata={op_name="while"}
  %reshaped = f32[40,100]{1,0} copy(%x)
  %moved = (f32[1000]{0:T(1024)S(1)}, f32[1000]{0:T(1024)}, u32[]{:S(2)}) copy-start(%y)
  %started = (f32[1000]{0:T(1024)}, f32[1000]{0:T(1024)}, u32[]{:S(2)}) copy-start(%z)
}
ENTRY %main (p: f32[4]) -> f32[4] {
  %w = (f32[4,1000]) while(%t), condition=%until, body=%loop
}
"""
    found = [line.split()[0] for line in hlo.large_copies(text, 1000)]
    assert found == ["%generated", "%started"]
    assert len(hlo.large_copies(text, 1000, counts=[4000])) == 3


def test_loops_compile_for_this_machine_by_default():
    def step(state, key):
        numbers, clock = state
        return (jnp.sort(numbers) + jax.random.normal(key), clock + 1), numbers.sum()

    cost = compiled_cost(step, (jnp.zeros(100), jnp.zeros((), int)), jax.random.key(0))
    assert cost.platform == jax.default_backend() and cost.cycles is None
    assert cost.launches == sum(each.times for each in cost.operations) > 2
    assert cost.bytes >= 400 and cost.conditionals == 0
    assert str(cost.launches) in str(cost)


def test_steps_that_return_no_state_and_have_no_loop_are_refused():
    with pytest.raises(ValueError, match="state"):
        compiled_cost(lambda state: state.sum(), jnp.zeros(100))


@pytest.mark.parametrize("function", [compiled_cost, assert_in_place])
def test_unknown_platforms_and_missing_compilers_are_refused(function, monkeypatch):
    def untraced(state):
        raise AssertionError("traced")

    with pytest.raises(ValueError, match="cuda"):
        function(untraced, jnp.zeros(3), platform="cuda")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for platform in ("gpu", "tpu"):
        with pytest.raises(ImportError, match=rf"compile-{platform}\]") as error:
            function(untraced, jnp.zeros(3), platform=platform)
        assert "\n" not in str(error.value)
