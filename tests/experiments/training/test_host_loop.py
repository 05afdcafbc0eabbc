"""The loop for environments on the host: stored transitions, failures, stopping, resuming."""

import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from agents.dqn import DQNConfig, dqn
from agents.types import Discrete
from experiments import environments, train
from experiments.environments.host import HostEnvironment
from experiments.environments.types import TimeStep
from experiments.statistics import summaries
from experiments.studies import checkpoints, store
from experiments.studies.checkpoints import Checkpoint, Progress
from experiments.training.config import LoopConfig
from experiments.training.drivers import CutShort
from experiments.training.host_loop import HostDriver
from jaxreplay import Replay, Requirements, ring
from jaxreplay.methods import per, uniform
from tests.experiments.training.test_loop import GAMMA, assert_true_transitions, numbering, watching
from tests.refusals import assert_names

LENGTH = 4


class Counting(HostEnvironment):
    """Environments that count: obs = [episode, step in the episode], reward = step."""

    def __init__(self, num_envs, training, cut=False, fail_at=None, value=np.nan):
        obs = jax.ShapeDtypeStruct((2,), np.dtype(np.float32))
        super().__init__("test/Counting", num_envs, Discrete(2), 99, obs)
        self.cut, self.fail_at, self.value, self.training = cut, fail_at, value, training
        self.closed, self.taken = False, []

    def _reset(self, seeds):
        self.seeds, self.time = seeds, 0
        self.episode = np.arange(self.num_envs) * 1000.0
        self.count = np.zeros(self.num_envs)
        return self._see()

    def _see(self):
        return np.stack([self.episode, self.count], axis=1).astype(np.float32)

    def _send(self, actions):
        self.taken.append(actions)

    def _receive(self):
        self.time, self.count = self.time + 1, self.count + 1
        if self.time == self.fail_at and self.training and self.value is None:
            raise OSError("the game fell over")
        final, over = self._see(), self.count >= LENGTH
        if self.time == self.fail_at and self.training:
            final = final + self.value
        reward = self.count.astype(np.float32)
        self.count = np.where(over, 0, self.count)
        self.episode = self.episode + over
        cut = over & self.cut
        return self._see(), TimeStep(reward, over & ~cut, cut, final)

    def close(self):
        self.closed = True


def make_driver(
    num_envs=1, n_step=1, seeds=(0, 1), method=None, made=None, cut=False, agent=None, **loop
):
    method = method or per.method()
    config = LoopConfig(
        **{"steps": 120, "warmup": 40, "eval_every": 20, "eval_episodes": 3, "gamma": GAMMA}
        | {"n_step": n_step, "inspect": 0, **loop}
    )

    def make(num_envs, training):
        batch = Counting(num_envs, training, cut)
        if made is not None:
            made.append(batch)
        return batch

    agent = agent or dqn(DQNConfig(hidden=(8,)), Discrete(2), method.objective)
    replay = Replay(method.sampler, capacity=240, batch_size=16, num_envs=num_envs)
    return HostDriver(make, make(1, True).spec, agent, replay, config, seeds)


def test_ring_contains_the_true_transitions():
    """Episodes of the first environment end, and those of the second are cut."""
    n, num_envs = 3, 2
    driver = make_driver(
        num_envs, n, cut=np.array([False, True]), eval_episodes=2, agent=watching()
    )
    state, metrics = driver.chunk(driver.init(), 10)
    driver.close()
    for seed in range(2):
        held = jax.tree.map(lambda x: x[seed] if x.ndim and len(x) == 2 else x, state.replay.ring)
        live = int(ring.size(held))
        assert live == 40 + 10 * num_envs - (n - 1) * num_envs
        t = jax.tree.map(np.asarray, ring.gather(held, np.arange(live)))
        assert_true_transitions(t, n, LENGTH, t.obs[:, 0] < 1000)
    np.testing.assert_array_equal(metrics["eval_return"], 10.0)
    np.testing.assert_array_equal(metrics["eval_length"], LENGTH)
    np.testing.assert_array_equal(metrics["train_return"], 10.0)
    assert int(state.updates) == 10 and int(state.rows) * num_envs == 40 + 10 * num_envs


def test_number_of_gradient_steps_follows_the_schedule():
    driver = make_driver(learn_every=2, updates=3, seeds=(0,), agent=watching())
    state = driver.init()
    assert int(state.updates) == 0
    state, _ = driver.chunk(state, 5)
    assert int(state.updates) == 5 * 3
    assert int(state.rows) == 40 + 5 * 2


