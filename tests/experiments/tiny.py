"""Options of runs that take a second, and studies of one run."""

from experiments.runs.run_config import RunConfig
from experiments.studies.definition import Study
from experiments.studies.options import Question, StudyOptions

TINY = [
    "--agent", "dqn", "--seeds", "2", "--steps", "200", "--warmup", "100", "--eval-every", "50",
    "--eval-episodes", "1", "--n-step", "1", "--inspect", "0", "--batch-size", "8",
    "--agent.hidden", "8",
]  # fmt: skip


def study_of(config: RunConfig, options: StudyOptions = StudyOptions()) -> Study:
    """Return the study of one run: an arm on a task with one setting, and no comparison."""
    label = config.replay.rpartition(".")[2]
    return Study({(config.env, label): config}, (), Question(control=False), options)
