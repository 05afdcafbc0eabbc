"""What the columns of `metrics.csv` are called in plots, and in which unit they are."""

from typing import NamedTuple


class Name(NamedTuple):
    """How a metric is shown."""

    title: str
    unit: str  # label of its axis
    share: bool = False  # in [0, 1]


_NAMES = {
    "replay/priority": Name("Priorities", "priority"),
    "replay/sampler_updates": Name("Updates of the sampler's network", "updates"),
    "replay/replay_reward": Name("Replay reward of the learned sampler", "change of return"),
    "replay/subset": Name("Share of the stored that the policy keeps", "share", True),
    "replay/window": Name("Window of recent transitions", "transitions"),
    "replay/alpha": Name("Priority exponent alpha", "alpha"),
    "replay/c_max": Name("Importance ratio from which a step is far", "c_max"),
    "replay/far_share": Name("Share of far-policy steps", "share", True),
    "replay/remembered": Name("Steps remembered", "agent steps"),
    "replay/forgotten_episodes": Name("Episodes forgotten", "episodes"),
    "replay/reclaimed_episodes": Name("Episodes given up for their slots", "episodes"),
    "replay/dropped": Name("Feedback dropped: overwritten, or not finite", "rows"),
    "replay/frames_lost": Name("Frames lost", "frames"),
    "replay/skipped_leaves": Name("Priorities dropped: not finite, or negative", "priorities"),
    "replayed/effective_batch": Name("Effective share of a batch", "(Σw)² / (B Σw²)", True),
    "replayed/entropy": Name("Entropy of the draws, over uniform's", "share", True),
    "agent/alpha": Name("Temperature alpha", "alpha"),
    "agent/epsilon": Name("Exploration epsilon", "probability", True),
    "agent/entropy": Name("Entropy of the policy", "nats"),
    "agent/kl": Name("KL divergence of the policy from behaviour", "KL(μ‖π), nats"),
    "agent/grad_norm": Name("Norm of the gradient", "norm"),
    "agent/loss": Name("Loss", "loss"),
    "agent/actor_loss": Name("Loss of the actor", "loss"),
    "agent/q_value": Name("Mean Q of the replayed", "return"),
    "agent/skipped": Name("Share of updates that changed nothing", "share", True),
    "agent/variance": Name("Variance of the policy", "variance of actions"),
    "agent/mass_at_ends": Name("Mass at the ends of the support", "probability", True),
    "train_return": Name("Return of training episodes", "return"),
    "eval_length": Name("Length of evaluation episodes", "agent steps"),
}
EXPONENT = Name("Importance exponent beta", "beta", True)
BETA = Name("ReF-ER's beta: weight of the gradient beside the penalty", "beta", True)


def name(column: str) -> Name:
    """Return how a metric is shown; those that we don't know go by their own name."""
    known = _NAMES.get(column)
    if known is not None:
        return known
    plain = column.partition("/")[2].replace("_", " ") or column
    return Name(plain, plain, column.endswith("_share"))
