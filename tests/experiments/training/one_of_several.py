"""Train on two devices of one or two processes, and print the metrics.

`test_sharding.py` runs this file with the address of the first process, the number of processes,
and the number of this one.
"""

import json
import sys

import jax
import numpy as np

from agents.dqn import DQNConfig, dqn
from experiments import environments
from experiments.training.config import LoopConfig, ReplaySizes
from experiments.training.loop import make_train
from jaxreplay.methods import per


def main() -> None:
    address, processes, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(address, processes, number)
    environment, method = environments.make("walk/5"), per.method()
    agent = dqn(DQNConfig(hidden=(8,)), environment.action_space, method.objective)
    replay = ReplaySizes(num_envs=4, capacity=64, batch_size=16).make(method.sampler)
    config = LoopConfig(steps=120, warmup=40, eval_every=40, eval_episodes=2, inspect=0, mesh=2)
    _, metrics = jax.jit(make_train(environment, agent, replay, config))(jax.random.key(0))
    print(json.dumps({name: np.asarray(values).tolist() for name, values in metrics.items()}))


if __name__ == "__main__":
    main()
