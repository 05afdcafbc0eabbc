"""The codebase around the library: commands at the top, one room below for each of its concerns."""

from experiments.installation.requirements import refuse_unmet

refuse_unmet()
