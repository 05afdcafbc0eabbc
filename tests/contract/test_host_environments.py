"""Contract tests for every host environment; environments with missing packages are skipped.

The batch is compared with single environments of the bare packages, with the same seeds.
"""

import math

import jax
import numpy as np
import pytest

from agents.types import Discrete
from experiments import environments
from experiments.environments import EnvironmentFailed
from experiments.environments.host import environment_seeds
from tests.refusals import assert_names, refused

LIMIT = 12  # agent steps; some episodes end earlier, some here
NAMES = {  # name -> options
    "gymnasium/CartPole-v1": {},
    "gymnasium/Pendulum-v1": {},
    "gymnasium/LunarLanderContinuous-v3": {},
    "gymnasium/Hopper-v5": {},
    "gymnasium/Ant-v3": {},
    "gymnasium/Humanoid-v3": {},
    "atari/Freeway": {"protocol": "lap", "noops": 30},  # cars move in every frame
}


def installed(*names: str):
    """Parametrize over names, and skip those with missing packages."""
    return [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                environments.missing(name) is not None, reason=str(environments.missing(name))
            ),
        )
        for name in names
    ]


ALL = installed(*NAMES)
GYMNASIUM = installed(*(name for name in NAMES if name.startswith("gymnasium/")))


@pytest.fixture
def make():
    made = []

    def make(name, num_envs=2, **options):
        options = {"max_steps": LIMIT, **NAMES.get(name, {}), **options}
        made.append(environments.make_host(name, num_envs, **options))
        return made[-1]

    yield make
    for environment in made:
        environment.close()


def random_actions(environment, rng):
    space = environment.action_space
    if isinstance(space, Discrete):
        return rng.integers(space.n, size=environment.num_envs)
    return rng.uniform(-1.2, 1.2, (environment.num_envs, space.size)).astype(np.float32)


def play(environment, seed, steps, split=False):
    """Return observation, actions, next observation and outcome of every step."""
    rng = np.random.default_rng(5)
    obs = environment.reset(seed)
    trace = []
    for _ in range(steps):
        actions = random_actions(environment, rng)
        if split:
            environment.send(actions)
            next_obs, step = environment.receive()
        else:
            next_obs, step = environment.step(actions)
        trace.append((obs, actions, next_obs, step))
        obs = next_obs
    return trace


def same(left, right):
    return all(
        np.array_equal(x, y)
        for one, other in zip(left, right, strict=True)
        for x, y in zip((one[0], one[2], *one[3]), (other[0], other[2], *other[3]))
    )


@pytest.mark.parametrize("name", ALL)
def test_observations_and_outcomes_have_the_declared_shapes_and_dtypes(name, make):
    environment = make(name, 3)
    assert environment.name == name and environment.num_envs == 3
    assert environments.is_host(name)
    discrete = isinstance(environment.action_space, Discrete)
    assert environments.action_kind(name) == ("discrete" if discrete else "continuous")
    assert environment.spec == (
        name, environment.obs, environment.action_space, LIMIT, environment.frame_stack, None
    )  # fmt: skip
    assert environment.obs.dtype == (np.uint8 if name.startswith("atari") else np.float32)
    obs, _, next_obs, step = play(environment, 0, 1)[0]
    for seen in (obs, next_obs, step.final_obs):
        assert (seen.shape, seen.dtype) == ((3, *environment.obs.shape), environment.obs.dtype)
    for values, dtype in zip(step[:3], (np.float32, bool, bool)):
        assert (values.shape, values.dtype) == ((3,), dtype)


@pytest.mark.parametrize("name", ALL)
def test_episodes_depend_on_the_seed_alone_and_are_truncated_at_the_limit(name, make):
    environment = make(name)
    trace = play(environment, 3, 5 * LIMIT)
    kept = jax.tree.map(np.copy, trace)
    assert same(trace, play(environment, 3, 5 * LIMIT))
    jax.tree.map(np.testing.assert_array_equal, trace, kept)  # returned arrays stay unchanged
    assert same(trace, play(make(name), 3, 5 * LIMIT, split=True))
    assert not same(trace, play(environment, 4, 5 * LIMIT))
    assert not all(np.array_equal(*step.final_obs) for *_, step in trace)
    clock, starts = np.zeros(2, int), []
    for _, _, next_obs, step in trace:
        clock += 1
        over = step.terminated | step.truncated
        assert not (step.terminated & step.truncated).any()
        np.testing.assert_array_equal(step.truncated, (clock == LIMIT) & ~step.terminated)
        np.testing.assert_array_equal(next_obs[~over], step.final_obs[~over])
        for lane in np.flatnonzero(over):
            assert not np.array_equal(next_obs[lane], step.final_obs[lane])
            starts.append(next_obs[lane])
        clock[over] = 0
    assert len(starts) >= 8
    # The number of no-ops may coincide; other initial observations are distinct.
    assert len({start.tobytes() for start in starts}) >= (3 if "atari" in name else len(starts))


