"""Experiments with the library: the commands, and a package for each of their concerns."""

from experiments.installation.commands import refuse_unmet

refuse_unmet()
