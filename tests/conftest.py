"""Settings of all tests."""

import os

# Most of the suite's time is compilation of programs that run for milliseconds: compile fast
# rather than well. Has to be said before JAX starts; a caller's own flags win.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)
