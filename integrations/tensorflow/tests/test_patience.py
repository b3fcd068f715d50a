"""Servers that do not answer, and servers that cannot: what a step waits for, and what it is told."""

import re
import signal
import subprocess
import sys
import time

from conftest import DOCS, free_addresses

TIMEOUT = 240


def test_r22_stopped_parameter_server_is_waited_for(processes, provider):
    """As under plain grpc: longer than any time-out that the library has by default, and no step runs twice."""
    ps, worker = free_addresses(2)
    spec = ("grpc+verbs", ps, worker)
    process = processes.start("ps", "server.py", "ps", 0, *spec, provider=provider)
    processes.start("worker", "patient.py", *spec, provider=provider)
    processes.wait_for("worker", "patient: going", TIMEOUT)
    process.send_signal(signal.SIGSTOP)
    time.sleep(13)
    assert processes.running["worker"].poll() is None, processes.all_output()
    process.send_signal(signal.SIGCONT)
    assert "patient: waited, and counted right" in processes.wait("worker", TIMEOUT)


def test_r22_silent_parameter_server_is_blamed_under_the_stricter_rule(processes, provider):
    """Not the worker that waits for it: ParameterServerStrategy would restart the wrong task. Every step that meets
    it is "unavailable", which MonitoredSession tries again; none exceeds a deadline that nobody set."""
    ps, worker = free_addresses(2)
    process = processes.start("ps", "server.py", "ps", 0, "grpc+verbs", ps, worker, provider=provider)
    processes.start("worker", "stalled.py", ps, worker, provider=provider, RDMA_PEER_TIMEOUT_MS="4000")
    processes.wait_for("worker", "stalled: going", TIMEOUT)
    process.send_signal(signal.SIGSTOP)
    processes.wait_for("worker", "stalled: the parameter server", TIMEOUT)
    processes.wait_for("worker", "stalled: still", TIMEOUT)
    process.send_signal(signal.SIGCONT)
    assert "stalled: no more" in processes.wait("worker", TIMEOUT)


def test_r22_unanswered_step_is_blamed_under_the_stricter_rule(processes, provider):
    """All its tensors have come, so no receive waits: what it lacks is the server's word, by gRPC, that its part is
    over. So it is with a step that has no tensors to receive. One that only takes long fails by nobody's rule."""
    ps, worker = free_addresses(2)
    process = processes.start("ps", "server.py", "ps", 0, "grpc+verbs", ps, worker, provider=provider)
    processes.start("worker", "unanswered.py", ps, worker, provider=provider, RDMA_PEER_TIMEOUT_MS="4000")
    processes.wait_for("worker", "unanswered: going", TIMEOUT)
    processes.wait_for("worker", "unanswered: arrived", TIMEOUT)
    process.send_signal(signal.SIGSTOP)
    processes.wait_for("worker", "unanswered: still", TIMEOUT)
    process.send_signal(signal.SIGCONT)
    assert "unanswered: no more" in processes.wait("worker", TIMEOUT)


def one_step(processes, protocols, ps_env=None, worker_env=None):
    ps, worker = free_addresses(2)
    processes.start("ps", "server.py", "ps", 0, protocols[0], ps, worker, **(ps_env or {}))
    processes.wait_for("ps", "ready", TIMEOUT)
    processes.start("worker", "once.py", protocols[1], ps, worker, **(worker_env or {}))
    return re.search(r"^once: (.*)", processes.wait("worker", TIMEOUT), re.MULTILINE | re.DOTALL)[1]


def test_r22_parameter_server_on_plain_grpc_is_named(processes):
    outcome = one_step(processes, ("grpc", "grpc+verbs"))
    assert outcome.startswith("FailedPreconditionError"), outcome
    assert "/job:ps/replica:0/task:0 does not run grpc+verbs" in outcome
    assert 'protocol="grpc+verbs"' in outcome and "import rdma_tensorflow" in outcome


def test_r22_worker_on_plain_grpc_is_served(processes):
    """Asked by gRPC, the server answers by gRPC."""
    assert one_step(processes, ("grpc+verbs", "grpc")).startswith("result ")


def test_r22_refused_secret_names_the_variable(processes, provider, tmp_path):
    files = {}
    for name in ("one", "other"):
        path = tmp_path / name
        path.write_text("the secret of " + name)
        path.chmod(0o600)
        files[name] = {"provider": provider, "RDMA_AUTH_SECRET_FILE": str(path)}
    outcome = one_step(processes, ("grpc+verbs", "grpc+verbs"), files["one"], files["other"])
    assert outcome.startswith("UnauthenticatedError"), outcome
    assert "grpc+verbs: receive from /job:ps/replica:0/task:0" in outcome
    assert "RDMA_AUTH_SECRET_FILE" in outcome


def test_r22_missing_secret_names_the_variable(processes, provider, tmp_path):
    path = tmp_path / "secret"
    path.write_text("secret")
    path.chmod(0o600)
    with_secret = {"provider": provider, "RDMA_AUTH_SECRET_FILE": str(path)}
    outcome = one_step(processes, ("grpc+verbs", "grpc+verbs"), with_secret, {"provider": provider})
    assert outcome.startswith("UnauthenticatedError"), outcome
    assert "grpc+verbs: receive from /job:ps/replica:0/task:0" in outcome
    assert "RDMA_AUTH_SECRET_FILE" in outcome


def test_r22_forgotten_import_fails_as_documented():
    program = "import tensorflow as tf; tf.distribute.Server({'ps': ['127.0.0.1:1']}, job_name='ps', protocol='grpc+verbs')"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT)
    assert result.returncode != 0
    with open(DOCS) as docs:
        told = re.search(r"`(NotFoundError: No server factory[^`…]*?) …`", docs.read())
    assert told[1] in result.stderr, result.stderr
