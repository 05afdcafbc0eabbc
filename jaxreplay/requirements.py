"""What replay methods, agents and training loops ask of one another: stated, checked, explained.

A method says what it needs as `Requirements` of its sampler and its objective; an agent says what
it gives as `Offers`. Every check of one against the other is here, and so is every explanation.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from jax.core import Tracer

from jaxreplay import fields
from jaxreplay._internal.arguments import (
    SINGLE,
    check_feedback_arrays,
    check_known,
    check_single,
)
from jaxreplay._internal.checks import check_kind

EpisodeReturns = Literal["evaluation", "training"]
Provision = Literal["returns", "trajectories"]

# What agents may tell about transitions, whether the method at hand reads it or not.
FEEDBACK = frozenset(
    {
        "td_error", "q_value", "target", "log_ratio", "value", "advantage", "next_value",
        "reward_scale",
    }
)  # fmt: skip
_OBSERVATIONS = frozenset({"obs", "next_obs"})
_TELLS = {  # what a field is looked at for
    "obs": "what the agent saw",
    "action": "what it did",
    "reward": "what the step gave",
    "discount": "whether it terminated",
    "next_obs": "what the agent saw next",
    "first": "where episodes begin",
    "last": "where episodes end",
}
_NAMES: frozenset[str] = frozenset()
DENSITY = "a policy with a density (log_ratio)"


class Requirements(NamedTuple):
    """What a replay method needs; the default is nothing.

    Of the agent: `feedback`, `feedback_of_new`, `density`, `scalar_loss`. Of agent and loop:
    `all_new`. Of the loop: `new_steps`, `single_steps`, `whole_episodes`, `episode_returns`. Of
    what is stored: `transition_fields`.
    """

    feedback: frozenset[str] = _NAMES  # about sampled transitions, read by `update`
    feedback_of_new: frozenset[str] = _NAMES  # about new transitions, read by `add`
    density: bool = False  # the objective reads `Trust`, which takes a policy with a density
    scalar_loss: bool = False  # the objective replaces the loss of a scalar TD error
    all_new: bool = False  # every batch is what was added since the batch before: for on-policy
    # agents and loops that collect a batch between two updates
    new_steps: bool = False  # what it does hangs on steps being added all along
    single_steps: bool = False  # transitions are of one step, not of n
    whole_episodes: bool = False  # episodes are remembered whole or not at all
    episode_returns: EpisodeReturns | None = None  # whose returns `observe` is told; None: nobody's
    transition_fields: frozenset[str] = _NAMES  # fields of a row that the sampler looks at


class Offers(NamedTuple):
    """What an agent gives a replay method, and what it reads of one."""

    feedback: frozenset[str]  # about transitions, by name
    density: bool = False  # it hands `Trust` to the objective, if that asks
    scalar_loss: bool = False  # its loss is one of a scalar TD error, which a method may replace
    on_policy: bool = False  # it learns from new steps only, each once
    reads: frozenset[Provision] = frozenset()  # what it must find in `Sample.aux`


def union(first: Requirements, second: Requirements) -> Requirements:
    """Return what two halves of a method need together.

    Raises:
      ValueError: one wants the returns of evaluations, the other those of training.
    """
    returns = {first.episode_returns, second.episode_returns} - {None}
    if len(returns) > 1:
        raise ValueError("returns of evaluations and of training can't both be observed: use one")
    return Requirements(
        feedback=first.feedback | second.feedback,
        feedback_of_new=first.feedback_of_new | second.feedback_of_new,
        density=first.density or second.density,
        scalar_loss=first.scalar_loss or second.scalar_loss,
        all_new=first.all_new or second.all_new,
        new_steps=first.new_steps or second.new_steps,
        single_steps=first.single_steps or second.single_steps,
        whole_episodes=first.whole_episodes or second.whole_episodes,
        episode_returns=first.episode_returns or second.episode_returns,
        transition_fields=first.transition_fields | second.transition_fields,
    )


def asked_of_agent(requires: Requirements) -> list[str]:
    """Return the names of what a method needs of an agent: feedback, then properties."""
    properties = ("density", "scalar_loss", "all_new")
    asked = [name for name in properties if getattr(requires, name)]
    return sorted(requires.feedback | requires.feedback_of_new) + asked


def lacking_in_agent(requires: Requirements, offers: Offers) -> list[str]:
    """Return in words what a method needs and an agent does not give; empty if it fits."""
    lacking = sorted((requires.feedback | requires.feedback_of_new) - offers.feedback)
    if requires.density and not offers.density:
        lacking = [name for name in lacking if name != "log_ratio"] + [DENSITY]
    if requires.scalar_loss and not offers.scalar_loss:
        lacking.append("a scalar TD error to shape the loss of")
    if requires.all_new and not offers.on_policy:
        lacking.append("an agent that learns on-policy")
    return lacking


def lacking_in_method(
    requires: Requirements, provides: Iterable[Provision], offers: Offers
) -> list[str]:
    """Return in words what an agent reads and a method does not provide; empty if it fits."""
    lacking: list[str] = sorted(offers.reads - set(provides))
    if offers.on_policy and not requires.all_new:
        lacking.append("batches of new steps only")
    return lacking


def check_observer(requires: Requirements, observes: bool) -> None:
    """Refuse a sampler that observes returns but not whose, or says whose and observes none.

    Raises:
      ValueError: one line that says what to do.
    """
    if observes != (requires.episode_returns is not None):
        raise ValueError(
            "a sampler's `observe` and `requires.episode_returns` go together: give both, the "
            'latter "evaluation" or "training", or neither'
        )


def check_feedback(
    wanted: frozenset[str], given: Mapping[str, Any], verb: str, what: str, shape: tuple[int, ...]
) -> None:
    """Refuse a call of the replay without the feedback that its sampler reads, or with odd one.

    Args:
      wanted: names of what the sampler reads.
      given: feedback by name; names of `FEEDBACK` that the sampler does not read are ignored.
      verb: that was called.
      what: the transitions that it is about, in the singular.
      shape: theirs, `[B]` or `[B, T]`.

    Raises:
      ValueError: one line that names what is missing or unknown, or what is not one real number
        for each transition.
    """
    check_known(given, FEEDBACK, wanted)
    missing = wanted - set(given)
    if missing:
        was = f"and was given {', '.join(sorted(given))}" if given else "and was given nothing"
        raise ValueError(f"{verb} needs {', '.join(sorted(missing))} of every {what}, {was}")
    check_feedback_arrays(given, shape, verb, what)


def known_feedback(requires: Requirements, feedback: Mapping[str, Any]) -> dict[str, Any]:
    """Return feedback without names of the agent's own that this replay method does not read."""
    known = FEEDBACK | requires.feedback
    return {name: values for name, values in feedback.items() if name in known}


