"""Every config enforces the declarations of its options."""

import math

import pytest

from agents import tabular
from experiments import environments
from experiments.benchmarks import replay, training
from experiments.runs.registry import AGENTS
from experiments.studies import options
from experiments.training.config import LoopConfig, ReplaySizes
from jaxreplay.methods import METHODS
from jaxreplay.option import Config, Option, options_of
from tests.refusals import refused


def below(config: type) -> set[type]:
    """Return all classes that inherit from `config`."""
    return {config}.union(*(below(child) for child in config.__subclasses__()))


ROOMS = ("jaxreplay.", "agents.", "experiments.")  # excludes configs of tests
CONFIGS = sorted(
    (config for config in below(Config) if config.__module__.startswith(ROOMS)),
    key=lambda config: f"{config.__module__}.{config.__name__}",
)


def beyond(entry: Option) -> list:
    """Return values that the declaration does not allow."""
    bounds, values = entry.bounds, []
    if entry.choices:
        values.append("nosuch")
    elif entry.kind in (int, float):
        whole = entry.kind is int
        if bounds.at_least is not None:
            low = bounds.at_least
            values.append(low - 1 if whole else math.nextafter(low, -math.inf))
        if bounds.at_most is not None:
            high = bounds.at_most
            values.append(high + 1 if whole else math.nextafter(high, math.inf))
        values += [bound for bound in (bounds.above, bounds.below) if bound is not None]
        values.append(math.nan)
        values += [math.inf, -math.inf] if bounds.finite else []
    if entry.many:
        values = [(), *((value,) for value in values)]
        values += [(*entry.default, value[0]) for value in values[1:] if entry.default]
    return values if entry.optional else [*values, None]


def test_configs_of_the_project_are_complete():
    known = [entry.config for entry in (*METHODS.values(), *AGENTS.values())]
    known += [type(environments.options(name)) for name in environments.names()]
    known += [tabular.TabularConfig, LoopConfig, ReplaySizes, options.RunOutput]
    known += [module.Settings for module in (replay, training)]
    assert set(known) <= set(CONFIGS)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_configs_reject_invalid_values_and_name_the_option(config):
    assert config() == config()
    for entry in options_of(config):
        for value in beyond(entry):
            with refused(entry.name):
                config(**{entry.name: value})


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_options_have_one_line_of_help(config):
    for entry in options_of(config):
        assert entry.help and "\n" not in entry.help + entry.source
        assert entry.kind in (bool, int, float, str)
        # Strings need choices, except for labels, metrics, addresses, files and folders.
        free = config.__name__ in ("Question", "StudyOptions", "Where")
        free |= entry.name in ("demos", "purejaxrl")
        assert entry.choices or entry.kind is not str or free