def test_stored_actions_equal_actions_taken():
    made = []
    driver = make_driver(made=made, seeds=(0,), warmup=40, agent=watching())
    state = driver.init()
    batch = next(b for b in made if b.training and b.taken)
    actions = np.concatenate(batch.taken)[:40]
    held = ring.contents(jax.tree.map(lambda x: x[0] if x.ndim else x, state.replay.ring))
    np.testing.assert_array_equal(np.asarray(held.action)[:40], actions)
    assert 5 < actions.sum() < 35  # random


def test_seeds_differ_and_are_independent():
    made, alone = [], []
    driver = make_driver(made=made, seeds=(3, 4))
    together, _ = driver.chunk(driver.init(), 5)
    driver = make_driver(made=alone, seeds=(4,))
    single, _ = driver.chunk(driver.init(), 5)
    seeds = [b.seeds for b in made if b.training and b.taken]
    assert seeds[0] != seeds[1] and seeds[1] == next(b.seeds for b in alone if b.taken)
    pick = lambda x: x[1] if x.ndim else x
    left, right = jax.tree.leaves(together.agent), jax.tree.leaves(single.agent)
    for x, y in zip(left, right, strict=True):
        np.testing.assert_allclose(pick(x), y[0] if y.ndim else y, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("n", [1, 3])
def test_resumed_runs_truncate_the_current_episode(n):
    driver = make_driver(n_step=n, seeds=(0,), agent=numbering(watching()))
    state, _ = driver.chunk(driver.init(), 2)  # within an episode: 42 steps
    state, _ = driver.chunk(driver.resume(state), 4)
    held = jax.tree.map(lambda x: x[0] if x.ndim else x, state.replay.ring)
    live = int(ring.size(held))
    t = jax.tree.map(np.asarray, ring.gather(held, np.arange(live)))
    assert live == 46 - (n - 1)
    # Steps 40 and 41 are steps 0 and 1 of an episode that is truncated after them.
    start = t.obs[:, 1]
    np.testing.assert_array_equal(start[40:42], [0, 1])
    np.testing.assert_array_equal(t.next_obs[40:42, 1], [min(n, 2), 2])
    np.testing.assert_allclose(t.discount[40:42], [GAMMA ** min(n, 2), GAMMA])
    np.testing.assert_array_equal(start[42:live], np.arange(live - 42) % LENGTH)
    np.testing.assert_array_equal(t.extras, start + 1)
    assert bool(t.first[42])
    np.testing.assert_array_equal(t.last[40:live], [0, 1, 0, 0, 0, 1][: live - 40])
    if n == 1:
        assert float(t.reward[41]) == 2.0


SMALL = [
    "--agent", "dqn", "--replay", "per", "--seeds", "2", "--steps", "200", "--warmup", "40",
    "--eval-every", "40", "--eval-episodes", "2", "--batch-size", "16", "--agent.hidden", "8",
    "--inspect", "0", "--tensorboard", "false", "--figures", "false",
    "--env", "gymnasium/CartPole-v1",
]  # fmt: skip


@pytest.fixture
def play(monkeypatch):
    """Return a function that replaces the environments of later runs."""
    pytest.importorskip("gymnasium")

    def change(**options):
        def make_host(name, num_envs, config=None, training=True):
            del name, config
            return Counting(num_envs, training, **options)

        monkeypatch.setattr(environments, "make_host", make_host)

    return change


def test_failing_environments_end_the_run_and_keep_its_checkpoint(tmp_path, play, capsys):
    out, words = tmp_path / "run", [*SMALL, "--checkpoint-every", "0", "--out"]
    for value, fail_at, step, logged, what in (
        (np.nan, 101, 101, 80, "observation"),
        (None, 50, 130, 120, "the game fell over"),  # resumed at step 80
    ):
        play(fail_at=fail_at, value=value)
        assert train.main([*words, str(out)]) == 1
        said = capsys.readouterr().err.splitlines()[-1]
        assert_names(said, "seed 0", step, "test/Counting", what, f"--resume {out}")
        assert pd.read_csv(out / "metrics.csv")["step"].max() == logged
        assert len(store.read(out).facts["failed"]) == 2
        assert checkpoints.of_seed(out, 1)[2] == logged
        words = ["--checkpoint-every", "0", "--resume"]
    play()
    assert train.main(["--resume", str(out)]) == 0
    assert pd.read_csv(out / "metrics.csv").groupby("seed")["step"].max().tolist() == [200, 200]
    assert not store.read(out).facts["failed"]


def test_ctrl_c_ends_the_environments_and_names_the_resume_command(tmp_path, ctrl_c):
    pytest.importorskip("gymnasium")
    out, steps = tmp_path / "run", "2000000"
    options = [*SMALL, "--env.max-steps", "20", "--steps", steps, "--seeds", "1", "--capacity"]
    options += ["500", "--env.vectorisation", "async", "--checkpoint-every", "1000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.train", *options, "--out", str(out)],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    metrics, patience = out / "metrics.csv", time.monotonic() + 100
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 3):
        assert process.poll() is None and time.monotonic() < patience
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # like a terminal: includes processes of environments
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Traceback" not in said
    logged, at = pd.read_csv(metrics)["step"].max(), checkpoints.of_seed(out, 0)[2]
    # A stop during an evaluation saves a checkpoint of the log point before its row is written.
    assert logged <= at <= logged + 40
    assert_names(said, f"{logged:,}", "2,000,000", f"--resume {out}")


