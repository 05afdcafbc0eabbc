"""Connection to a Ray cluster for a study, and checks of its nodes."""

import contextlib
import logging
import os
import re
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from experiments.environments.extras import lacking_extra
from experiments.runs import code
from experiments.runs.log import say
from experiments.studies import devices, store
from experiments.studies.devices import Slot
from experiments.studies.plan import count

_PATIENCE = 5  # seconds to wait for an answer from an address
_PATIENCE_WITH_NODES = 180  # seconds for nodes to import the packages, perhaps over a network
_CLIENT_PORT = 10001  # Ray's default
# Packages that determine numbers, and must have the same versions on all nodes.
_DECIDING = ("jax", "jaxlib", "flax", "optax", "chex", "numpy", "gymnax", "brax")
# Start of a gRPC connection, the protocol of Ray, and the type of frame that a server answers with.
# Ray itself would retry for minutes to reach an address that serves something else.
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
_SETTINGS_FRAME = b"\x04"
_ACCELERATORS = ("GPU", "TPU")  # Ray's names

# Ray reads these variables on import. They shorten its retries when a cluster refuses a connection
# and hide its messages about nodes and tasks, which this package reports in a study's terms.
_SETTINGS = {
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # otherwise Ray starts a new cluster after losing one
    "RAY_NUM_REDIS_GET_RETRIES": "4",
    "RAY_CLIENT_INITIAL_CONNECTION_TIMEOUT_S": "2",
    "RAY_CLIENT_MAX_CONNECTION_TIMEOUT_S": "4",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
for _name_of, _value in _SETTINGS.items():
    os.environ.setdefault(_name_of, _value)


class Cluster(NamedTuple):
    """A cluster to which this process is connected."""

    address: str
    slots: tuple[Slot, ...]  # each executes one batch at a time
    accelerator: str | None  # Ray's name of the accelerator; None for CPU cores

    def describe(self) -> str:
        """Return a one-line summary of the cluster."""
        nodes = list(dict.fromkeys(slot.node for slot in self.slots))
        shown = ", ".join(nodes[:4]) + (", ..." if len(nodes) > 4 else "")
        slots = count(len(self.slots), self.accelerator or "core")
        return f"Ray at {self.address}: {count(len(nodes), 'node')} ({shown}), {slots}"


def environment(accelerator: str | None) -> dict[str, str]:
    """Return the environment variables that make a worker compute like this process."""
    shared = {
        name: value
        for name, value in os.environ.items()
        if re.match("(JAX|XLA)_", name) or name in code.VARIABLES
    }
    if accelerator is None:
        shared["JAX_PLATFORMS"] = "cpu"
    # XLA splits large products by the number of threads, which must match on all nodes.
    return shared | {"NPROC": str(devices.threads())}


@contextlib.contextmanager
def join(on: str) -> Iterator[Cluster]:
    """Connect to a cluster within a context; start one here if `on` is "ray" and there is none.

    Raises:
      ValueError: Ray is not installed, no cluster answers, or one of its nodes is unsuitable.
    """
    if lacks := lacking_extra(f"--on {on}", {"ray": "cluster"}):
        raise ValueError(lacks)
    import ray

    address = _address(on)
    known = ray.is_initialized()  # as in a notebook; this cluster is used and left running
    if not known:
        if address is not None:
            _check_answers(on, address)
        _init(on, address)
    try:
        yield _looked_at(on, address or "this machine, for this study")
    finally:
        if not known:
            ray.shutdown()


def _address(on: str) -> str | None:
    """Return the address of the cluster, or None if a new one should start."""
    if on.startswith("ray://"):
        return on if re.search(r":\d+$", on) else f"{on}:{_CLIENT_PORT}"
    if on != "ray":
        return on
    told = os.environ.get("RAY_ADDRESS", "")
    if told:
        return None if told == "local" else told
    # `ray start` writes the address to this file, which remains after a cluster is killed.
    path = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"
    with contextlib.suppress(OSError, ValueError):
        found = path.read_text().strip()
        if found and _answers(found) is None:
            return found
    return None


def _answers(address: str) -> str | None:
    """Return the reason why an address does not answer like a cluster, or None if it does."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _PATIENCE) as own:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return None
            own.settimeout(_PATIENCE)
            own.sendall(_HTTP2)
            return None if own.recv(4)[3:] == _SETTINGS_FRAME else "another service answers there"
    except TimeoutError:
        return f"no answer within {_PATIENCE} s"
    except OSError as error:
        return error.strerror or str(error)


def _check_answers(on: str, address: str) -> None:
    if not re.fullmatch(r"(ray://)?\S+:\d{1,5}", address):
        raise ValueError(
            f"RAY_ADDRESS is '{address}': set it to HOST:PORT or ray://HOST:PORT, or unset it"
        )
    why = _answers(address)
    if why is not None:
        raise ValueError(
            f"--on {on}: no cluster answers at {address} ({why}): start a cluster there with "
            "`ray start --head`, or use another address"
        )


def _init(on: str, address: str | None) -> None:
    """Initialize Ray on an existing or a new cluster, without its output.

    Raises:
      ValueError: Ray can't connect to the cluster or start one.
    """
    import ray

    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {"include_dashboard": False}
    try:
        with _silence():
            # With "auto", Ray also finds the token of the cluster.
            ray.init(address="auto" if on == "ray" and address else address or "local", **options)
    except (ImportError, OSError, RuntimeError, ValueError, AssertionError) as error:
        ray.shutdown()
        raise ValueError(
            f"--on {on}: cannot connect to a cluster at {address or 'this machine'} "
            f"({first_line(error)}): use Ray {ray.__version__} on the cluster, and the "
            "RAY_AUTH_MODE with which it was started"
        ) from None
    finally:
        if main:  # Ray replaces the handler of the signal with which schedulers end a run
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Suppress Ray's warnings, including those of its C++ code; real problems raise errors."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _looked_at(on: str, address: str) -> Cluster:
    """Return the cluster with the slots of its nodes, after checking every node."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    accelerator = None
    if os.environ.get("JAX_PLATFORMS") != "cpu":
        offered = [name for name in _ACCELERATORS if any(name in n["Resources"] for n in alive)]
        accelerator = offered[0] if offered else None
    unit = accelerator or "CPU"
    used = [node for node in alive if node["Resources"].get(unit, 0) >= 1]
    asked = zip(used, _asked(used, accelerator), strict=True)
    there = [(node, about) for node, about in asked if about is not None]
    if not there:
        raise ValueError(f"--on {on}: no node of the cluster at {address} offers a {unit}")
    slots = []
    for node, about in there:
        _check(_name(node), about, accelerator)
        number = int(node["Resources"][unit])
        own = about["bytes"] // (1 if accelerator else number)
        slots += [Slot(about["platform"], about["kind"], _name(node), own)] * number
    if accelerator is None and len({about["processor"] for _, about in there}) > 1:
        say("the nodes have different processors: the last digits of results may differ")
    return Cluster(address, tuple(slots), accelerator)


def share(accelerator: str | None, amount: float) -> dict[str, Any]:
    """Return Ray's option for a task that needs `amount` accelerators; {} on CPU cores."""
    if accelerator is None:
        return {}
    return {"num_gpus": amount} if accelerator == "GPU" else {"resources": {accelerator: amount}}


def _asked(nodes: Sequence[dict[str, Any]], accelerator: str | None) -> list[dict[str, Any] | None]:
    """Return the facts that each node reports, or None for a dead node that Ray still lists.

    Raises:
      ValueError: a node does not answer, or can't run a task.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def look(packages: Sequence[str]) -> dict[str, Any]:
        """Return a node's code, versions and hardware, or only the error of an import ("lacks").

        Ray serializes a nested function by value, so that it runs on nodes without this package.
        """
        from importlib import metadata

        try:
            import jax

            from experiments.runs import compilation
            from experiments.studies import devices, store
        except (ImportError, SystemExit) as error:
            return {"lacks": " ".join(str(error).split())}
        here = jax.local_devices()
        installed = {each.metadata["Name"].lower() for each in metadata.distributions()}
        return {
            "code": store.code_version(),
            "versions": {name: metadata.version(name) for name in packages if name in installed},
            "platform": here[0].platform,
            "kind": here[0].device_kind,
            "processor": compilation.processor(),
            "bytes": devices.free_bytes(here),
        }

    asked = [
        ray.remote(look)
        .options(
            num_cpus=0,
            max_retries=0,
            runtime_env={"env_vars": environment(accelerator)},
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            **share(accelerator, 0.01),  # enough to make it visible
        )
        .remote(_DECIDING)
        for node in nodes
    ]
    gone = (ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError)
    found: list[dict[str, Any] | None] = []
    for node, reference in zip(nodes, asked, strict=True):
        try:
            found.append(ray.get(reference, timeout=_PATIENCE_WITH_NODES))
        except ray.exceptions.GetTimeoutError:
            raise ValueError(
                f"node {_name(node)} has not answered within {_PATIENCE_WITH_NODES} s: check "
                "whether it is busy with other work"
            ) from None
        except gone as error:
            found.append(None)
            say(f"node {_name(node)} is unreachable and not used ({first_line(error)[:80]})")
        except ray.exceptions.RayError as error:
            raise ValueError(f"node {_name(node)} can't run a task: {first_line(error)}") from None
    return found


def _check(node: str, about: dict[str, Any], accelerator: str | None) -> None:
    """Check that a node computes the same numbers as this machine.

    Raises:
      ValueError: its numbers would differ; the message names the node and the reason.
    """
    if "lacks" in about:
        raise ValueError(
            f"node {node} can't import the code ({about['lacks']}): run `make setup` in a "
            "clone on that node and start Ray with the clone's Python, or submit the study with "
            "`ray job submit --working-dir`"
        )
    if about["code"] != store.code_version():
        raise ValueError(
            f"node {node} has another version of the code ({about['code']}, here "
            f"{store.code_version()}): use the same code and JAX settings on all nodes"
        )
    for name, other in about["versions"].items():
        if other != metadata.version(name):
            raise ValueError(
                f"node {node} has {name} {other}, but this machine has {metadata.version(name)}: "
                "install the same version on all nodes"
            )
    if accelerator is not None and about["platform"] == "cpu":
        raise ValueError(
            f"node {node} offers a {accelerator}, but its jax runs on the CPU: install jax for the "
            "accelerator there (make setup ACCELERATOR=...), or set JAX_PLATFORMS=cpu here"
        )


def first_line(error: BaseException) -> str:
    """Return type and message of the error in a Ray task, or an error of Ray's own as one line."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return f"{type(cause).__name__}: {' '.join(str(cause).split())}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _name(node: dict[str, Any]) -> str:
    """Return a node's name, which is unique even among nodes of one machine."""
    return f"{node['NodeManagerHostname']}/{node['NodeID'][:6]}"
