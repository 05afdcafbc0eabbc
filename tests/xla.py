"""How programs are compiled in tests, by the options that the installed XLA has."""

from importlib import metadata

# Newer versions have the newer code for fusions alone.
HAS_OLD_FUSIONS = tuple(map(int, metadata.version("jaxlib").split(".")[:2])) < (0, 11)

# Most of the suite's time is compilation of programs that run for milliseconds: compile fast
# rather than well.
FLAGS = (
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    f"{' --xla_cpu_use_fusion_emitters=false' * HAS_OLD_FUSIONS}"
)

# For tests that read what users compile. The optimisation level comes after fusions and copies
# are decided: at 0 and at 3 the text is the same.
AS_USERS = {"xla_cpu_use_fusion_emitters": True} if HAS_OLD_FUSIONS else {}
