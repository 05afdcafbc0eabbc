"""Messages between four TPUs in programs that divide a run."""

import numpy as np
import pytest
from jax.sharding import Mesh

from experiments.training.loop import make_program
from jaxreplay._internal import topologies
from tests.experiments.training.over_devices import messages, parts


@pytest.mark.parametrize(
    ("agent", "method", "count"),
    [
        ("sac", "per", 3),
        pytest.param("sac", "uniform", 2, marks=pytest.mark.slow),
        pytest.param("dqn", "uniform", 1, marks=pytest.mark.slow),
        pytest.param("dqn", "per", 2, marks=pytest.mark.slow),
    ],
)
def test_an_update_sends_as_many_messages_as_the_page_says(agent, method, count):
    """`docs/how_to/many_devices.md` gives the reason for each."""
    four = Mesh(np.array(topologies.devices("tpu")), ("any name",))
    program = make_program(*parts(agent, method, mesh=4, inspect=0), four)
    assert messages(program) == count
