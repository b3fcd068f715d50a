"""How these tests choose ports: none that the system may give to somebody else, and again where one is taken."""

import os
import socket
import subprocess
import sys

from conftest import EPHEMERAL, HERE, free_addresses

# The port is taken, by a listener, after it was chosen: the first server cannot start, the second time all is well.
TAKEN_ONCE = """
import socket

from conftest import free_addresses

tries = []

def test_server_starts(processes):
    ps, worker = free_addresses(2)
    if not tries:
        host, port = ps.split(":")
        tries.append(socket.create_server((host, int(port))))
    processes.start("ps", "server.py", "ps", 0, "grpc", ps, worker)
    processes.wait_for("ps", "ready", 120)

def test_other_failures_are_not_tried_again():
    tries.append("other")
    assert tries[2:] == ["never"], "tries: %d" % len(tries)
"""


def test_r27_ports_are_not_the_systems_to_give():
    """Choosing an ephemeral port, as bind(0) does, lost it to any client's connection before the server had it."""
    addresses = free_addresses(200)
    assert len(set(addresses)) == 200
    for address in addresses:
        host, port = address.split(":")
        assert not EPHEMERAL[0] <= int(port) <= EPHEMERAL[1]
        with socket.socket() as s:
            s.bind((host, int(port)))


def test_r27_a_taken_port_is_another_try(tmp_path):
    program = tmp_path / "test_taken.py"
    program.write_text(TAKEN_ONCE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "conftest", str(program)]
    env = dict(os.environ, PYTHONPATH=HERE)
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, cwd=tmp_path)
    assert "1 failed, 1 passed" in result.stdout, result.stdout + result.stderr
    assert "tries: 2" in result.stdout, result.stdout
