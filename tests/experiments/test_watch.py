"""Episodes of trained policies as pictures."""

import os
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from agents.types import Discrete
from experiments import environments, train, watch
from experiments.figures import film
from experiments.figures.film import Film
from experiments.studies import checkpoints, policy, store
from experiments.studies.definition import Study
from tests.refusals import assert_names, refusal, refused

SMALL = [
    "--replay", "uniform", "--seeds", "2", "--seed", "3", "--steps", "60", "--warmup", "20",
    "--eval-every", "20", "--eval-episodes", "1", "--env.max-steps", "12", "--inspect", "0",
    "--batch-size", "8", "--capacity", "60", "--tensorboard", "false", "--figures", "false",
    "--agent.hidden", "8",
]  # fmt: skip
KEY = jax.random.key(0)
FAMILIES = {
    "gymnax/CartPole-v1": ("dqn", []),
    "gymnax/Breakout-MinAtar": ("dqn", []),
    "sparse_pendulum/Pendulum-v0": ("ddpg", ["--scale-observations", "true"]),
    "gymnasium/Pendulum-v1": ("td3", []),
    "atari/Pong": ("dqn", ["--env.max-steps", "40"]),
}
FLAT = ("gymnax/", "sparse_pendulum/")
NOT_DRAWN = ("gymnax/Reacher-misc", "gymnax/Swimmer-misc", "gymnax/UmbrellaChain-bsuite")
DRAWN = [name for name in environments.names() if name.startswith(FLAT) and name not in NOT_DRAWN]
DRAWN += ["walk/10", "goals/BitFlip-3", "goals/PointReach", "memory/Chain-4"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a function that trains a run on first use."""
    root, made = tmp_path_factory.mktemp("runs"), {}

    def make(name):
        if name not in made:
            if lacking := environments.missing(name):
                pytest.skip(lacking)
            if name.startswith("gymnasium/"):
                pytest.importorskip("pygame", reason="needs jaxreplay[gymnasium]")
            agent, options = FAMILIES[name]
            made[name] = root / name.replace("/", "-")
            names = ["--agent", agent, "--env", name, "--out", str(made[name])]
            assert train.main([*names, *SMALL, *options]) == 0
        return made[name]

    return make


def seconds(path):
    with Image.open(path) as image:
        total = 0
        for index in range(image.n_frames):
            image.seek(index)
            total += image.info["duration"]
    return total / 1000


def pictures(path):
    with Image.open(path) as image:
        assert image.format == "GIF"
        for index in range(image.n_frames):
            image.seek(index)
            yield np.asarray(image.convert("RGB"))


# One family of each kind: the others differ only in rendering, which is tested below.
QUICK = ("gymnasium/Pendulum-v1", "sparse_pendulum/Pendulum-v0")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAMILIES],
)
def test_every_family_is_rendered_as_a_gif_with_changing_frames(name, trained, capsys):
    run = trained(name)
    capsys.readouterr()
    assert watch.main([str(run)]) == 0
    frames = list(pictures(run / "episode.gif"))
    assert len(frames) > 1
    assert any(not np.array_equal(frames[0], frame) for frame in frames)
    assert all(len(np.unique(frame)) > 1 for frame in frames)
    first, second = capsys.readouterr().out.splitlines()
    assert_names(first, name, "seed 3", "60", "return")
    length = int(re.findall(r"length (\d+)", first)[0])
    assert len(frames) <= length <= 40  # equal frames are merged into a longer one
    assert_names(second, run / "episode.gif", length, "25")


def test_policy_is_read_from_the_last_checkpoint_of_the_seed(trained):
    run = trained("gymnax/CartPole-v1")
    study, networks = policy.read(run), []
    for at, seed in enumerate((3, 4)):
        path, seeds, step = checkpoints.of_seed(run, seed)
        found = policy.load(run, study, seed)
        assert (seeds, step, found.step) == ([3, 4], 60, 60)
        saved = load_file(path)
        for place, leaf in jax.tree_util.tree_leaves_with_path(found.agent.params):
            name = f"['state'].agent.params{jax.tree_util.keystr(place)}"
            np.testing.assert_array_equal(saved[name][at], leaf)
        networks.append(np.concatenate([np.ravel(x) for x in jax.tree.leaves(found.agent.params)]))
    assert not np.array_equal(*networks)


def test_return_and_length_equal_a_manual_rollout(trained):
    run = trained("sparse_pendulum/Pendulum-v0")  # with scaled observations
    study = policy.read(run)
    (config,), found = study.bases.values(), policy.load(run, study, 4)
    _, total, length, over = watch.play(watch.compiled_episode(config, found, 7), 12)
    key, steps = jax.random.split(jax.random.key(7))
    state, obs = found.environment.reset(key)
    by_hand = 0.0
    for time in range(length):
        act, step = jax.random.split(jax.random.fold_in(steps, time))
        action = found.greedy(found.agent, obs[None], act)[0]
        state, obs, out = found.environment.step(step, state, action)
        by_hand += float(out.reward)
    assert over and length == 12 and bool(out.truncated)
    assert total == pytest.approx(by_hand)


def test_options_select_episode_length_and_file(trained, tmp_path, capsys):
    out = tmp_path / "new" / "x.gif"
    options = [str(trained("gymnax/CartPole-v1")), "--seed", "4", "--max-steps", "5"]

    def shoot(*more):
        assert watch.main([*options, "--out", str(out), *more]) == 0
        return list(pictures(out))

    first = shoot("--fps", "10")
    assert_names(capsys.readouterr().out, "length 5", "--max-steps 5")
    assert seconds(out) == 0.5
    np.testing.assert_array_equal(first, shoot())
    assert not np.array_equal(first, shoot("--episode-seed", "1"))
    assert os.listdir(tmp_path / "new") == ["x.gif"]


def test_films_replace_only_films_of_the_command(tmp_path):
    path, mine = tmp_path / "x.gif", tmp_path / "mine.gif"
    for _ in range(2):
        film.check_path(path)
        shot = film.Film()
        for shade in range(3):
            shot.add(np.full((64, 64, 3), 80 * shade, np.uint8))
        shot.write(path, fps=10)
    mine.write_text("notes")
    with refused(mine, "--out"):
        film.check_path(mine)


def test_invalid_runs_and_options_are_refused_in_one_line(trained, tmp_path, capsys):
    run = trained("gymnax/CartPole-v1")
    several = tmp_path / "several"
    several.mkdir()
    study = Study.make("walk/4", "dqn", ["uniform", "per"])
    store.begin(several, study, study.points(), {}).write()
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(run / "study.json", bare)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "study.json").write_text("{")
    bent = tmp_path / "bent"
    shutil.copytree(run, bent)
    (last,) = (bent / "checkpoints").iterdir()
    content = bytearray(last.read_bytes())
    for place in range(len(content) // 2, len(content), 64):
        content[place] ^= 0xFF
    last.write_bytes(content)
    capsys.readouterr()
    for arguments, parts in (
        ([tmp_path / "none"], (tmp_path / "none",)),
        ([run.parent], (run.parent,)),  # contains a run
        ([several], (several,)),
        ([bare], (bare, "--resume")),
        ([broken], (broken / "study.json",)),
        ([bent], (last,)),
        ([run, "--seed", "5"], ("3", "4", "5")),
        ([run, "--out", tmp_path / "x.png"], (tmp_path / "x.png", ".gif")),
        ([run, "--max-steps", "0"], ("--max-steps", "0", "1")),
        ([run, "--fps", "60"], ("--fps", "60", "50")),
    ):
        assert_names(refusal(capsys, watch.main, *arguments), *parts)
    assert not list(tmp_path.glob("x.*")) and not (bare / "episode.gif").exists()


# Gymnax draws all of MinAtar by the same function.
ALIKE = [f"gymnax/{name}-MinAtar" for name in ("Asterix", "Freeway", "Seaquest")]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in DRAWN]
)
def test_states_of_compiled_environments_are_rendered(name):
    environment, render = environments.make(name), environments.renderer(name)
    space, times = environment.action_space, np.arange(9)

    @jax.jit
    def play(key):
        def step(state, time):
            action = time % 2 if isinstance(space, Discrete) else jnp.ones(space.size)
            state, *_ = environment.step(jax.random.fold_in(key, time), state, action)
            return state, state

        state, _ = environment.reset(key)
        return state, jax.lax.scan(step, state, times)[1]

    start, later = jax.device_get(play(KEY))
    first = render(start)
    assert first.ndim == 3 and first.shape[2] == 3 and first.dtype == np.uint8
    assert len(np.unique(first)) > 1
    shown = (render(jax.tree.map(lambda x, t=t: x[t], later)) for t in times)
    assert any(not np.array_equal(first, picture) for picture in shown), "nothing moves"


@pytest.mark.parametrize("name", ["atari/Pong", *NOT_DRAWN])
def test_environments_without_a_renderer_are_refused(name):
    with refused(name):
        environments.renderer(name)


def test_long_episodes_are_subsampled_evenly(tmp_path):
    shots, taken = Film(), []
    for step in range(1000):
        if shots.wants(step):
            taken.append(step)
            shots.add(np.full((8, 8, 3), step // 4, np.uint8))
    assert shots.stride == 4
    count = shots.write(tmp_path / "x.gif", fps=25)
    assert count == 250
    frames = [frame[0, 0, 0] for frame in pictures(tmp_path / "x.gif")]
    assert frames == sorted(frames) and frames[-1] >= 240


def test_gifs_stay_small(tmp_path, monkeypatch):
    monkeypatch.setattr(film, "_BYTES", 100_000)
    shots, noise = Film(), np.random.default_rng(0)
    for _ in range(20):
        shots.add(noise.integers(0, 256, (100, 700, 3), dtype=np.uint8))
    count = shots.write(tmp_path / "x.gif", fps=25)
    assert (tmp_path / "x.gif").stat().st_size <= 100_000
    assert count * shots.stride >= 20 and shots.stride > 1
    assert next(pictures(tmp_path / "x.gif")).shape == (46, 320, 3)


def in_a_process(*line, **variables):
    """Run Python in a separate process, because MuJoCo selects OpenGL on import."""
    kept = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "MUJOCO_GL")}
    done = subprocess.run(
        [sys.executable, *line], env=kept | variables, capture_output=True, text=True, check=False
    )
    if "MUJOCO_GL=egl" in done.stderr and not variables:
        pytest.skip(done.stderr)
    return done


TWO_STATES = """
from types import SimpleNamespace as Space
from experiments import environments
from experiments.environments.mujoco import without_screen
without_screen()
try:
    render = environments.renderer("brax/inverted_pendulum", max_steps=5)
except ValueError as error:
    raise SystemExit(str(error))
states = [Space(inner=Space(pipeline_state=Space(q=[0, q], qd=[0, 0]))) for q in (0.0, 0.2)]
first, second = map(render, states)
assert first.shape == (240, 320, 3) and first.dtype == "uint8" and len(set(first.flat)) > 1
assert (first != second).any()
"""


def test_brax_states_are_rendered_without_a_display():
    done = in_a_process("-c", TWO_STATES)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow  # with OpenGL, test_brax_states_are_rendered_without_a_display runs the same code
def test_missing_opengl_is_reported_in_one_line():
    done = in_a_process("-c", TWO_STATES, MUJOCO_GL="disable")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert_names(done.stderr, "brax/inverted_pendulum", "MUJOCO_GL=egl")
