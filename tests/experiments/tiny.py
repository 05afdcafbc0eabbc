"""Options of runs that take a second."""

TINY = [
    "--agent", "dqn", "--seeds", "2", "--steps", "200", "--warmup", "100", "--eval-every", "50",
    "--eval-episodes", "1", "--n-step", "1", "--inspect", "0", "--batch-size", "8",
    "--agent.hidden", "8",
]  # fmt: skip
