"""Version of a result: the code and the settings of JAX that decide its numbers.

Results of different versions are compared only on request.
"""

import ast
import enum
import functools
import hashlib
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

_ROOT = Path(__file__).resolve().parents[2]
_DECIDING = (
    "jaxreplay/**/*.py",
    "agents/**/*.py",
    "experiments/environments/**/*.py",
    "experiments/training/**/*.py",
    "experiments/runs/assembly.py",
)
# Settings of JAX that change numbers, with the defaults of jax 0.10 and 0.11. The list has all
# settings in JAX's compilation key, except for those of checks, devices and memory.
SETTINGS: Mapping[str, str] = {
    # random bits
    "jax_default_prng_impl": "threefry2x32", "jax_threefry_partitionable": "true",
    "jax_random_seed_offset": "0", "jax_high_dynamic_range_gumbel": "false",
    # number formats
    "jax_enable_x64": "false", "jax_explicit_x64_dtypes": "warn", "jax_default_dtype_bits": "64",
    "jax_numpy_dtype_promotion": "standard", "jax_default_matmul_precision": "none",
    "jax_allow_f16_reductions": "true",
    # the order of operations
    "jax_disable_jit": "false", "jax_disable_most_optimizations": "false",
    "jax_optimization_level": "unknown", "jax_exec_time_optimization_effort": "0.0",
    "jax_compiler_enable_remat_pass": "true", "jax_softmax_custom_jvp": "false",
    "jax_use_direct_linearize": "true", "jax_custom_vjp3": "false", "jax_remat3": "false",
    "jax_custom_jvp3": "false", "jax_remat_barrier_no_cotangents": "false",
    "jax_use_hlo_logistic_lowering": "none",
    "jax_scan3": "false", "jax_use_simplified_jaxpr_constants": "false",
    "jax_embedded_constants_max_bytes": "32", "eager_constant_folding": "false",
    "jax_use_shardy_partitioner": "true", "jax_pallas_use_mosaic_gpu": "true",
    "jax_ragged_dot_use_gpu_pallas_triton_lowering": "false", "jax_xla_profile_version": "0",
}  # fmt: skip
VARIABLES = ("LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")  # read by libraries that JAX calls
_WITHOUT_EFFECT = re.compile(  # flags of XLA that do not change numbers
    "xla_dump_.*|xla_force_host_platform_device_count|xla_hlo_profile|xla_gpu_cuda_data_dir|"
    "xla_.*_cache_dir|xla_.*_parallel_codegen_split_count|xla_.*_compilation_parallelism"
)


def version(*more: str) -> str:
    """Return the digest of the code, and the settings of JAX that differ from their defaults.

    An example is "0123456789ab (jax_enable_x64=true)". Arguments are those of `digest`.
    """
    named = ", ".join(f"{name}={value}" for name, value in settings().items())
    return f"{digest(*more)} ({named})" if named else digest(*more)


def settings() -> dict[str, str]:
    """Return the settings of JAX and XLA that change numbers and differ from the defaults."""
    here = {name: _text(getattr(jax.config, name, usual)) for name, usual in SETTINGS.items()}
    unusual = {name: value for name, value in here.items() if value != SETTINGS[name]}
    unusual |= {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    return unusual | _xla_flags(os.environ.get("XLA_FLAGS", "").strip())


def _text(value: Any) -> str:
    return (value.name if isinstance(value, enum.Enum) else str(value)).lower()


def _xla_flags(text: str) -> dict[str, str]:
    """Return the flags of XLA that may change numbers; `text` has flags, or the path of a file."""
    if text and not text.startswith("-"):
        try:
            text = Path(text).read_text()
        except (OSError, UnicodeDecodeError):
            return {}  # XLA ignores an unreadable file, too
    try:
        words = shlex.split(text)
    except ValueError:  # an unmatched quotation mark
        words = text.split()
    parts = [word.lstrip("-").partition("=") for word in words]
    flags = {name: value if equals else "true" for name, equals, value in parts}  # the last wins
    return {name: flags[name] for name in sorted(flags) if not _WITHOUT_EFFECT.fullmatch(name)}


@functools.cache
def digest(*more: str) -> str:
    """Return a digest of the sources that decide a run's numbers, without comments and docstrings.

    Methods and agents of other packages are not included, so all arms of a comparison have the same
    digest.

    Args:
      *more: patterns of further sources, relative to the repository, such as
        "experiments/papers/cliffwalk*.py".
    """
    made = hashlib.sha256()
    for path in (path for each in (*_DECIDING, *more) for path in sorted(_ROOT.glob(each))):
        made.update(path.relative_to(_ROOT).as_posix().encode())
        made.update(_meaning(path))
    return made.hexdigest()[:12]


@functools.cache  # digests with and without `more` share most files
def _meaning(path: Path) -> bytes:
    """Return the source of a module without comments and docstrings, or the bytes of data."""
    if path.suffix != ".py":
        return path.read_bytes()
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            body[0] = ast.Pass()
    return ast.unparse(tree).encode()


def _is_text(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
