"""Options that several agents share: an agent's config has them by inheritance.

An agent with another default says so with `override`.
"""

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
    """Network, optimiser and random actions of agents that learn Q of discrete actions."""

    double: bool = option(
        True, "select next actions by the online network", "van Hasselt et al. 2016"
    )
    dueling: bool = option(False, "separate value and advantage streams", "Wang et al. 2016")
    network: Network = option("auto", "network; auto chooses by the observation's shape")
    hidden: tuple[int, ...] = option((128, 128), "hidden layer sizes of network mlp", at_least=1)
    optimiser: Literal["adam", "rmsprop"] = option(
        "adam", "Adam, or centred RMSProp without momentum, as in the papers on DQN"
    )
    learning_rate: float = option(
        5e-4, "step size; 6.25e-5 is usual for Atari", above=0, at_most=10
    )
    adam_eps: float = option(
        1e-8, "Adam epsilon; 1.5e-4 is usual for Atari", "Kingma & Ba 2015", above=0
    )
    rmsprop_decay: float = option(
        0.95,
        "decay of RMSProp's means",
        "Mnih et al. 2015, Tab. 1",
        at_least=0,
        below=1,
    )
    rmsprop_eps: float = option(1e-5, "RMSProp epsilon", "Fujimoto et al. 2020, Tab. 7", above=0)
    rmsprop_eps_in_root: bool = option(
        False, "it is added to the variance (TensorFlow); false: to the variance's root (Torch)"
    )
    max_grad_norm: float = option(10.0, "largest global gradient norm; 0 is no limit", at_least=0)
    target_every: int = option(1, "updates between two updates of the target network", at_least=1)
    epsilon_start: float = option(
        1.0, "probability of a random action at first", at_least=0, at_most=1
    )
    epsilon_end: float = option(
        0.05, "probability of a random action at last", at_least=0, at_most=1
    )
    epsilon_updates: int = option(10_000, "updates over which epsilon falls linearly", at_least=1)

    def make_optimiser(self) -> optax.GradientTransformation:
        """Make the optimiser, of gradients whose global norm is limited."""
        inner = optax.adam(self.learning_rate, eps=self.adam_eps)
        if self.optimiser == "rmsprop":
            inner = common.centred_rmsprop(
                self.learning_rate, self.rmsprop_decay, self.rmsprop_eps, self.rmsprop_eps_in_root
            )
        return common.clipped(inner, self.max_grad_norm)

    def epsilon(self) -> Callable[[Array], Array]:
        """Make the probability of a random action, by the number of updates."""
        return schedules.linear(self.epsilon_start, self.epsilon_end, self.epsilon_updates)


@dataclasses.dataclass(frozen=True)
class TwinCriticOptions(Config):
    """Networks and rates of agents with two critics."""

    hidden: tuple[int, ...] = option(
        (256, 256), "hidden layer sizes of every network", _TWINS, at_least=1
    )
    actor_learning_rate: float = option(
        3e-4, "Adam step size of the actor", _TWINS, above=0, at_most=10
    )
    critic_learning_rate: float = option(
        3e-4, "Adam step size of the critics", _TWINS, above=0, at_most=10
    )
    tau: float = option(
        0.005, "target rate, whenever the targets are updated", _TWINS, above=0, at_most=1
    )


@dataclasses.dataclass(frozen=True)
class NetworkOptions(Config):
    """Networks as in the paper of ReF-ER, and how their learning slows down."""

    hidden: tuple[int, ...] = option(
        (128, 128), "hidden layer sizes of every network", _REFER, at_least=1
    )
    activation: Activation = option("softsign", "of the hidden layers", _REFER)
    anneal: float = option(
        0.0, "step sizes shrink as 1 / (1 + this * gradient steps); the paper: 5e-7", at_least=0
    )


@dataclasses.dataclass(frozen=True)
class NoiseOptions(Config):
    """Noise of a fixed size around a deterministic policy, in units of the range [-1, 1]."""

    noise: Literal["gaussian", "ou"] = option(
        "gaussian", "of actions: independent, or an Ornstein-Uhlenbeck process", _REFER
    )
    noise_std: float = option(0.2, "std of the noise, of each step", _REFER, above=0)


@dataclasses.dataclass(frozen=True)
class NoisyTargetOptions(NoiseOptions, NetworkOptions):
    """What DDPG and NAF share: noisy actions, and target networks."""

    tau: float = option(0.01, "target rate, at every update", _REFER, above=0, at_most=1)


@dataclasses.dataclass(frozen=True)
class BaselineOptions(NetworkOptions):
    """What the paper's baselines share: a policy and a value, in networks of their own."""

    hidden: tuple[int, ...] = override(NetworkOptions, "hidden", (64, 64), _REFER)
    activation: Activation = override(NetworkOptions, "activation", "tanh")
    actor_learning_rate: float = option(
        1e-4, "Adam step size of the policy", _REFER, above=0, at_most=10
    )
    critic_learning_rate: float = option(
        3e-4, "Adam step size of value and advantage", _REFER, above=0, at_most=10
    )
