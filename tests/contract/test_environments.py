"""Contract tests for every compiled environment.

Truncation and the true last observation are frequent sources of errors; these tests compare them
with the dynamics of the packages.
"""

import functools

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.types import Discrete
from experiments import environments
from tests.methods import quick
from tests.refusals import refused

# One task for each branch of the adapter: vectors, images, DeepSea, other bounds of actions. The
# other tasks change only with a new version of gymnax.
GYMNAX = [
    f"gymnax/{name}"
    for name in (
        "CartPole-v1", "Pendulum-v1", "Breakout-MinAtar", "DeepSea-bsuite", "FourRooms-misc",
        "Reacher-misc",
    )
]  # fmt: skip
FEW = [
    *GYMNAX, "sparse_pendulum/Pendulum-v0", "walk/10", "goals/BitFlip-15", "goals/PointReach",
    "brax/inverted_pendulum", "xminigrid/MiniGrid-MemoryS8",
]  # fmt: skip
COMPILED = [
    name
    for name in environments.names()
    if not environments.is_host(name) and not environments.missing(name)
]
ALL = quick(COMPILED, of=FEW)
LIMIT = 5  # agent steps; idle episodes rarely end earlier


@functools.cache
def made(name: str, limit: int = LIMIT):
    environment = environments.make(name, max_steps=limit)
    return environment, jax.jit(environment.reset), jax.jit(environment.step)


def idle(environment, steps=0):
    """Return action 0 or the middle of the range; on a walk, the action that does not terminate."""
    space = environment.action_space
    if environment.name.startswith("walk/"):
        return jnp.asarray(steps % 2, jnp.int32)
    return jnp.zeros((), jnp.int32) if isinstance(space, Discrete) else jnp.zeros(space.size)


@functools.cache
def play(name: str):
    """Return key, previous state, state, observation and outcome of four idle episodes."""
    environment, reset, step = made(name)
    state, obs = reset(jax.random.key(0))
    trace = []
    for time in range(4 * LIMIT):
        before, key = state, jax.random.key(time)
        state, obs, out = step(key, before, idle(environment, before.steps))
        trace.append((key, before, state, obs, out))
    return trace


def assert_equal(left, right):
    plain = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(plain(x), plain(y)), left, right)


@pytest.mark.parametrize("name", ALL)
def test_steps_keep_types_compile_once_and_depend_on_key_and_action(name):
    environment, reset, step = made(name)
    discrete = isinstance(environment.action_space, Discrete)
    assert environments.action_kind(name) == ("discrete" if discrete else "continuous")
    state, obs = reset(jax.random.key(0))
    assert_equal(reset(jax.random.key(0)), (state, obs))
    key, before, after, next_obs, out = play(name)[0]
    assert_equal((before, step(key, before, idle(environment))), (state, (after, next_obs, out)))
    for leaf in jax.tree.leaves((state, obs, after, next_obs, out)):
        assert not getattr(leaf, "weak_type", False)  # keys have no weak_type
    # Compare leaves: MJX has static arrays, which do not support equality.
    types = lambda tree: [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]
    assert types(state) == types(after)
    assert types(obs) == types(next_obs) == types(out.final_obs) == types(environment.spec.obs)
    assert (out.reward.dtype, out.reward.shape) == (jnp.float32, ())
    assert (out.terminated.dtype, out.truncated.dtype) == (bool, bool)
    assert step._cache_size() <= 1


# These have constant initial observations; MinAtar's may recur at the time limit.
ALIKE = ("walk/", "gymnax/DeepSea", "gymnax/FourRooms")


@pytest.mark.parametrize("name", ALL)
def test_episodes_are_truncated_at_the_limit_and_begin_again(name):
    clock, ends = 0, []
    for _, _, state, obs, out in play(name):
        clock += 1
        assert not (out.terminated and out.truncated)
        assert bool(out.truncated) == (clock == LIMIT and not out.terminated)
        if out.terminated or out.truncated:
            assert int(state.steps) == 0
            clock = 0
            ends.append((obs, out))
        else:
            np.testing.assert_allclose(
                *map(jnp.float32, (obs, out.final_obs)), rtol=1e-5, atol=1e-6
            )
    assert len(ends) >= 4 and any(out.truncated for _, out in ends)
    if (name in FEW or name.startswith("gymnax/")) and "MinAtar" not in name:
        assert not any(np.array_equal(obs, out.final_obs) for obs, out in ends)
        alike = all(np.array_equal(ends[0][0], obs) for obs, _ in ends)
        assert alike == name.startswith(ALIKE)


