"""Who chooses the settings that a search tries: at random, or by Optuna from what has been tried.

Both are asked for settings, and told their scores. What they answer is decided by their seed and by
what they have been asked and told, in that order: a search that was stopped asks and tells again.
"""

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from experiments.installation.commands import install
from experiments.studies.grid import Place, shown_value
from experiments.studies.spaces import Choices, Range, Space

Settings = dict[Place, Any]


class Sampler(Protocol):
    """Chooses settings of one method on one task."""

    def ask(self) -> Settings:
        """Return settings to try next; the ones before may not have been told yet."""
        ...

    def tell(self, number: int, score: float | None) -> None:
        """Note the score of the settings that were asked for as the `number`-th; None: no score."""
        ...


class Random:
    """Settings at random, which no score changes."""

    def __init__(self, space: Space, seed: int, higher_is_better: bool) -> None:
        del higher_is_better
        self._space, self._seed, self._asked = space, seed, 0

    def ask(self) -> Settings:
        """Draw settings: the same for a number, however many are asked for at once."""
        rng = np.random.default_rng([self._seed, self._asked])
        self._asked += 1
        return {place: own.draw(rng) for place, own in self._space.items()}

    def tell(self, number: int, score: float | None) -> None:
        """Ignore it."""


class Optuna:
    """Optuna's tree-structured Parzen estimator over all settings together.

    Settings that are still to be told count as bad ones, which keeps a batch apart.
    """

    def __init__(self, space: Space, seed: int, higher_is_better: bool) -> None:
        import optuna  # an extra, and slow to import

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._failed = optuna.trial.TrialState.FAIL
        self._study = optuna.create_study(
            direction="maximize" if higher_is_better else "minimize",
            sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True),
        )
        self._distributions = {
            place.name: _distribution(optuna.distributions, own) for place, own in space.items()
        }
        self._trials: list[Any] = []

    def ask(self) -> Settings:
        """Return what promises most."""
        trial = self._study.ask(self._distributions)
        self._trials.append(trial)
        return {place: _value(own, trial.params[place.name]) for place, own in self._space.items()}

    def tell(self, number: int, score: float | None) -> None:
        """Learn from it."""
        if score is None:
            self._study.tell(self._trials[number], state=self._failed)
        else:
            self._study.tell(self._trials[number], score)


SAMPLERS: Mapping[str, Callable[[Space, int, bool], Sampler]] = {"random": Random, "optuna": Optuna}


def check(name: str) -> None:
    """Refuse a sampler whose package is not installed.

    Raises:
      ValueError: one line with the command that installs it.
    """
    if name == "optuna":
        try:
            import optuna  # noqa: F401
        except ImportError:
            raise ValueError(f"--search optuna needs optuna: {install('search')}") from None


def described(name: str) -> str:
    """Return a sampler's name, with the version that its choices hang on."""
    if name != "optuna":
        return name
    import optuna

    return f"optuna {optuna.__version__}"


def make(
    name: str, env: str, label: str, space: Space, seed: int, higher_is_better: bool
) -> Sampler:
    """Make the sampler of a method on a task, which depends on no other method or task."""
    own = np.random.SeedSequence([seed, zlib.crc32(f"{env} {label}".encode())])
    return SAMPLERS[name](space, int(own.generate_state(1)[0]), higher_is_better)


def _distribution(kinds: Any, own: Range | Choices) -> Any:
    if isinstance(own, Choices):  # Optuna takes plain values: their places are told apart by text
        return kinds.CategoricalDistribution([shown_value(value) for value in own.values])
    kind = kinds.IntDistribution if own.whole else kinds.FloatDistribution
    return kind(own.low, own.high, log=own.log)


def _value(own: Range | Choices, drawn: Any) -> Any:
    if isinstance(own, Choices):
        return own.values[[shown_value(value) for value in own.values].index(drawn)]
    return own.near(drawn)
