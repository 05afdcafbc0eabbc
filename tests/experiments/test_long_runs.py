"""Long runs of both loops: neither memory nor open files grow."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

MINUTES = 6.0  # JAXREPLAY_MINUTES for longer
SETTLED = 0.3  # share of the time after which a run has allocated all that it needs
LOOP = shlex.split(
    "--agent dqn --replay per --seeds 2 --steps 1000000000 --capacity 20000 --eval-every 2000 "
    "--eval-episodes 2 --agent.hidden 64 64 --checkpoint-every 5"
)


def usage(pid):
    """Return resident bytes and open files of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    kilobytes = next(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmRSS"))
    return 1024 * kilobytes, len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "gymnasium/CartPole-v1"])
def test_memory_and_open_files_do_not_grow(env, tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.train", *LOOP, "--env", env, "--out", str(out)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    seconds, seen = 60 * float(os.environ.get("JAXREPLAY_MINUTES", MINUTES)), []
    start = time.monotonic()
    try:
        while time.monotonic() - start < seconds:
            time.sleep(min(2.0, seconds / 50))
            assert process.poll() is None
            seen.append(usage(process.pid))
    finally:
        process.terminate()
        process.wait()
    settled = seen[int(SETTLED * len(seen)) :]
    third = len(settled) // 3
    for now, before in zip(map(max, zip(*settled[-third:])), map(max, zip(*settled[:third]))):
        assert now <= 1.1 * before
    assert (out / "metrics.csv").read_bytes().count(b"\n") > 10
