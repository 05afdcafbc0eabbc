"""The codebase around the library: commands at the top, one room below for each of its concerns."""

from experiments.installation.requirements import refuse_unmet

refuse_unmet()

from experiments.cli import own_process  # noqa: E402  (it may need the Python that was asked for)

own_process.set_up()
