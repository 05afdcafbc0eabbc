"""Versions of the code: changes that affect them and changes that do not."""

import ast
import re

import jax
import pytest
from jax._src import config as jax_config

from experiments.runs import code

# Settings that make JAX recompile without changing results: devices, allowed operations, checks
# and debug information.
HARMLESS = {
    "jax_debug_key_reuse", "jax_check_static_indices", "jax_remove_size_one_mesh_axis_from_type",
    "jax_threefry_gpu_kernel_lowering", "check_vma", "jax_hlo_source_file_canonicalization_regex",
    "jax_enable_pgle", "jax_pgle_profiling_runs", "jax_error_checking_behavior_nan",
    "jax_error_checking_behavior_divide", "jax_error_checking_behavior_oob", "jax_default_device",
    "jax_numpy_rank_promotion", "jax_auto_pcast", "jax_use_emit_pipeline_primitive",
    "jax_no_execution", "jax_mutable_array_checks", "jax_pallas_enable_debug_checks",
    "mesh_context_manager", "abstract_mesh_context_manager", "compute_on_context_manager",
    "xla_metadata_context_manager", "pallas_tpu_interpret_mode_context_manager", "user_context",
    "axis_env_state", "jax_raise_on_ppermute_sort_diff", "layout_tracing_mode",
}  # fmt: skip


def test_comments_docstrings_and_layout_keep_the_version(tmp_path):
    one, other, third = (tmp_path / f"{name}.py" for name in "abc")
    one.write_text('"""About."""\n\n\ndef double(x):\n    """Double."""\n    return 2 * x\n')
    other.write_text("def double(x):  # twice\n    'Other.'\n\n    return 2*x\n")
    third.write_text("def double(x):\n    return 3 * x\n")
    meanings = [code._meaning(path) for path in (one, other, third)]
    assert ast.parse(meanings[0])
    assert (
        meanings[0].replace(b"pass\n", b"").strip() == meanings[1].replace(b"pass\n", b"").strip()
    )
    assert b"3 * x" in meanings[2] and meanings[2] != meanings[0]


def test_version_covers_all_sources_that_determine_results():
    paths = (path for pattern in code._DECIDING for path in code._ROOT.glob(pattern))
    names = [path.relative_to(code._ROOT).as_posix() for path in paths]
    assert "jaxreplay/methods/per.py" in names and "agents/dqn.py" in names
    assert not any(name.startswith(("tests/", "experiments/figures")) for name in names)
    assert re.fullmatch("[0-9a-f]{12}", code.digest())
    # Sources outside the training loop have their own version.
    walk = "experiments/papers/cliffwalk*.py"
    assert code.version(walk) == code.version(walk) != code.version()
    assert code.version("experiments/papers/nothing*.py") == code.version()


def test_version_contains_settings_of_jax_and_xla(monkeypatch, tmp_path):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert code.version() == code.digest()
    with jax.threefry_partitionable(False), jax.default_matmul_precision("bfloat16"):
        assert code.settings() == {
            "jax_threefry_partitionable": "false", "jax_default_matmul_precision": "bfloat16",
        }  # fmt: skip
        assert code.version().startswith(f"{code.digest()} (jax_threefry_partitionable=false, ")
    with jax.numpy_dtype_promotion("strict"), jax.enable_x64(True):
        assert set(code.settings()) == {"jax_numpy_dtype_promotion", "jax_enable_x64"}
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    flags = "--xla_dump_to='/tmp/a b' --xla_b=1 --xla_a --xla_force_host_platform_device_count=2"
    monkeypatch.setenv("XLA_FLAGS", f"{flags} --xla_b=2")
    assert code.settings() == {"NVIDIA_TF32_OVERRIDE": "0", "xla_a": "true", "xla_b": "2"}
    (tmp_path / "flags").write_text("--xla_c=3\n")
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "flags"))
    assert code.settings()["xla_c"] == "3"


def test_settings_that_recompile_are_recorded_or_known_to_be_harmless():
    try:
        names = set(jax_config.trace_context_names())
    except (AttributeError, NotImplementedError):
        pytest.skip("this version of JAX does not list them")
    assert names <= set(code.SETTINGS) | HARMLESS
    assert not HARMLESS & set(code.SETTINGS)
