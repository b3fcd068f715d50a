"""RDMA_TF_POOL: where TensorFlow's CPU memory comes from."""

import json
import os
import re
import subprocess
import sys

import pytest
import test_training
from conftest import free_addresses

TIMEOUT = 240
MIB = 1 << 20
TELL = "import rdma_tensorflow, json; print('memory:', json.dumps(rdma_tensorflow.memory()))"


def tell(**env):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RDMA_TF_", "TF_CPU_"))}
    done = subprocess.run(
        [sys.executable, "-c", TELL], env=dict(environment, **env), capture_output=True, text=True, timeout=TIMEOUT
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "env,kind",
    [
        ({}, "registered"),
        ({"RDMA_TF_POOL": "1"}, "registered"),
        ({"RDMA_TF_POOL": "0"}, "tensorflow"),
        ({"RDMA_TF_POOL": "shared"}, "shared"),
        # TensorFlow is told how to make its allocator, so it asks nobody.
        ({"RDMA_TF_POOL": "shared", "TF_CPU_ALLOCATOR_USE_BFC": "true"}, "registered"),
    ],
)
def test_kinds_of_pools(env, kind):
    code, output, errors = tell(**env)
    assert code == 0, errors
    assert json.loads(output.split("memory:")[1])["kind"] == kind


@pytest.mark.parametrize(
    "name,value,allowed",
    [
        ("RDMA_TF_POOL", "yes", "allowed are 0, 1, shared"),
        ("RDMA_TF_POOL_BYTES", "-1", "allowed are 0 (the machine's memory) and numbers of bytes"),
        ("RDMA_TF_POOL_BYTES", "1G", "allowed are 0 (the machine's memory) and numbers of bytes"),
    ],
)
def test_wrong_settings_are_named(name, value, allowed):
    code, _, errors = tell(**{name: value})
    assert code == 1
    assert 'ImportError: rdma_tensorflow: %s is "%s", %s' % (name, value, allowed) in errors


def segments(pid, access):
    """Mappings of shared pools in a process: its own are rw-s, those of peers r--s."""
    with open("/proc/%d/maps" % pid) as maps:
        return [line for line in maps if "rdma-transport-pool" in line and line.split()[1] == access]


def run_pooled(processes, provider, while_connected, **env):
    """The program's last words, both ends with a shared pool."""
    env = dict(env, RDMA_TF_POOL="shared")
    ps, worker = free_addresses(2)
    server = processes.start("ps", "server.py", "ps", 0, "grpc+verbs", ps, worker, provider=provider, **env)
    program = processes.start("worker", "pooled.py", ps, worker, provider=provider, stdin=subprocess.PIPE, **env)
    processes.wait_for("worker", "pooled: rounds done", TIMEOUT)
    while_connected(server.pid, program.pid)
    program.stdin.close()
    output = processes.wait("worker", TIMEOUT)
    return json.loads(re.search(r"^pooled: (\{.*)$", output, re.MULTILINE)[1])


def test_tensors_come_out_of_the_pool_and_outlive_the_server(processes, provider):
    def look(*pids):
        for pid in pids:
            assert segments(pid, "rw-s")
            assert bool(segments(pid, "r--s")) == (provider == "shm")

    said = run_pooled(processes, provider, look)
    for memory in said.values():
        assert memory["kind"] == "shared" and memory["registered_bytes"] == 0
    # 160 MB live at a time; what a step has freed the next one takes.
    assert said["once"]["shared_bytes"] >= 80_000_000
    assert said["often"] == said["once"]


def test_full_pool_is_continued_in_ordinary_memory(processes):
    said = run_pooled(processes, "shm", lambda *pids: None, RDMA_TF_POOL_BYTES=str(64 * MIB))
    for memory in said.values():
        assert memory["kind"] == "shared" and 0 < memory["shared_bytes"] <= 64 * MIB
        assert memory["registered_bytes"] >= 80_000_000
    # Told once.
    assert processes.output("worker").count("exceed its limit of %d" % (64 * MIB)) == 1


def test_late_import_with_a_shared_pool(processes):
    ps, worker = free_addresses(2)
    env = {"RDMA_TF_POOL": "shared"}
    processes.start("ps", "server.py", "ps", 0, "grpc+verbs", ps, worker, provider="shm", **env)
    processes.start("worker", "late.py", ps, worker, provider="shm", **env)
    assert "late but right" in processes.wait("worker", TIMEOUT)


def test_trainings_are_the_same_out_of_the_pool(processes, monkeypatch):
    results = test_training.grpc_results
    if "digits" not in results:
        results["digits"] = test_training.digits(processes, "grpc", None)
    monkeypatch.setenv("RDMA_TF_POOL", "shared")
    assert test_training.digits(processes, "grpc+verbs", "shm") == results["digits"]
