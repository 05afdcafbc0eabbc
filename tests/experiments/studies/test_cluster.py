"""Studies on Ray: invalid input, resuming bit for bit, and a killed node of two."""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from experiments import sweep
from experiments.studies import cluster, devices, executor, grid, plan, programs, progress, store
from experiments.studies.definition import Study
from experiments.studies.options import Where
from tests.experiments.studies.test_programs import tiny
from tests.refusals import assert_names, refusal, refused

ROOT = Path(__file__).parents[3]
TINY = [
    "--agent", "dqn", "--envs", "walk/4", "--seeds", "2", "--warmup", "100", "--eval-episodes", "1",
    "--n-step", "1", "--inspect", "0", "--batch-size", "8", "--agent.hidden", "8",
]  # fmt: skip
GRID = ["--replays", "per", "--grid", "replay.alpha=0.2,0.6"]


def free_port():
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return own.getsockname()[1]


def hang_up(server):
    with server.accept()[0] as other:
        other.recv(100)
        other.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize("on", ["slurm", "ray://", "ray://host:port", "host", "here:80:1"])
def test_invalid_places_to_run_are_refused(on):
    with refused("on", on, "here", "ray", "ray://HOST", "HOST:PORT"):
        Where(on=on)


def test_addresses_without_a_cluster_are_refused(tmp_path, capsys, monkeypatch):
    pytest.importorskip("ray")
    out, port = tmp_path / "x", free_port()

    def said(on):
        words = [*TINY, *GRID, "--steps", "200", "--out", out, "--on", on]
        return refusal(capsys, sweep.main, *words)

    for on in (f"ray://127.0.0.1:{port}", f"127.0.0.1:{port}"):
        assert_names(said(on), f"--on {on}", "Connection refused", "ray start --head")
    with socket.create_server(("127.0.0.1", 0)) as other:  # a server other than Ray
        threading.Thread(target=hang_up, args=(other,), daemon=True).start()
        on = f"127.0.0.1:{other.getsockname()[1]}"
        assert_names(said(on), f"--on {on}", "ray start --head")
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    assert_names(said("ray"), "--on ray", f"127.0.0.1:{port}", "ray start --head")
    monkeypatch.setenv("RAY_ADDRESS", "somewhere")
    assert_names(said("ray"), "RAY_ADDRESS", "somewhere", "HOST:PORT")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert_names(said("ray"), "--on ray", "pip install", "[cluster]")
    assert not out.exists()


def test_nodes_with_other_code_or_versions_are_refused():
    alike = {"code": store.code_version(), "platform": "cpu",
             "versions": {"jax": metadata.version("jax")}}  # fmt: skip
    cluster._check("n1", alike, None)
    for other, parts in (
        ({"lacks": "No module named 'experiments'"}, ("No module named 'experiments'",)),
        ({**alike, "code": "0123"}, ("0123", alike["code"])),
        ({**alike, "versions": {"jax": "0.1"}}, ("jax", "0.1", alike["versions"]["jax"])),
    ):
        with refused("n1", *parts):
            cluster._check("n1", other, None)
    with refused("n1", "GPU", "CPU", "JAX_PLATFORMS=cpu"):
        cluster._check("n1", alike, "GPU")


