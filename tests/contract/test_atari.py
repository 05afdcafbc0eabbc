"""The Atari protocol against a plain loop over the emulator."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from experiments import environments
from experiments.environments.atari import PROTOCOLS, AtariConfig, Bilinear
from experiments.environments.host import environment_seeds

ale_py = pytest.importorskip("ale_py", reason="needs jaxreplay[atari]")


def emulator(game: str, seed: int, sticky: float = 0.0):
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", seed)
    ale.setFloat("repeat_action_probability", sticky)
    ale.loadROM(ale_py.roms.get_rom_path(game))
    ale.reset_game()
    return ale


def spread(before: int, after: int) -> np.ndarray:
    """Return weights [after, before] of the old pixels in the new ones, by area."""
    edges = np.arange(after + 1) * before / after
    old = np.arange(before)
    shares = np.minimum(edges[1:, None], old + 1) - np.maximum(edges[:-1, None], old)
    return np.clip(shares, 0, None) * after / before


ROWS, COLUMNS = csr_array(spread(210, 84)), csr_array(spread(160, 84))


def by_area(screen):
    return (COLUMNS @ (ROWS @ screen).T).T


def bilinear(screen, size=84):
    """Return the bilinear interpolation of a screen, pixel by pixel."""
    out = np.zeros((size, size))
    for row in range(size):
        for column in range(size):
            y = (row + 0.5) * screen.shape[0] / size - 0.5
            x = (column + 0.5) * screen.shape[1] / size - 0.5
            y, x = max(y, 0), max(x, 0)
            top, left = int(y), int(x)
            bottom = min(top + 1, screen.shape[0] - 1)
            right = min(left + 1, screen.shape[1] - 1)
            b, a = y - top, x - left
            out[row, column] = (1 - b) * (
                (1 - a) * screen[top, left] + a * screen[top, right]
            ) + b * ((1 - a) * screen[bottom, left] + a * screen[bottom, right])
    return out


def test_bilinear_resizing_agrees_with_its_definition():
    screen = np.random.default_rng(0).integers(0, 256, (210, 160)).astype(np.uint8)
    small = Bilinear((210, 160), (84, 84))(screen[None])[0]
    assert small.dtype == np.uint8
    assert np.abs(small - bilinear(screen)).max() <= 0.5 + 1e-4


class Naive:
    """A plain single game: frame skip, maximum of two frames, stack, lives and time limit."""

    def __init__(self, game, seed, limit, sticky, training, shrink=by_area):
        self.ale = emulator(game, seed, sticky)
        self.actions = self.ale.getMinimalActionSet()
        self.limit, self.training, self.shrink = limit, training, shrink
        self.screen = self.ale.getScreenGrayscale()

    def begin(self):
        self.stack = np.zeros((84, 84, 4))
        self.stack[..., -1] = self.shrink(self.screen)
        return self.stack

    def restart(self):
        self.ale.reset_game()
        self.screen = self.ale.getScreenGrayscale()

    def reset(self):
        self.clock = 0
        return self.begin()

    def step(self, action):
        lives, reward, frames = self.ale.lives(), 0, []
        for _ in range(4):
            reward += self.ale.act(self.actions[action])
            frames.append(self.ale.getScreenGrayscale())
            if self.ale.game_over():
                break
        if len(frames) == 4:
            self.screen = np.maximum(*frames[-2:])
        self.clock += 1
        final = self.stack = np.concatenate(
            [self.stack[..., 1:], self.shrink(self.screen)[..., None]], axis=-1
        )
        over = self.ale.game_over()
        lost = self.training and self.ale.lives() < lives
        capped = self.clock == self.limit and not over
        if over or capped:
            self.restart()
            self.clock = 0
        if over or capped or lost:
            self.begin()
        if self.training:
            reward = np.clip(reward, -1, 1)
        terminated = over or lost
        return self.stack, reward, terminated, capped and not terminated, final


@pytest.mark.parametrize(
    ("training", "sticky", "limit"), [(True, 0.25, 250), (False, 0.25, 10_000)]
)
def test_batch_agrees_with_bare_emulators(training, sticky, limit):
    environment = environments.make_host(
        "atari/MsPacman", 2, training=training, sticky=sticky, noops=0, max_steps=limit
    )
    games = [Naive("ms_pacman", seed, limit, sticky, training) for seed in environment_seeds(2, 2)]
    rng = np.random.default_rng(0)
    obs = environment.reset(2)
    close(obs, [game.reset() for game in games])
    happened = {"terminated": 0, "truncated": 0, "rewards": set()}
    for _ in range(520):
        actions = rng.integers(environment.action_space.n, size=2)
        obs, step = environment.step(actions)
        naive, reward, terminated, truncated, final = zip(
            *(game.step(action) for game, action in zip(games, actions))
        )
        close(obs, naive)
        close(step.final_obs, final)
        np.testing.assert_array_equal(step.reward, np.float32(reward))
        np.testing.assert_array_equal(step.terminated, terminated)
        np.testing.assert_array_equal(step.truncated, truncated)
        happened["terminated"] += step.terminated.sum()
        happened["truncated"] += step.truncated.sum()
        happened["rewards"] |= set(step.reward.tolist())
    environment.close()
    assert happened["terminated"] >= (4 if training else 1)
    assert (happened["truncated"] > 0) == (limit == 250)
    assert happened["rewards"] == {0.0, 1.0} if training else max(happened["rewards"]) >= 10.0


def close(stacks, naive):
    """Assert equality up to rounding of halves."""
    assert np.abs(stacks.astype(float) - np.stack(naive)).max() < 1.0


def test_lost_lives_end_episodes_but_not_games():
    common = {"protocol": "pser", "max_steps": 5_000}
    training = environments.make_host("atari/Breakout", 1, **common)
    whole = environments.make_host("atari/Breakout", 1, training=False, **common)
    training.reset(0), whole.reset(0)
    rng, ends = np.random.default_rng(0), []
    for _ in range(400):
        action = rng.integers(4, size=1)
        (obs, step), (full, truth) = training.step(action), whole.step(action)
        np.testing.assert_array_equal(obs[..., -1], full[..., -1])  # the game continues
        if step.terminated[0]:
            ends.append(bool(truth.terminated[0]))
            assert not obs[..., :-1].any() and obs[..., -1].any()
            assert step.final_obs[..., :-1].any()
        else:
            assert not truth.terminated[0]
        if all(ends[-1:]):
            assert truth.terminated[0] == step.terminated[0]
    training.close(), whole.close()
    assert ends[:5] == [False] * 4 + [True]  # five lives


def test_linear_resizing_of_single_frames_agrees_with_the_emulator():
    options = {"protocol": "ners", "noops": 0, "stack": 1, "frame_skip": 1}
    environment = environments.make_host("atari/Pong", 1, **options)
    assert environment.obs.shape == (84, 84, 1) and environment.max_steps == 108_000
    ale = emulator("pong", environment_seeds(0, 1)[0])
    obs = environment.reset(0)
    for action in (0, 2, 3):
        assert np.abs(obs[0, ..., 0] - bilinear(ale.getScreenGrayscale())).max() <= 0.5 + 1e-4
        obs, _ = environment.step([action])
        ale.act(ale.getMinimalActionSet()[action])
    environment.close()


def test_sticky_actions_repeat_the_previous_action():
    def screens(sticky, actions):
        environment = environments.make_host("atari/Freeway", 1, sticky=sticky, noops=0)
        environment.reset(0)
        seen = [environment.step([action])[0] for action in actions]
        environment.close()
        return np.stack(seen)

    idle, moves = [0] * 20, [1] * 20
    np.testing.assert_array_equal(screens(1.0, moves), screens(1.0, idle))
    assert not np.array_equal(screens(0.0, moves), screens(0.0, idle))


def test_number_of_no_ops_is_between_zero_and_the_maximum():
    ale = emulator("freeway", 1)  # its cars move in every frame
    screens = [by_area(ale.getScreenGrayscale())]
    for _ in range(3):
        ale.act(0)
        screens.append(by_area(ale.getScreenGrayscale()))
    environment = environments.make_host("atari/Freeway", 8, noops=2)
    counts = [
        int(np.argmin([np.abs(start - screen).mean() for screen in screens]))
        for start in environment.reset(0)[..., -1]
    ]
    environment.close()
    assert set(counts) == {0, 1, 2}


def test_full_action_set_has_18_actions():
    environment = environments.make_host("atari/Freeway", 1, full_action_set=True)
    assert environment.action_space.n == 18
    environment.close()
    environment = environments.make_host("atari/Freeway", 1)
    assert environment.action_space.n == 3
    environment.close()


def test_protocols_have_the_settings_of_the_papers():
    table = {
        "per": (0.0, 30, True, "area"),
        "lap": (0.25, 0, False, "area"),
        "pser": (0.0, 0, True, "area"),
        "ners": (0.0, 29, True, "linear"),
    }
    assert set(table) == set(PROTOCOLS)
    for name, facts in table.items():
        config = AtariConfig(protocol=name).resolve()
        assert (config.sticky, config.noops, config.life_loss, config.resize) == facts
        assert (config.frame_skip, config.max_pool, config.size, config.stack) == (4, True, 84, 4)
        assert config.clip_rewards and config.max_steps == 27_000
    assert AtariConfig(protocol="lap", sticky=0.0).resolve().sticky == 0.0
