"""Samplers that choose the settings of a search, at random or with Optuna.

Samplers have an ask-and-tell interface. Their choices depend only on their seed and on the sequence
of calls, so a resumed search repeats the calls of the interrupted one.
"""

import zlib
from typing import Any

import numpy as np

from experiments.environments.extras import lacking_extra
from experiments.runs.run_config import shown_value
from experiments.studies.grid import Place
from experiments.studies.spaces import Choices, Range, Space

Settings = dict[Place, Any]


class Random:
    """Random search, which ignores the scores."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._seed, self._asked = space, seed, 0

    def ask(self) -> Settings:
        """Draw settings, which depend only on the seed and the number of earlier calls."""
        rng = np.random.default_rng([self._seed, self._asked])
        self._asked += 1
        return {place: own.draw(rng) for place, own in self._space.items()}

    def tell(self, number: int, score: float | None) -> None:
        """Ignore the score."""


class Optuna:
    """Optuna's tree-structured Parzen estimator over all settings together.

    Settings without a score count as bad, so that settings drawn together differ.
    """

    def __init__(self, space: Space, seed: int, higher_is_better: bool) -> None:
        import optuna  # an optional dependency that is slow to import

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
        """Return the settings to try next; earlier ones may still lack scores."""
        trial = self._study.ask(self._distributions)
        self._trials.append(trial)
        return {place: _value(own, trial.params[place.name]) for place, own in self._space.items()}

    def tell(self, number: int, score: float | None) -> None:
        """Record the score of the `number`-th settings, or None if they failed."""
        if score is None:
            self._study.tell(self._trials[number], state=self._failed)
        else:
            self._study.tell(self._trials[number], score)


Sampler = Random | Optuna  # each for one method on one task


def describe(name: str) -> str:
    """Return a sampler's name with the version of its package, which determines its choices.

    Raises:
      ValueError: it is not installed; the message has the command that installs it.
    """
    if name == "random":
        return name
    if lacks := lacking_extra("--search optuna", {"optuna": "search"}):
        raise ValueError(lacks)
    import optuna

    return f"optuna {optuna.__version__}"


def make(
    name: str, env: str, label: str, space: Space, seed: int, higher_is_better: bool
) -> Sampler:
    """Return the sampler of a method on a task, independent of other methods and tasks."""
    sequence = np.random.SeedSequence([seed, zlib.crc32(f"{env} {label}".encode())])
    own = int(sequence.generate_state(1)[0])
    return Random(space, own) if name == "random" else Optuna(space, own, higher_is_better)


def _distribution(kinds: Any, own: Range | Choices) -> Any:
    if isinstance(own, Choices):  # Optuna takes only plain values, so choices are passed as text
        return kinds.CategoricalDistribution([shown_value(value) for value in own.values])
    kind = kinds.IntDistribution if own.whole else kinds.FloatDistribution
    return kind(own.low, own.high, log=own.log)


def _value(own: Range | Choices, drawn: Any) -> Any:
    if isinstance(own, Choices):
        return own.values[[shown_value(value) for value in own.values].index(drawn)]
    return own.near(drawn)
