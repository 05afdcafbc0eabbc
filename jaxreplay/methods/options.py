"""Options that several methods share; a config gives their defaults, as `option(0.6, ALPHA)`."""

from typing import Literal

from jaxreplay.option import Declaration

Initial = Literal["max", "td"]
Maximum = Literal["all_time", "stored"]
Normalisation = Literal["batch", "buffer", "none"]

_PER = "Schaul et al. 2016"
_R2D2 = "Kapturowski et al. 2019"

ALPHA = Declaration("prioritisation exponent; 0 is uniform", f"{_PER}, Tab. 3", at_least=0)
EPSILON = Declaration(
    "constant added to |TD error| before exponentiation; the paper gives no value", at_least=0
)
KAPPA = Declaration(
    "lower bound on |TD error| in priorities, and threshold of the Huber loss",
    "Fujimoto et al. 2020, Tab. 6",
    above=0,
)
CLIP = Declaration("upper bound on |TD error| in priorities; none: unbounded", above=0)
INITIAL = Declaration(
    "priority of new transitions: the maximum priority (max), or computed from TD errors (td)",
    f"{_PER}, Alg. 1; td: Brittain et al. 2019, Sec. 5.3",
)
MAXIMUM = Declaration(
    "maximum priority that new transitions receive: of all priorities so far (all_time), or of the "
    "priorities of stored transitions (stored), which falls after an outlier if batches are larger "
    "than the number of transitions added between them",
    f"{_PER}, Alg. 1: all_time",
)
SAMPLING = Declaration(
    "one draw from each of B equal ranges of the total priority (stratified), at the same "
    "offset in each range (systematic), or independent draws (iid)",
    f"{_PER}, App. B.2.1",
)
BETA = Declaration("initial importance-sampling exponent", f"{_PER}, Tab. 3", at_least=0, at_most=1)
BETA_END = Declaration(
    "final importance-sampling exponent of the linear schedule",
    f"{_PER}, Sec. 3.4",
    at_least=0,
    at_most=1,
)
BETA_UPDATES = Declaration(
    "gradient steps over which beta reaches beta_end; none: the whole run",
    f"{_PER}, Sec. 3.4",
    at_least=1,
    whole_run=True,
)
CONSTANT_BETA = Declaration("constant importance-sampling exponent", at_least=0, at_most=1)
NORMALISE = Declaration(
    "divide importance weights by their maximum in the batch or in the buffer, or not at all"
)
LOSS = Declaration(
    "loss on the TD error before importance weighting; 'agent' uses the agent's loss"
)
WEIGH_ACTOR = Declaration(
    "apply importance weights to the actor's loss as well as to the critic's loss",
    "true: Oh et al. 2021, Alg. 1; code of Novati & Koumoutsakos",
)
OVER = Declaration("inner method that draws the transitions, with its default options")
OVER_UPDATES = Declaration(
    "gradient steps in the schedules of the method `over`, such as beta's; none: the whole run",
    at_least=1,
    whole_run=True,
)
LENGTH = Declaration(
    "T: steps per sequence, including the burn-in", f"{_R2D2}, hyperparameters", at_least=1
)
BURN_IN = Declaration(
    "initial steps of a sequence that only warm up the recurrent state", at_least=0
)
ETA = Declaration(
    "weight of the largest |TD error| in a sequence's priority; the mean has weight 1 - eta",
    f"{_R2D2}, Sec. 2.3",
    at_least=0,
    at_most=1,
)
