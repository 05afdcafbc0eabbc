"""Experiments with the library: commands, and one subpackage per topic."""

from experiments.installation.commands import refuse_unmet

refuse_unmet()