def test_runs_stop_and_resume_between_log_points(tmp_path, monkeypatch, play, capsys, ctrl_c):
    """Ctrl-C in the warm-up (40 steps), and during an evaluation (at step 80)."""
    out, words = tmp_path / "run", [*SMALL, "--seeds", "1", "--out"]

    def stopping_after(asked):
        def stop(driver):
            def stops():
                if next(asked, True):
                    os.kill(os.getpid(), signal.SIGINT)
                    while not driver.told():  # until the main thread has noticed
                        time.sleep(0.01)
                return driver.told()

            return stops

        return property(stop, lambda driver, told: setattr(driver, "told", told))

    play()
    for patience, at in ((20, None), (84, 80)):
        with monkeypatch.context() as patch:
            stop = stopping_after(iter([False] * patience))
            patch.setattr(HostDriver, "stop", stop, raising=False)
            assert train.main([*words, str(out)]) == 130
        said = capsys.readouterr().err.splitlines()[-1]
        assert_names(said, f"--resume {out}")
        if at is None:
            assert not list((out / checkpoints.FOLDER).glob("*"))
        else:
            assert checkpoints.of_seed(out, 0)[2] == at
        words = ["--resume"]
    assert train.main(["--resume", str(out)]) == 0
    frame = pd.read_csv(out / "metrics.csv")
    assert frame["step"].tolist() == [80, 120, 160, 200]
    assert frame["eval_return"].eq(10.0).all()
    assert frame["agent/loss"].notna().all() and not summaries.diverged_seeds(frame)
    assert checkpoints.of_seed(out, 0)[1:] == ([0], 200)


class CountingReturns(uniform.Uniform):
    """Uniform replay whose state counts the observed returns."""

    @property
    def requires(self):
        return Requirements(episode_returns="evaluation")

    def init(self, key, ring):
        return jnp.zeros((), jnp.int32)

    def observe_return(self, state, ring, episode_return, key):
        return state + 1

    def metrics(self, state, ring):
        return {"observations": state.astype(jnp.float32)}


def test_sums_since_a_log_point_survive_a_stop(tmp_path):
    """Sums over updates and episodes, with a replay that observes evaluation returns."""
    method = uniform.method()._replace(sampler=CountingReturns())
    driver, blocks = make_driver(method=method, observe_every=4), 20

    def metrics(state, blocks):
        driver.stop = lambda: False
        return {name: np.asarray(value) for name, value in driver.chunk(state, blocks)[1].items()}

    expected, places = metrics(driver.init(), blocks), set()
    np.testing.assert_array_equal(expected["train_return"], 10.0)
    np.testing.assert_array_equal(expected["episodes"], blocks // LENGTH)
    for patience in (2, 11, 19, 22):  # in blocks and in the final evaluation
        state, asked = driver.init(), iter([False] * patience)
        driver.stop = lambda asked=asked: next(asked, True)
        with pytest.raises(CutShort) as cut:
            driver.chunk(state, blocks)
        since, done = cut.value.state.since, cut.value.blocks
        places.add(done == blocks)
        np.testing.assert_array_equal(since.learned.counts.max(axis=1), done)
        checkpoint = Checkpoint(tmp_path, [("counting", patience)])
        checkpoint.write(Progress(blocks=done), 40 + done, driver.to_save(cut.value.state))
        progress, saved = checkpoint.read(driver)
        assert progress.blocks == done
        found = metrics(driver.resume(saved), blocks - done)
        for name in ("replay/observations", "eval_return", "train_return"):
            np.testing.assert_array_equal(found[name], expected[name])
        # Epsilon differs at every update, so that the mean reveals missing updates.
        np.testing.assert_allclose(found["agent/epsilon"], expected["agent/epsilon"], rtol=1e-6)
        # All episodes of the row except the truncated one.
        episodes = done // LENGTH + (blocks - done) // LENGTH
        np.testing.assert_array_equal(found["episodes"], episodes)
        assert np.isfinite(found["agent/loss"]).all()
    assert places == {False, True}