def test_neighbouring_seeds_share_no_environment_seeds():
    assert len({*environment_seeds(3, 64), *environment_seeds(4, 64)}) == 128


def bare(name):
    gymnasium = pytest.importorskip("gymnasium")
    short = name.removeprefix("gymnasium/")
    if short in ("Ant-v3", "Humanoid-v3"):
        short = short.replace("v3", "v4")
    return gymnasium.make(short, max_episode_steps=LIMIT)


def as_v3(name, obs):
    """With MuJoCo 2 the 84 contact forces were zero; v4 omits Ant's and computes Humanoid's."""
    if name == "gymnasium/Ant-v3":
        return np.concatenate([obs, np.zeros(84)])
    return np.concatenate([obs[:-84], np.zeros(84)]) if name == "gymnasium/Humanoid-v3" else obs


@pytest.mark.parametrize("name", GYMNASIUM)
def test_gymnasium_gives_what_bare_environments_give(name, make, vectorisation="sync"):
    trace = play(make(name, vectorisation=vectorisation), 11, 3 * LIMIT, split=True)
    ended = 0
    for lane, seed in enumerate(environment_seeds(11, 2)):
        env = bare(name)
        obs, _ = env.reset(seed=seed)
        for before, actions, next_obs, step in trace:
            np.testing.assert_array_equal(before[lane], as_v3(name, obs).astype(np.float32))
            action = actions[lane]
            if not hasattr(env.action_space, "n"):
                low, high = env.action_space.low, env.action_space.high
                action = low + (np.clip(action, -1, 1) + 1) / 2 * (high - low)
                action = action.astype(np.float32).clip(low, high)
            obs, reward, terminated, truncated, _ = env.step(action)
            np.testing.assert_array_equal(step.final_obs[lane], as_v3(name, obs).astype(np.float32))
            assert step.reward[lane] == np.float32(reward)
            assert step.terminated[lane] == terminated
            assert step.truncated[lane] == (truncated and not terminated)
            if terminated or truncated:
                ended += 1
                obs, _ = env.reset()
            np.testing.assert_array_equal(next_obs[lane], as_v3(name, obs).astype(np.float32))
        env.close()
    assert ended >= 4


def test_environments_in_processes_agree_with_bare_environments(make):
    test_gymnasium_gives_what_bare_environments_give("gymnasium/CartPole-v1", make, "async")


def test_termination_precedes_a_time_limit_at_the_same_step(make):
    environment = make("gymnasium/CartPole-v1", 1, max_steps=500)
    environment.reset(0)
    fall, done = 0, False
    while not done:
        _, step = environment.step([1])
        fall, done = fall + 1, step.terminated[0]
    environment = make("gymnasium/CartPole-v1", 1, max_steps=fall)
    environment.reset(0)
    for _ in range(fall):
        _, step = environment.step([1])
    assert step.terminated[0] and not step.truncated[0]
    assert abs(step.final_obs[0, 2]) > 12 * math.pi / 180


@pytest.mark.parametrize("name", installed("gymnasium/CartPole-v1", "atari/Freeway"))
def test_render_returns_the_current_picture(name, make):
    if name.startswith("gymnasium/"):
        pytest.importorskip("pygame", reason="needs jaxreplay[gymnasium]")
    environment = make(name, render=True)
    environment.reset(0)
    first = environment.render()
    assert first.ndim == 3 and first.shape[2] == 3 and first.dtype == np.uint8
    assert len(np.unique(first)) > 1
    for _ in range(5):
        environment.step([1, 1])
    assert not np.array_equal(first, environment.render())
    plain = make(name)
    plain.reset(0)
    with refused(name, "render=True"):
        plain.render()


def test_send_and_receive_must_alternate(make):
    environment = make("gymnasium/CartPole-v1")
    with refused("reset(", error=RuntimeError):
        environment.step([0, 0])
    environment.reset(0)
    with refused("receive()", "send()", error=RuntimeError):
        environment.receive()
    environment.send([0, 1])
    with refused("receive()", error=RuntimeError):
        environment.send([0, 1])
    np.testing.assert_array_equal(environment.reset(1), make("gymnasium/CartPole-v1").reset(1))


def test_invalid_actions_are_refused(make):
    cart, pendulum = make("gymnasium/CartPole-v1"), make("gymnasium/Pendulum-v1")
    cart.reset(0), pendulum.reset(0)
    with refused("gymnasium/CartPole-v1", "[2]", "[3]"):
        cart.step([0, 0, 0])
    with refused("gymnasium/CartPole-v1", "0", "1", "[0 2]"):
        cart.step([0, 2])
    with refused("gymnasium/Pendulum-v1", "[2, 1]", "[2]"):
        pendulum.step([0.0, 0.0])
    with refused("gymnasium/Pendulum-v1", "1", "action", error=EnvironmentFailed):
        pendulum.step([[0.0], [np.nan]])


