"""Groups of options shared by agents; configs inherit them, and `override` defaults."""

import dataclasses
from collections.abc import Callable
from typing import Literal

import optax

from agents import common
from agents.networks import Activation, Network
from jaxreplay.loops import schedules
from jaxreplay.option import Config, option, override
from jaxreplay.types import Array

_REFER = "Novati & Koumoutsakos 2019, App. D"
_TWINS = "Fujimoto et al. 2020, Tab. 6; Haarnoja et al. 2018, Tab. 1"


@dataclasses.dataclass(frozen=True)
class QNetworkOptions(Config):
    """Network, optimiser and epsilon-greedy exploration of agents with discrete actions."""

    double: bool = option(
        True, "select next actions by the online network", "van Hasselt et al. 2016"
    )
    dueling: bool = option(False, "separate value and advantage streams", "Wang et al. 2016")
    network: Network = option("auto", "network; auto selects it by the shape of observations")
    hidden: tuple[int, ...] = option((128, 128), "hidden layer sizes of network mlp", at_least=1)
    optimiser: Literal["adam", "rmsprop"] = option(
        "adam", "Adam, or centred RMSProp without momentum as in the papers on DQN"
    )
    learning_rate: float = option(
        5e-4, "step size; 6.25e-5 is usual for Atari", above=0, at_most=10
    )
    adam_eps: float = option(
        1e-8, "Adam epsilon; 1.5e-4 is usual for Atari", "Kingma & Ba 2015", above=0
    )
    rmsprop_decay: float = option(
        0.95, "decay rate of RMSProp's moments", "Mnih et al. 2015, Tab. 1", at_least=0, below=1
    )
    rmsprop_eps: float = option(1e-5, "RMSProp epsilon", "Fujimoto et al. 2020, Tab. 7", above=0)
    rmsprop_eps_in_root: bool = option(
        False, "add rmsprop_eps to the variance, as TensorFlow; false adds it to the root, as Torch"
    )
    max_grad_norm: float = option(10.0, "maximal gradient norm; 0 disables clipping", at_least=0)
    target_every: int = option(1, "updates per update of the target network", at_least=1)
    epsilon_start: float = option(
        1.0, "initial probability of a random action", at_least=0, at_most=1
    )
    epsilon_end: float = option(0.05, "final probability of a random action", at_least=0, at_most=1)
    epsilon_updates: int = option(10_000, "updates over which epsilon is annealed", at_least=1)

    def make_optimiser(self) -> optax.GradientTransformation:
        """Make the optimiser, with clipped gradients."""
        inner = optax.adam(self.learning_rate, eps=self.adam_eps)
        if self.optimiser == "rmsprop":
            inner = common.centred_rmsprop(
                self.learning_rate, self.rmsprop_decay, self.rmsprop_eps, self.rmsprop_eps_in_root
            )
        return common.clip_gradients(inner, self.max_grad_norm)

    def epsilon(self) -> Callable[[Array], Array]:
        """Make the schedule of epsilon, a function of the number of updates."""
        return schedules.linear(self.epsilon_start, self.epsilon_end, self.epsilon_updates)


@dataclasses.dataclass(frozen=True)
class TwinCriticOptions(Config):
    """Networks and step sizes of agents with two critics."""

    hidden: tuple[int, ...] = option(
        (256, 256), "hidden layer sizes of every network", _TWINS, at_least=1
    )
    actor_learning_rate: float = option(
        3e-4, "Adam step size of the actor", _TWINS, above=0, at_most=10
    )
    critic_learning_rate: float = option(
        3e-4, "Adam step size of the critics", _TWINS, above=0, at_most=10
    )
    tau: float = option(0.005, "soft-update rate of target networks", _TWINS, above=0, at_most=1)


@dataclasses.dataclass(frozen=True)
class NetworkOptions(Config):
    """Networks as in the paper of ReF-ER, and the decay of step sizes."""

    hidden: tuple[int, ...] = option(
        (128, 128), "hidden layer sizes of every network", _REFER, at_least=1
    )
    activation: Activation = option("softsign", "activation of the hidden layers", _REFER)
    anneal: float = option(
        0.0, "step sizes decay as 1 / (1 + anneal * gradient steps); 5e-7 in the paper", at_least=0
    )


@dataclasses.dataclass(frozen=True)
class NoiseOptions(Config):
    """Exploration noise of a fixed size, in units of the action range [-1, 1]."""

    noise: Literal["gaussian", "ou"] = option(
        "gaussian", "exploration noise: independent, or an Ornstein-Uhlenbeck process", _REFER
    )
    noise_std: float = option(0.2, "std of the noise added per step", _REFER, above=0)


@dataclasses.dataclass(frozen=True)
class NoisyTargetOptions(NoiseOptions, NetworkOptions):
    """Options of DDPG and NAF: exploration noise and target networks."""

    tau: float = option(0.01, "soft-update rate of target networks", _REFER, above=0, at_most=1)


@dataclasses.dataclass(frozen=True)
class BaselineOptions(NetworkOptions):
    """Options of ACER and PPO, with separate networks for policy and value."""

    hidden: tuple[int, ...] = override(NetworkOptions, "hidden", (64, 64), _REFER)
    activation: Activation = override(NetworkOptions, "activation", "tanh")
    actor_learning_rate: float = option(
        1e-4, "Adam step size of the policy", _REFER, above=0, at_most=10
    )
    critic_learning_rate: float = option(
        3e-4, "Adam step size of value and advantage networks", _REFER, above=0, at_most=10
    )