@pytest.mark.parametrize(
    "name", quick([name for name in COMPILED if name.startswith("gymnax/")], of=GYMNAX)
)
def test_gymnax_final_obs_agrees_with_its_dynamics(name):
    env, params = gymnax.make(name.removeprefix("gymnax/"))
    bare = jax.jit(env.step_env)
    space = env.action_space(params)
    for key, before, _, _, out in play(name)[:LIMIT]:
        # The adapter splits the key into one for the dynamics and one for the reset.
        key_step, _ = jax.random.split(key)
        action = idle(made(name)[0])
        if not hasattr(space, "n"):
            low, high = (jnp.broadcast_to(x, space.shape) for x in (space.low, space.high))
            action = (low + high) / 2
        obs, _, reward, terminated, _ = bare(key_step, before.inner, action, params)
        np.testing.assert_allclose(out.final_obs.astype(jnp.float32), obs, atol=1e-6)
        np.testing.assert_allclose(out.reward, reward, atol=1e-5)
        assert bool(out.terminated) == bool(terminated)


def test_brax_final_obs_agrees_with_its_dynamics():
    """Also for actions that are not 0: brax, not the adapter, scales them to the actuators."""
    from brax import envs

    env = envs.get_environment("inverted_pendulum", backend="spring")  # actuators in [-3, 3]
    bare = jax.jit(env.step)
    _, reset, step = made("brax/inverted_pendulum")
    state, _ = reset(jax.random.key(0))
    for time, action in enumerate(np.float32([[-1.0], [-0.3], [0.0], [0.7], [1.0]])):
        own = bare(state.inner, action)
        state, _, out = step(jax.random.key(time), state, action)
        np.testing.assert_allclose(out.final_obs, own.obs, atol=1e-6)
        np.testing.assert_allclose(out.reward, own.reward, atol=1e-6)
        assert bool(out.terminated) == bool(own.done)


def test_xminigrid_final_obs_agrees_with_its_dynamics():
    import xminigrid

    name = "MiniGrid-MemoryS8"
    env, params = xminigrid.make(name)
    bare = jax.jit(lambda timestep: env.step(params, timestep, 0))
    for _, before, _, _, out in play(f"xminigrid/{name}")[:LIMIT]:
        timestep = bare(before.inner)
        tile, colour = out.final_obs[..., :13].argmax(-1), out.final_obs[..., 13:].argmax(-1)
        np.testing.assert_array_equal(jnp.stack([tile, colour], axis=-1), timestep.observation)
        assert (out.final_obs.sum(axis=-1) == 2).all()
        assert (out.reward, out.terminated) == (timestep.reward, timestep.discount == 0)


needs_playground = pytest.mark.skipif(
    bool(environments.missing("playground/PendulumSwingup")),
    reason="needs jaxreplay[playground]",
)


@needs_playground
def test_playground_final_obs_agrees_with_its_dynamics():
    from mujoco_playground import dm_control_suite

    name = "PendulumSwingup"
    env = dm_control_suite.load(name, config_overrides={"impl": "jax"})
    environment, reset, step = made(f"playground/{name}", 3)
    state, obs = reset(jax.random.key(0))
    bare = jax.jit(env.step)
    for time in range(6):
        own = bare(state.inner, jnp.ones(1))
        # Actions are clipped, or the torque would exceed its limit.
        state, obs, out = step(jax.random.key(time), state, jnp.full(1, 1.0 + time))
        np.testing.assert_allclose(out.final_obs, own.obs, atol=1e-6)
        np.testing.assert_allclose(out.reward, own.reward, atol=1e-6)
        assert bool(out.truncated) == (time % 3 == 2) and not out.terminated
        assert np.array_equal(obs, out.final_obs) != bool(out.truncated)
    assert step._cache_size() <= 1


@needs_playground
@pytest.mark.slow
def test_playground_lists_the_whole_suite():
    from mujoco_playground import dm_control_suite

    names = [name for name in environments.names() if name.startswith("playground/")]
    assert set(names) == {f"playground/{name}" for name in dm_control_suite.ALL_ENVS}


def until_it_falls(name, action, seed):
    """Push to one side without a time limit; return the number of the last step and its result."""
    _, reset, step = made(name)
    state, _ = reset(jax.random.key(seed))
    for time in range(1, 61):
        state = state._replace(steps=jnp.zeros_like(state.steps))
        state, obs, out = step(jax.random.key(time), state, action)
        if out.terminated:
            return time, obs, out
    pytest.fail("pushing to one side must make the pole fall")


