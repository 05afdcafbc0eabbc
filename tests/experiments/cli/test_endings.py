"""Commands whose output is cut off, or that are interrupted early, end in a line at most."""

import os
import signal
import subprocess
import sys
import time

import pytest

LIST = ["experiments.train", "--list", "--json"]  # more than a pipe holds at once


def cut_off(command, after=0):
    """Return the exit code and the errors of a command of which only so many bytes are read."""
    started = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
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


def test_a_pipe_of_our_own_that_breaks_is_still_an_error():
    code = (
        "import os, sys; sys.argv = ['-m']; import experiments; sys.argv = ['x']\n"
        "read, write = os.pipe(); os.close(read); os.write(write, b'x')"
    )
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
    assert rest == ["stopped where nothing had to be saved\n"]


def test_ctrl_c_is_as_ever_once_the_command_is_there(ctrl_c):
    code = (
        "import sys; sys.argv = ['-m']; import experiments; sys.argv = ['x']\n"
        "def main(): pass\n"
        "import signal\n"
        "try:\n signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n print('caught')\n raise"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "caught\n")
    assert done.stderr == "stopped where nothing had to be saved\n"


def test_who_imports_the_package_keeps_their_own_endings():
    code = "import experiments, sys; assert sys.excepthook is sys.__excepthook__"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