def check_transition(requires: Requirements, example: fields.Row) -> None:
    """Refuse rows without a field that the sampler looks at, or with more than a number there.

    Raises:
      ValueError: one line that names the fields, and says what they tell, or what they are to be:
        first, last, terminated and truncated one bool, reward and discount one real number.
    """
    missing = sorted(name for name in requires.transition_fields if not fields.has(example, name))
    if missing:
        tells = ", ".join(_TELLS[name] for name in missing if name in _TELLS)
        raise ValueError(
            f"this sampler looks at {', '.join(missing)} of transitions{tells and f' ({tells})'}, "
            f"which the example, a {type(example).__name__}, lacks: store it, or choose a sampler "
            "that does without"
        )
    for name in sorted(requires.transition_fields & SINGLE.keys()):
        check_single("this sampler", name, fields.get(example, name), SINGLE[name])


def check_batch_size(requires: Requirements, asked: Any, own: int, capacity: int) -> None:
    """Refuse a batch of another size that can't be drawn.

    Args:
      requires: of the sampler.
      asked: rows of one sample.
      own: the replay's batch size.
      capacity: transitions that it remembers.

    Raises:
      ValueError: one line that says what to do.
    """
    if isinstance(asked, Tracer):
        raise ValueError(
            "batch_size must be known when sample is compiled: give a plain number, or "
            "jax.jit(replay.sample, static_argnames='batch_size')"
        )
    check_kind("batch_size", asked, int)
    if asked < 1:
        raise ValueError(f"batch_size is {asked}: it must be at least 1")
    if asked > capacity:
        raise ValueError(
            f"batch_size {asked} is larger than the capacity {capacity}: "
            "use a larger capacity or a smaller batch"
        )
    if requires.all_new and asked != own:
        raise ValueError(
            f"batch_size is {asked}: this replay method gives every new step once, in batches of "
            f"{own}: leave it out"
        )


def check_on_host(requires: Requirements, option: str) -> None:
    """Refuse observations on the host for a sampler that looks at them.

    Args:
      requires: of the sampler.
      option: by which they would be there.

    Raises:
      ValueError: one line that says what to do.
    """
    if requires.transition_fields & _OBSERVATIONS:
        raise ValueError(
            f"{option}: this sampler looks at observations, which must be on the device: "
            "leave it out, or choose features without obs and next_obs"
        )
