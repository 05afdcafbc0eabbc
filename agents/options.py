"""Declarations of the options that several agents share; a config states the default of each."""

from jaxreplay.option import Declaration

REFER = "Novati & Koumoutsakos 2019, App. D"
TWINS = "Fujimoto et al. 2020, Tab. 6; Haarnoja et al. 2018, Tab. 1"
TD3 = "Fujimoto et al. 2020, Tab. 6"

DOUBLE = Declaration("select next actions with the online network", "van Hasselt et al. 2016")
DUELING = Declaration("separate value and advantage streams", "Wang et al. 2016")
NETWORK = Declaration("network type; 'auto' selects it by the shape of observations")
LAYER_NORM = Declaration("normalise convolutions and hidden layers", "Ba et al. 2016")
HIDDEN = Declaration("hidden layer sizes of network 'mlp'", at_least=1)
HIDDEN_OF_ALL = Declaration("hidden layer sizes of every network", at_least=1)
ACTIVATION = Declaration("activation of the hidden layers")
OPTIMISER = Declaration("Adam, or centred RMSProp without momentum as in the DQN papers")
LEARNING_RATE = Declaration("learning rate; 6.25e-5 is common for Atari", above=0, at_most=10)
ADAM_EPS = Declaration("Adam epsilon; 1.5e-4 is common for Atari", above=0)
RMSPROP_DECAY = Declaration(
    "decay rate of RMSProp moments", "Mnih et al. 2015, Tab. 1", at_least=0, below=1
)
RMSPROP_EPS = Declaration("RMSProp epsilon", "Fujimoto et al. 2020, Tab. 7", above=0)
RMSPROP_EPS_IN_ROOT = Declaration(
    "add rmsprop_eps to the variance (TensorFlow); false: to the standard deviation (Torch)"
)
MAX_GRAD_NORM = Declaration("maximum gradient norm; 0 disables clipping", at_least=0)
ADAM_LEARNING_RATE = Declaration("Adam learning rate", REFER, above=0, at_most=10)
ACTOR_LEARNING_RATE = Declaration("Adam learning rate for the actor", above=0, at_most=10)
CRITIC_LEARNING_RATE = Declaration("Adam learning rate for the critics", above=0, at_most=10)
POLICY_LEARNING_RATE = Declaration("Adam learning rate for the policy", REFER, above=0, at_most=10)
VALUE_LEARNING_RATE = Declaration(
    "Adam learning rate for value and advantage networks", REFER, above=0, at_most=10
)
ALPHA_LEARNING_RATE = Declaration("Adam learning rate for the log temperature", above=0, at_most=10)
EPOCHS = Declaration("passes over the batch per update", at_least=1)
ANNEAL = Declaration(
    "learning rate decay as 1 / (1 + anneal * gradient steps); Novati & Koumoutsakos 2019: 5e-7",
    at_least=0,
)
TAU = Declaration("soft-update rate for target networks", above=0, at_most=1)
TARGET_EVERY = Declaration("updates between target network updates", at_least=1)
INITIAL_ALPHA = Declaration("initial temperature", above=0)
TARGET_NOISE = Declaration("std of the target action noise", TD3, at_least=0)
TARGET_NOISE_CLIP = Declaration(
    "clipping bound for the target action noise", TD3, at_least=0, finite=False
)
POLICY_DELAY = Declaration(
    "critic updates per actor update, and in TD3 per update of target networks",
    "Fujimoto et al. 2018, Alg. 1",
    at_least=1,
)
EXPLORATION_NOISE = Declaration("std of the exploration noise", TD3, at_least=0)
NOISE = Declaration(
    "exploration noise: independent per step (gaussian), or an Ornstein-Uhlenbeck process (ou)",
    REFER,
)
NOISE_STD = Declaration("std of the noise added per step", REFER, above=0)
EPSILON_START = Declaration("initial probability of a random action", at_least=0, at_most=1)
EPSILON_END = Declaration("final probability of a random action", at_least=0, at_most=1)
EPSILON_UPDATES = Declaration("updates over which epsilon is annealed", at_least=1)