def test_workers_have_the_flags_and_threads_of_this_machine(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_some=1")
    monkeypatch.setenv("JAX_ENABLE_X64", "0")
    own = cluster.environment(None)
    assert own["XLA_FLAGS"] == "--xla_some=1" and own["JAX_ENABLE_X64"] == "0"
    assert own["JAX_PLATFORMS"] == "cpu" and own["NPROC"] == str(len(os.sched_getaffinity(0)))
    monkeypatch.setenv("NPROC", "3")
    assert cluster.environment(None)["NPROC"] == "3"


def test_plans_over_slots_have_the_width_of_cores_and_their_memory():
    (point,) = grid.expand([], {("walk/4", "per"): tiny()})
    study = Study({("walk/4", "per"): tiny()})
    results = store.begin(Path("nowhere"), study, [point], {})
    groups, runs = programs.grouped([point]), results.missing([point])

    def laid_out(*slots):
        return plan.make(groups, runs, [(slot,) for slot in slots])

    slots = [devices.Slot("cpu", "cpu", name, 10**9) for name in ("n1", "n1", "n2")]
    (here,), (there,) = laid_out(*devices.choose(1)).jobs, laid_out(*slots).jobs
    assert (there.width, there.runs) == (here.width, here.runs)
    with refused("walk/4 per", "3", "3e-08", "--devices"):
        laid_out(*slots[:2], devices.Slot("cpu", "cpu", "n3", 10))  # the smallest decides


def test_notes_keep_the_state_of_an_interrupted_batch(monkeypatch):
    ray = pytest.importorskip("ray")
    from experiments.studies import cluster_running

    monkeypatch.setattr(ray, "put", lambda value: value)
    notes = cluster_running.Notes()
    assert notes.begin(3) == (1, None)
    notes.tell(3, 150)
    notes.leave(3, 100, b"checkpoint")
    assert notes.begin(3) == (2, b"checkpoint")
    assert notes.read(3) == (100, 2)  # resumes from there
    notes.forget(3)
    assert notes.read(3) == (0, 0)


def marked(mark):
    """Return the processes with this mark in their environment, and their children."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            name, _, value = mark.partition("=")
            if process.environ().get(name) == value:
                # Ray's agents hide their environment.
                found |= {each.pid: each for each in (process, *process.children(recursive=True))}
    return list(found.values())


def kill(mark):
    """Kill a node as in a power failure; return its processes."""
    found = marked(mark)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(found, timeout=10)
    return found


class Nodes:
    """A Ray cluster on the loopback address, each node with one core."""

    def __init__(self):
        # Paths of sockets are limited to 107 bytes, which folders of pytest exceed.
        self.folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
        self.port, self.client_port = free_port(), free_port()
        self.marks = []

    def start(self, **variables):
        """Start a node; return its mark."""
        first = not self.marks
        mark = f"JAXREPLAY_NODE={uuid.uuid4().hex}"
        self.marks.append(mark)
        name, _, value = mark.partition("=")
        ports = ["--min-worker-port=0", "--max-worker-port=0", "--num-cpus=1"]
        own = [f"--address=127.0.0.1:{self.port}"]
        if first:
            own = ["--head", "--node-ip-address=127.0.0.1", f"--port={self.port}",
                   "--include-dashboard=false", f"--temp-dir={self.folder}"]  # fmt: skip
        if first and importlib.util.find_spec("grpc"):
            own.append(f"--ray-client-server-port={self.client_port}")
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        told = {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", name: value, **variables}
        ended = subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *own, *ports],
            capture_output=True, text=True, timeout=120, cwd=ROOT, env={**os.environ, **told},
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return mark

    def stop(self):
        for mark in self.marks:
            kill(mark)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def nodes(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # avoids a token in the home folder
    found = Nodes()
    try:
        found.start()
        yield found
    finally:
        found.stop()


LONG = [*TINY, *GRID, "--steps", "120_000", "--eval-every", "1_000"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the folder of the same sweep on this machine alone."""
    out = tmp_path_factory.mktemp("alone") / "sweep"
    assert sweep.main([*LONG, "--out", str(out), "--figures", "false"]) == 0
    return out


@pytest.mark.slow
def test_killed_nodes_do_not_change_the_table(nodes, alone, tmp_path, monkeypatch, capfd):
    second = nodes.start()
    out, done = tmp_path / "two", []

    class Watched(progress.Bar):
        def works_on(self, device, what, steps=0):
            super().works_on(device, what, steps)
            if not done and self._done > 0.3 * self._total and not self._ended:
                done.append(self._done)  # both batches are running
                kill(second)

    monkeypatch.setattr(executor, "Bar", Watched)
    words = ["--out", str(out), "--on", f"127.0.0.1:{nodes.port}", "--checkpoint-every", "0"]
    assert sweep.main([*LONG, *words, "--figures", "false"]) == 0
    assert done and not marked(second)
    said = capfd.readouterr().err
    assert "2 nodes" in said
    assert (out / "study.csv.gz").read_bytes() == (alone / "study.csv.gz").read_bytes()
    costs = json.loads((out / "study.json").read_text())["costs"]
    assert sum(len(seeds) for cost in costs for seeds in cost["runs"].values()) == 4  # once each
    (again,) = [cost for cost in costs if "began" in cost]
    assert again["from"] > 0
    # No run is missing and none is repeated.
    words = ["--figures", "false", "--on", f"127.0.0.1:{nodes.port}"]
    assert sweep.main(["--resume", str(out), *words]) == 0
    assert json.loads((out / "study.json").read_text())["costs"] == costs
    assert "raylet" not in capfd.readouterr().out


@pytest.mark.slow
def test_sweeps_stopped_by_ctrl_c_resume_on_another_machine(nodes, alone, tmp_path):
    pytest.importorskip("grpc", reason="Ray's client needs grpcio, which the extra brings")
    out = tmp_path / "stopped"
    command = [sys.executable, "-m", "experiments.sweep"]
    address = f"ray://127.0.0.1:{nodes.client_port}"
    process = subprocess.Popen(
        [*command, *LONG, "--out", str(out), "--on", address, "--figures", "false"],
        cwd=ROOT, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while not (out / "study.csv.gz").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert_names(said, "2 of 4", "--resume")
    assert sweep.main(["--resume", str(out), "--figures", "false"]) == 0  # on this machine
    assert (out / "study.csv.gz").read_bytes() == (alone / "study.csv.gz").read_bytes()
