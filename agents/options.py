"""Option groups shared by agents; agent configs inherit them and `override` defaults."""

import dataclasses
from collections.abc import Callable
from typing import Literal

import optax

from agents import common
from agents.networks import Activation, Network
from jaxreplay import schedules
from jaxreplay.option import Config, option, override
from jaxreplay.types import Array

_REFER = "Novati & Koumoutsakos 2019, App. D"
_TWINS = "Fujimoto et al. 2020, Tab. 6; Haarnoja et al. 2018, Tab. 1"


@dataclasses.dataclass(frozen=True)
class QNetworkOptions(Config):
    """Network, optimiser and exploration options for agents with discrete actions."""

    double: bool = option(
        True, "select next actions with the online network", "van Hasselt et al. 2016"
    )
    dueling: bool = option(False, "separate value and advantage streams", "Wang et al. 2016")
    network: Network = option("auto", "network type; auto selects one by observation shape")
    hidden: tuple[int, ...] = option((128, 128), "hidden layer sizes of network mlp", at_least=1)
    optimiser: Literal["adam", "rmsprop"] = option(
        "adam", "Adam, or centred RMSProp without momentum as in the DQN papers"
    )
    learning_rate: float = option(
        5e-4, "learning rate; 6.25e-5 is common for Atari", above=0, at_most=10
    )
    adam_eps: float = option(
        1e-8, "Adam epsilon; 1.5e-4 is common for Atari", "Kingma & Ba 2015", above=0
    )
    rmsprop_decay: float = option(
        0.95, "decay rate of RMSProp moments", "Mnih et al. 2015, Tab. 1", at_least=0, below=1
    )
    rmsprop_eps: float = option(1e-5, "RMSProp epsilon", "Fujimoto et al. 2020, Tab. 7", above=0)
    rmsprop_eps_in_root: bool = option(
        False, "add rmsprop_eps to the variance (TensorFlow); false adds it to the root (Torch)"
    )
    max_grad_norm: float = option(10.0, "maximum gradient norm; 0 disables clipping", at_least=0)
    target_every: int = option(1, "updates between target network updates", at_least=1)
    epsilon_start: float = option(
        1.0, "initial probability of a random action", at_least=0, at_most=1
    )
    epsilon_end: float = option(0.05, "final probability of a random action", at_least=0, at_most=1)
    epsilon_updates: int = option(10_000, "updates over which epsilon is annealed", at_least=1)

    def make_optimiser(self) -> optax.GradientTransformation:
        """Create the optimiser, including gradient clipping."""
        inner = optax.adam(self.learning_rate, eps=self.adam_eps)
        if self.optimiser == "rmsprop":
            inner = common.centred_rmsprop(
                self.learning_rate, self.rmsprop_decay, self.rmsprop_eps, self.rmsprop_eps_in_root
            )
        return common.clip_gradients(inner, self.max_grad_norm)

    def epsilon(self) -> Callable[[Array], Array]:
        """Return the epsilon schedule, a function of the number of updates."""
        return schedules.linear(self.epsilon_start, self.epsilon_end, self.epsilon_updates)


@dataclasses.dataclass(frozen=True)
class TwinNetworkOptions(Config):
    """Network and optimiser options for agents with two critics."""

    hidden: tuple[int, ...] = option(
        (256, 256), "hidden layer sizes of every network", _TWINS, at_least=1
    )
    actor_learning_rate: float = option(
        3e-4, "Adam learning rate for the actor", _TWINS, above=0, at_most=10
    )
    critic_learning_rate: float = option(
        3e-4, "Adam learning rate for the critics", _TWINS, above=0, at_most=10
    )


@dataclasses.dataclass(frozen=True)
class TwinCriticOptions(TwinNetworkOptions):
    """Options for agents with two critics and soft updates of target networks."""

    tau: float = option(0.005, "soft-update rate for target networks", _TWINS, above=0, at_most=1)


@dataclasses.dataclass(frozen=True)
class NetworkOptions(Config):
    """Network and learning rate decay options from the ReF-ER paper."""

    hidden: tuple[int, ...] = option(
        (128, 128), "hidden layer sizes of every network", _REFER, at_least=1
    )
    activation: Activation = option("softsign", "activation of the hidden layers", _REFER)
    anneal: float = option(
        0.0, "learning rate decay 1 / (1 + anneal * gradient steps); paper: 5e-7", at_least=0
    )


@dataclasses.dataclass(frozen=True)
class NoiseOptions(Config):
    """Options for fixed-scale exploration noise; actions are in [-1, 1]."""

    noise: Literal["gaussian", "ou"] = option(
        "gaussian", "independent exploration noise, or an Ornstein-Uhlenbeck process", _REFER
    )
    noise_std: float = option(0.2, "std of the noise added per step", _REFER, above=0)


@dataclasses.dataclass(frozen=True)
class NoisyTargetOptions(NoiseOptions, NetworkOptions):
    """Exploration noise and target network options for DDPG and NAF."""

    tau: float = option(0.01, "soft-update rate for target networks", _REFER, above=0, at_most=1)


@dataclasses.dataclass(frozen=True)
class BaselineOptions(NetworkOptions):
    """Options for ACER and PPO, which have separate policy and value networks."""

    hidden: tuple[int, ...] = override(NetworkOptions, "hidden", (64, 64), _REFER)
    activation: Activation = override(NetworkOptions, "activation", "tanh")
    actor_learning_rate: float = option(
        1e-4, "Adam learning rate for the policy", _REFER, above=0, at_most=10
    )
    critic_learning_rate: float = option(
        3e-4, "Adam learning rate for value and advantage networks", _REFER, above=0, at_most=10
    )
