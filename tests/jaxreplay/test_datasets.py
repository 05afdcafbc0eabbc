"""Replays filled from recorded episodes, compared with the definition of a transition."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, SharedObservations, datasets, ring
from jaxreplay.methods import latest, per, refer, uniform
from tests.refusals import refused

GAMMA, KEY = 0.5, jax.random.key(0)


class Recorded(NamedTuple):
    """An episode with the fields of a Minari episode."""

    observations: Any
    actions: Any
    rewards: Any
    terminations: Any
    truncations: Any


def episode(number, length, end="terminated"):
    """An episode in which step t of episode k has observation and action 100 k + t."""
    times = np.arange(length + 1)
    flags = {name: np.zeros(length, bool) for name in ("terminated", "truncated")}
    if end:
        flags[end][-1] = True
    obs = {"speed": (100.0 * number + times)[:, None], "tag": (times % 7).astype(np.int64)}
    action = 100 * number + times[:-1]
    return Recorded(obs, action, 1.0 * times[:-1], flags["terminated"], flags["truncated"])


def stored(result):
    """Return the stored transitions, oldest first, as NumPy arrays `[rows, E, ...]`."""
    held = result.state.ring
    count = int(ring.size(held))
    order = ring.recent(held, jnp.arange(count)[::-1].reshape(-1, held.num_envs)[:, ::-1])
    t = jax.jit(ring.gather)(held, order)
    return jax.tree.map(np.asarray, t)


def expected(episodes, n):
    """Transitions of one lane by definition: obs, action, reward, discount, next, first, last."""
    rows = []
    for item in episodes:
        obs, length = item.observations["speed"][:, 0], len(item.rewards)
        for start in range(length):
            end = min(start + n, length)
            reward = sum(GAMMA ** (t - start) * item.rewards[t] for t in range(start, end))
            over = end == length and item.terminations[-1]
            rows.append((
                obs[start], item.actions[start], reward, 0.0 if over else GAMMA ** (end - start),
                obs[end], start == 0, start == length - 1,
            ))  # fmt: skip
    return rows


def cut(item, count):
    return Recorded(
        {name: x[: count + 1] for name, x in item.observations.items()},
        *(x[:count] for x in item[1:]),
    )


def as_rows(t, lane):
    columns = (t.obs["speed"][..., 0], t.action, t.reward, t.discount, t.next_obs["speed"][..., 0],
               t.first, t.last)  # fmt: skip
    return list(zip(*(column[:, lane] for column in columns), strict=True))


EPISODES = [episode(1, 5), episode(2, 3, "truncated"), episode(3, 4, None), episode(4, 6)]


@pytest.mark.parametrize(("n", "chunk"), [(3, 5), (1, 100)])
def test_one_lane_stores_all_episodes_in_order(n, chunk):
    replay = Replay(per.sampler(), capacity=32, batch_size=4)
    episodes = iter(EPISODES)
    done = datasets.fill(replay, episodes, key=KEY, gamma=GAMMA, n_step=n, chunk=chunk)
    assert (done.stored, done.left_out) == (18, 0)
    found = stored(done)
    np.testing.assert_allclose(as_rows(found, 0), expected(EPISODES, n), rtol=1e-6)
    assert found.obs["tag"].dtype == np.int32 and found.obs["speed"].dtype == np.float32
    assert found.next_obs["tag"][-1, 0] == 6  # the observation after the last step


def test_lanes_store_whole_episodes_and_have_equal_lengths():
    replay = Replay(uniform.sampler(), capacity=32, batch_size=4, num_envs=2)
    done = datasets.fill(replay, EPISODES, key=KEY, gamma=GAMMA, n_step=2, chunk=3)
    # Lane 0 gets episodes of 5 and 6 steps, lane 1 of 3 and 4: the longer lane is cut.
    lanes = [[EPISODES[0], EPISODES[3]], [EPISODES[1], EPISODES[2]]]
    rows = min(sum(len(item.rewards) for item in lane) for lane in lanes)
    assert (done.stored, done.left_out) == (2 * rows, 18 - 2 * rows)
    lanes[0][1] = cut(EPISODES[3], rows - 5)  # its newest step is marked as last
    found = stored(done)
    for number, lane in enumerate(lanes):
        np.testing.assert_allclose(as_rows(found, number), expected(lane, 2), rtol=1e-6)


def test_a_small_ring_keeps_the_newest_transitions():
    once = SharedObservations(spare=1.0)
    replay = Replay(uniform.sampler(), capacity=7, batch_size=4, storage=once)
    done = datasets.fill(replay, EPISODES, key=KEY, gamma=GAMMA, n_step=2, chunk=4)
    assert done.stored == 18
    np.testing.assert_allclose(as_rows(stored(done), 0), expected(EPISODES, 2)[-7:], rtol=1e-6)


def test_prepare_changes_the_stored_observations():
    replay = Replay(uniform.sampler(), capacity=20, batch_size=4)
    done = datasets.fill(
        replay, EPISODES, key=KEY, gamma=GAMMA, prepare=lambda obs: obs["speed"][:, 0] / 100
    )
    np.testing.assert_allclose(stored(done).obs[:6, 0], [1, 1.01, 1.02, 1.03, 1.04, 2], rtol=1e-6)


def bad(**changes):
    return [EPISODES[0]._replace(**changes)]


def unlike(**changes):
    """Return a valid episode and one with changed fields."""
    return [EPISODES[0], *bad(**changes)]


TEXT = {"mission": np.array(["go"] * 6)}
FLAGS = {"true twice": [0, 1, 0, 0, 1], "a number": [0, 0, 0, 0, 2], "nan": [0, 0, 0, np.nan, 1]}
FLAGS = {name: np.array(x) for name, x in FLAGS.items()}
REFUSED = [  # episodes, options, parts of the message
    ([], {}, ()),
    (bad(observations=TEXT), {}, ("observations['mission']", "<U2", "prepare")),
    (bad(actions=np.zeros(6)), {}, ("actions", "6", "5")),
    (bad(terminations=np.zeros(4, bool)), {}, ("terminations", "4", "5")),
    (bad(actions=np.full(5, 2**40)), {}, ("actions", "1099511627776", "int32")),
    (bad(terminations=FLAGS["true twice"]), {}, ("0", "terminations", "1", "5")),
    (unlike(truncations=np.arange(5) == 2), {}, ("1", "truncations", "2", "5")),
    (bad(truncations=FLAGS["a number"]), {}, ("truncations", "2", "4")),
    (bad(terminations=FLAGS["nan"]), {}, ("terminations", "nan", "3")),
    (EPISODES, {"actions": range(100, 104)}, ("[100, 103]", "1", "5", "100", "104")),
    (bad(actions=-np.arange(5)), {"actions": range(2)}, ("[0, 1]", "4", "5", "-4", "0")),
    (bad(actions=np.zeros(5)), {"actions": range(2)}, ("actions", "float64")),
    (EPISODES, {"actions": 2}, ("actions", "range(2)", "2")),
    (EPISODES, {"n_step": 0}, ("n_step", "0")),
    (EPISODES, {"n_step": "a"}, ("n_step", "'a'")),
    (EPISODES, {"chunk": 0}, ("chunk", "0")),
    (EPISODES, {"chunk": 2.5}, ("chunk", "2.5")),
    (unlike(actions=np.zeros((5, 2), np.int32)), {}, ("actions", "1", "[2]", "0", "[]")),
    (unlike(actions=np.zeros(5)), {}, ("actions", "1", "float32", "0", "int32")),
    (
        unlike(observations={"speed": np.zeros((6, 1))}), {},
        ("observations['tag']", "1", "0", "int32"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("episodes", "options", "parts"), REFUSED)
def test_invalid_episodes_and_options_are_refused(episodes, options, parts):
    replay = Replay(per.sampler(), capacity=32, batch_size=4)
    with refused(*parts):
        datasets.fill(replay, episodes, key=KEY, gamma=GAMMA, **options)


@pytest.mark.parametrize(
    ("sampler", "sizes", "n", "parts"),
    [
        (per.sampler(per.PERConfig(initial="td")), {}, 1, ("td_error",)),
        (refer.sampler(), {}, 3, ("n_step", "3", "1")),
        (uniform.sampler(), {"storage": SharedObservations(ahead=1)}, 2, ("n_step", "ahead=2")),
        (latest.sampler(), {"batch_size": 8, "num_envs": 8}, 1, ("8", "num_envs=1")),
    ],
)
def test_replays_that_recorded_episodes_cannot_fill_are_refused(sampler, sizes, n, parts):
    replay = Replay(sampler, **{"capacity": 32, "batch_size": 4} | sizes)
    with refused(*parts):
        datasets.fill(replay, EPISODES, key=KEY, gamma=GAMMA, n_step=n)


@pytest.mark.parametrize(("dtype", "start"), [(np.int64, 0), (np.int8, 1)])
def test_recorded_actions_are_numbered_from_0(dtype, start):
    replay = Replay(uniform.sampler(), capacity=8, batch_size=1)
    recorded = EPISODES[0]._replace(actions=np.array([1, 2, 2, 1, 2], dtype))
    actions = range(start, 3)
    found = stored(datasets.fill(replay, [recorded], key=KEY, gamma=0.9, actions=actions))
    np.testing.assert_array_equal(found.action[:, 0], recorded.actions - start)
    assert found.action.dtype == np.int32


@pytest.mark.filterwarnings("ignore::UserWarning:minari")  # missing metadata
def test_a_minari_dataset_is_stored_as_recorded(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    buffers = [
        EpisodeBuffer(
            id=number, observations=item.observations, actions=item.actions,
            rewards=item.rewards.tolist(), terminations=item.terminations.tolist(),
            truncations=item.truncations.tolist(), infos={},
        )
        for number, item in enumerate([*EPISODES[:2], EPISODES[3]])
    ]  # fmt: skip
    space = {"speed": spaces.Box(-np.inf, np.inf, (1,), np.float64), "tag": spaces.Discrete(7)}
    recorded = minari.create_dataset_from_buffers(
        "own/test-v0", buffers, observation_space=spaces.Dict(space),
        action_space=spaces.Discrete(1000, start=100),
    )  # fmt: skip
    replay = Replay(per.sampler(), capacity=32, batch_size=4)
    wanted = expected([*EPISODES[:2], EPISODES[3]], 1)
    wanted = [(row[0], row[1] - 100, *row[2:]) for row in wanted]
    for dataset in ("own/test-v0", recorded):
        done = datasets.from_minari(replay, dataset, key=KEY, gamma=GAMMA, chunk=16)
        np.testing.assert_allclose(as_rows(stored(done), 0), wanted, rtol=1e-6)
    with refused("minari download own/none-v0"):
        datasets.from_minari(replay, "own/none-v0", key=KEY, gamma=GAMMA)


def test_a_missing_minari_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    replay = Replay(per.sampler(), capacity=32, batch_size=4)
    with pytest.raises(ImportError, match=r"-m pip install 'minari\[hdf5\]'"):
        datasets.from_minari(replay, "own/test-v0", key=KEY, gamma=GAMMA)
