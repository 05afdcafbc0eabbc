"""Compiler options for tests that the installed XLA supports."""

from importlib import metadata

# Newer versions only have the new fusion emitters.
HAS_OLD_FUSIONS = tuple(map(int, metadata.version("jaxlib").split(".")[:2])) < (0, 11)

# Compilation dominates the time of the suite, so these flags favour fast compilation over fast
# programs.
FLAGS = (
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    f"{' --xla_cpu_use_fusion_emitters=false' * HAS_OLD_FUSIONS}"
)

# For tests that read the HLO of users' programs. Optimisation levels 0 and 3 have the same HLO,
# since they apply after fusion and copy insertion.
AS_USERS = {"xla_cpu_use_fusion_emitters": True} if HAS_OLD_FUSIONS else {}