def faulty(fault: str, at: int = 3):
    """Register an environment that fails at step `at` in the second lane of a batch."""
    gymnasium = pytest.importorskip("gymnasium")

    class Faulty(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        action_space = gymnasium.spaces.Discrete(2)
        guilty = environment_seeds(7, 2)[1]

        def reset(self, seed=None, options=None):
            self.bad = seed == self.guilty
            self.clock = 0
            if self.bad and fault == "reset":
                raise KeyError("no\nstart")
            return np.zeros(2), {}

        def step(self, action):
            self.clock += 1
            now = self.bad and self.clock == at
            if now and fault == "step":
                raise ZeroDivisionError("division by zero")
            obs = np.array([0.0, np.nan if now and fault == "observation" else 1.0])
            reward = np.inf if now and fault == "reward" else 1.0
            return obs, reward, now and fault == "observation", False, {}

    gymnasium.register("Faulty-v0", entry_point=Faulty, max_episode_steps=50)


@pytest.fixture
def registry():
    gymnasium = pytest.importorskip("gymnasium")
    before = dict(gymnasium.registry)
    yield gymnasium
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


@pytest.mark.parametrize(
    ("fault", "parts", "vectorisation"),
    [
        ("step", ("ZeroDivisionError", "division by zero"), "sync"),
        ("step", ("ZeroDivisionError", "division by zero"), "async"),
        ("observation", ("observation",), "sync"),
        ("reward", ("reward",), "sync"),
        ("reset", ("KeyError",), "sync"),
    ],
)
def test_failures_name_environment_lane_step_and_seed(fault, parts, vectorisation, make, registry):
    faulty(fault)
    environment = make("gymnasium/Faulty-v0", max_steps=20, vectorisation=vectorisation)
    step = 0 if fault == "reset" else 3
    where = "gymnasium/Faulty-v0", "1", step, "7"  # name, lane, step, seed
    with refused(*where, *parts, error=EnvironmentFailed) as error:
        environment.reset(7)
        for _ in range(3):
            environment.send([0, 0])
            environment.receive()
    if vectorisation == "sync" and fault in ("step", "reset"):
        assert isinstance(error.value.__cause__, ZeroDivisionError | KeyError)


def test_unlisted_ids_can_be_made(make, registry):
    faulty("none")
    assert environments.action_kind("gymnasium/Faulty-v0") == "discrete"
    environment = make("gymnasium/Faulty-v0", max_steps=None)
    assert environment.max_steps == 50
    assert "gymnasium/Faulty-v0" not in environments.names()


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("gymnasium/Hoper-v5", {}, ("Hoper-v5", "gymnasium/Hopper-v5")),
        ("gymnasium/nosuchmodule:Env-v0", {}, ("nosuchmodule", "ModuleNotFoundError")),
        (
            "gymnasium/Blackjack-v1",
            {"max_steps": 5},
            ("gymnasium/Blackjack-v1", "Tuple", "Box", "Dict"),
        ),
        ("atari/Pung", {}, ("atari/Pung", "atari/Pong")),
        ("gymnax/CartPole-v1", {}, ("gymnax/CartPole-v1", "environments.make")),
        ("gymnasium/CartPole-v1", {"max_steps": 0}, ("max_steps", "0")),
        (
            "gymnasium/CartPole-v1",
            {"sticky": 0.5},
            ("gymnasium/CartPole-v1", "atari/", "--env.sticky"),
        ),
        ("gymnasium/CartPole-v1", {"speed": 1}, ("max_steps", "vectorisation", "--env.speed")),
    ],
)
def test_unknown_names_and_options_are_refused(name, options, parts):
    with refused(*parts):
        environments.make_host(name, 1, **options)


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("gymnasium/Ant-v5", "mujoco", "mujoco"),
        ("gymnasium/BipedalWalker-v3", "Box2D", "box2d"),
        ("atari/Pong", "ale_py", "atari"),
        ("atari/Pong", "gymnasium", "atari"),
    ],
)
def test_environments_with_missing_packages_are_listed_but_refused(
    name, module, extra, monkeypatch
):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda wanted: None if wanted == module else find(wanted)
    )
    assert name in environments.names()
    assert_names(environments.missing(name), name, module, f"[{extra}]")
    with refused(name, f"[{extra}]"):
        environments.make_host(name, 1)


def test_compiled_loop_rejects_host_environments():
    with refused("atari/Pong", "environments.make_host"):
        environments.make("atari/Pong")
