"""Commands whose output is cut off, or that are interrupted early, end in a line at most."""

import fcntl
import os
import signal
import subprocess
import sys
import time

import jax
import pytest

AS_COMMAND = (  # what Python does of `python -m experiments.x`
    "import os, sys; sys.argv, sys.orig_argv = ['-m'], ['python', '-m', 'experiments.x']\n"
    "import experiments; sys.argv = ['x']"
)
LIST = ["experiments.train", "--list", "--json"]  # more than a pipe holds at once


def cut_off(command, after=0):
    """Return the exit code and the errors of a command of which only so many bytes are read."""
    started = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    if hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux, whose pipes hold as much as some commands print
        fcntl.fcntl(started.stdout, fcntl.F_SETPIPE_SZ, 4096)
    os.read(started.stdout.fileno(), after)
    started.stdout.close()
    errors = started.stderr.read().decode()
    return started.wait(timeout=120), errors


@pytest.mark.parametrize(
    "command",
    [LIST, ["experiments.papers", "list", "per.fig1"], ["experiments.sweep", "--list", "--json"]],
    ids=lambda x: x[0],
)
def test_an_output_that_nobody_reads_ends_a_command_without_a_word(command):
    code, errors = cut_off(command)
    assert (code, errors) in ((141, ""), (0, ""))  # 0: all of it was still to be written


def test_an_output_that_is_cut_off_in_the_middle_is_told_by_the_exit_code():
    assert cut_off(LIST, after=200) == (141, "")


@pytest.mark.parametrize("command", ["train", "watch", "report"])
def test_helps_may_be_cut_off(command):
    assert cut_off([f"experiments.{command}", "--help"]) == (0, "")


def test_an_output_that_is_closed_from_the_start_is_no_error():
    listing = f"{sys.executable} -m experiments.papers list per.fig1 >&-"
    done = subprocess.run(["sh", "-c", listing], capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_a_run_goes_on_when_nobody_reads_its_lines(tmp_path):
    out = tmp_path / "run"
    train = (
        f"{sys.executable} -m experiments.train --steps 100 --warmup 70 --seeds 1 --out {out} 2>&1"
    )
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {train} | head -n 1"], capture_output=True, text=True
    )
    assert len(done.stdout.splitlines()) == 1 and not done.stderr
    assert done.returncode == 141 and (out / "summary.json").is_file()


def test_a_pipe_of_our_own_that_breaks_is_still_an_error():
    code = f"{AS_COMMAND}\nread, write = os.pipe(); os.close(read); os.write(write, b'x')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "BrokenPipeError" in done.stderr


@pytest.mark.parametrize("command", ["train", "watch", "papers"])
@pytest.mark.parametrize("seconds", [0.1, 0.5])
def test_ctrl_c_while_packages_are_imported_is_one_line(command, seconds, ctrl_c):
    started = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", f"experiments.{command}", "--help"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in started.stderr:
        if line.endswith(" experiments\n"):
            break  # the package is there; what the command imports takes longer than we wait
    time.sleep(seconds)
    started.send_signal(signal.SIGINT)
    rest = [line for line in started.stderr if not line.startswith("import time:")]
    assert started.wait(timeout=120) == 130
    assert len(rest) == 1 and rest[0].strip() and "KeyboardInterrupt" not in rest[0]


def test_ctrl_c_is_as_ever_once_the_command_is_there(ctrl_c):
    code = (
        f"{AS_COMMAND}\n"
        "def main(): pass\n"
        "import signal\n"
        "try:\n signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n print('caught')\n raise"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "caught\n")
    assert done.stderr.strip() and done.stderr.count("\n") == 1
    assert "KeyboardInterrupt" not in done.stderr


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("JAX_PLATFORMS", "cuda"),
        ("JAX_PLATFORMS", "nonsense"),
        ("JAX_PLATFORM_NAME", "nonsense"),
        ("JAX_ENABLE_X64", "maybe"),
        ("JAX_NUM_CPU_DEVICES", "abc"),
    ],
)
def test_settings_with_which_jax_cannot_start_are_named(variable, value, tmp_path):
    if value == "cuda" and any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("this machine has a GPU")
    settings = {name: own for name, own in os.environ.items() if name != "JAX_PLATFORMS"}
    command = [sys.executable, "-m", "experiments.train", "--out", str(tmp_path / "x")]
    done = subprocess.run(
        command, env={**settings, variable: value}, capture_output=True, text=True, timeout=120
    )
    line = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert line.startswith("error: ") and f"{variable}={value}" in line
    assert not (tmp_path / "x").exists()


def test_a_name_of_no_plotting_backend_is_not_read(tmp_path):
    settings = {**os.environ, "MPLBACKEND": "nonsense"}
    command = f"{AS_COMMAND}; import experiments.analysis.style"
    subprocess.run([sys.executable, "-c", command], env=settings, check=True, timeout=120)


def test_what_the_output_cannot_encode_is_written_as_escapes():
    settings = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    command = [sys.executable, "-c", f"{AS_COMMAND}; print('\u00fc')"]
    done = subprocess.run(command, env=settings, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, b"\\xfc\n")


def test_a_folder_with_letters_that_the_locale_lacks_is_written_and_read(tmp_path):
    locale = {"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    settings = {**os.environ, **locale, "PYTHONCOERCECLOCALE": "0"}
    out = os.fsencode(tmp_path) + "/\u00fc".encode()
    for command in (
        [
            "train", "--agent", "dqn", "--env", "walk/4", "--seeds", "1", "--steps", "200",
            "--warmup", "100", "--eval-every", "100", "--eval-episodes", "1", "--report", "true",
            "--figures", "false", "--out", out,
        ],
        ["report", out],
        ["plot", b"\xc3\xbc=" + out, "--out", out + b"2"],
    ):  # fmt: skip
        words = [sys.executable, "-m", f"experiments.{command[0]}", *command[1:]]
        done = subprocess.run(words, env=settings, capture_output=True, timeout=240)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "\u00fc" / "report.html").is_file()  # the first makes it, too
    assert "\u00fc".encode() in (tmp_path / "\u00fc" / "report.html").read_bytes()