def test_brax_pendulum_terminates_when_it_falls():
    _, obs, out = until_it_falls("brax/inverted_pendulum", jnp.ones(1), 0)
    assert not out.truncated
    assert abs(float(out.final_obs[1])) > 0.2  # the task terminates at this angle
    assert abs(float(obs[1])) < 0.02


def test_termination_returns_the_fallen_pole_and_a_new_one():
    right = jnp.ones((), jnp.int32)
    time, obs, out = until_it_falls("gymnax/CartPole-v1", right, 7)
    assert 8 <= time <= 11
    assert not out.truncated
    assert abs(float(out.final_obs[2])) > 12 * np.pi / 180
    assert np.abs(np.asarray(obs)).max() <= 0.05
    assert float(out.reward) == 1.0


def test_termination_precedes_a_time_limit_at_the_same_step():
    _, reset, step = made("gymnax/CartPole-v1")
    state, _ = reset(jax.random.key(7))
    fallen = state.inner.replace(theta=jnp.float32(1.0))
    state = state._replace(inner=fallen, steps=jnp.full_like(state.steps, LIMIT - 1))
    _, _, out = step(jax.random.key(1), state, jnp.ones((), jnp.int32))
    assert out.terminated and not out.truncated


def test_continuous_actions_are_scaled_to_the_bounds_and_clipped():
    _, reset, step = made("gymnax/Pendulum-v1")
    state, _ = reset(jax.random.key(0))
    env, params = gymnax.make("Pendulum-v1")
    bare = jax.jit(lambda torque: env.step_env(jax.random.key(1), state.inner, torque, params)[0])
    for action, torque in ((1.0, 2.0), (-1.0, -2.0), (0.25, 0.5), (9.0, 2.0)):
        _, _, out = step(jax.random.key(1), state, jnp.full(1, action))
        np.testing.assert_allclose(out.final_obs, bare(torque), atol=1e-6)


def test_vmapped_lanes_reset_independently():
    environment = environments.make("gymnax/CartPole-v1", max_steps=50)
    state, _ = jax.vmap(environment.reset)(jax.random.split(jax.random.key(0), 4))
    actions = jnp.array([1, 1, 0, 0])
    step = jax.jit(jax.vmap(environment.step))
    ended = np.zeros(4, int)
    for time in range(30):
        keys = jax.random.split(jax.random.key(time), 4)
        state, _, out = step(keys, state, actions)
        ended += np.asarray(out.terminated)
    assert (ended >= 2).all()


def test_minatar_observations_take_one_byte_per_pixel():
    _, reset, _ = made("gymnax/Breakout-MinAtar")
    assert reset(jax.random.key(0))[1].dtype == bool


@pytest.mark.parametrize("backend", ["positional", "generalized", "mjx"])
@pytest.mark.slow
def test_brax_runs_on_every_backend(backend):
    environment = environments.make("brax/halfcheetah", backend=backend, max_steps=2)
    state, _ = jax.jit(environment.reset)(jax.random.key(0))
    step = jax.jit(environment.step)
    for time in range(2):
        state, _, out = step(jax.random.key(time), state, jnp.zeros(6))
    assert out.truncated and np.isfinite(np.asarray(out.final_obs)).all()


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("gymnax/CartPol-v1", {}, ("gymnax/CartPol-v1", "gymnax/CartPole-v1")),
        ("brax/aunt", {}, ("brax/aunt", "brax/ant")),
        ("playground/CheetaRun", {}, ("playground/CheetaRun", "playground/CheetahRun")),
        ("brax/ant", {"backend": "newton"}, ("backend", "newton", "spring", "positional")),
        (
            "gymnax/CartPole-v1",
            {"backend": "spring"},
            ("gymnax/CartPole-v1", "brax/", "--env.backend"),
        ),
        ("gymnax/CartPole-v1", {"max_steps": -1}, ("max_steps", "-1")),
    ],
)
def test_unknown_names_and_options_are_refused(name, options, parts):
    with refused(*parts):
        environments.make(name, **options)


def test_missing_packages_are_named_with_their_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    name = "playground/CheetahRun"
    with refused(name, "pip install", "[playground]") as error:
        environments.make(name)
    assert environments.missing(name) == str(error.value)
    assert environments.action_kind(name) == "continuous"
