"""Clusters of processes for the tests, and their end."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from _pytest.runner import runtestprotocol
from nursery import Nursery

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(HERE, "programs")
EXAMPLE = os.path.join(HERE, "..", "..", "..", "examples", "tensorflow", "distribute.py")
DOCS = os.path.join(HERE, "..", "..", "..", "docs", "tensorflow.md")
PROVIDERS = ("shm", "tcp")


# The system hands ports of this range to whoever connects to somebody, at any moment: none is chosen from it.
with open("/proc/sys/net/ipv4/ip_local_port_range") as ephemeral:
    EPHEMERAL = tuple(map(int, ephemeral.read().split()))
LOWEST_PORT = 5000
# One socket per port that was chosen, until this process ends: its name is what other runs of these tests meet.
reserved = {}


def ours(port):
    """Takes the port from other runs of these tests; False if one of them has it."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind("\0rdma-tensorflow-test-port-%d" % port)
    except OSError:
        claim.close()
        return False
    reserved[port] = claim
    return True


def free(port):
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False


def free_addresses(count):
    """Addresses nobody listens on at the moment, each given out once."""
    ports = [port for port in range(LOWEST_PORT, 65536) if not EPHEMERAL[0] <= port <= EPHEMERAL[1]]
    random.shuffle(ports)
    chosen = []
    for port in ports:
        if port not in reserved and ours(port) and free(port):
            chosen.append("127.0.0.1:%d" % port)
            if len(chosen) == count:
                return chosen
    pytest.fail("no %d free ports from %d up outside of %s" % (count, LOWEST_PORT, EPHEMERAL))


# Begun by the first test that starts a program.
nursery = None

# What TensorFlow says when somebody else took a port between the choice and the server's start.
PORT_TAKEN = ("Could not start gRPC server", "Address already in use", "No address added out of total")
TRIES = 3


def port_was_taken(reports):
    return any(report.failed and any(words in report.longreprtext for words in PORT_TAKEN) for report in reports)


def pytest_runtest_protocol(item, nextitem):
    """A test whose port was taken did not show anything: it runs again, with other ports."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for attempt in range(1, TRIES + 1):
        if hasattr(item, "_initrequest"):
            item._initrequest()  # fresh fixtures
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if attempt == TRIES or not port_was_taken(reports):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def born(path, args, log, stdin, cwd, environment):
    """A program, by the nursery if that has all that it needs."""
    global nursery
    arguments = [path, *map(str, args)]
    if nursery is None:
        nursery = Nursery()
    if nursery.takes(environment):
        return nursery.start(arguments, log.fileno(), stdin, cwd, environment)
    arguments.insert(0, sys.executable)
    return subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT, stdin=stdin, cwd=cwd, env=environment)


class Processes:
    """Python programs that run side by side; output goes to files, whatever still runs at the end is killed."""

    def __init__(self, directory):
        self.directory = str(directory)
        self.running = {}

    def start(self, name, program, *args, provider=None, cwd=None, stdin=subprocess.DEVNULL, **env):
        path = program if os.path.isabs(program) else os.path.join(PROGRAMS, program)
        environment = dict(os.environ, **env)
        if provider is not None:
            environment["RDMA_PROVIDER"] = provider
        log = open(os.path.join(self.directory, name + ".log"), "ab")
        with log:
            process = born(path, args, log, stdin, cwd or self.directory, environment)
        self.running[name] = process
        return process

    def output(self, name):
        with open(os.path.join(self.directory, name + ".log"), errors="replace") as log:
            return log.read()

    def wait(self, name, timeout):
        """The output of a program that ends well within `timeout` seconds."""
        try:
            code = self.running[name].wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail("%s did not end within %d s:\n%s" % (name, timeout, self.all_output()))
        if code != 0:
            pytest.fail("%s ended with %d:\n%s" % (name, code, self.all_output()))
        return self.output(name)

    def wait_for(self, name, text, timeout):
        """Waits until `text` is in the output."""
        end = time.monotonic() + timeout
        while text not in self.output(name):
            if self.running[name].poll() is not None or time.monotonic() > end:
                pytest.fail("no %r from %s:\n%s" % (text, name, self.all_output()))
            time.sleep(0.05)

    def stats(self, name):
        """What rdma_tensorflow.stats() says in a program that ends with serve_forever."""
        told = re.compile("^stats (.*)\n", re.MULTILINE)
        seen = len(told.findall(self.output(name)))
        self.running[name].send_signal(signal.SIGUSR1)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            answers = told.findall(self.output(name))
            if len(answers) > seen:
                return json.loads(answers[-1])
            time.sleep(0.05)
        pytest.fail("%s told no statistics:\n%s" % (name, self.all_output()))

    def kill(self, name):
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait()

    def all_output(self):
        return "\n".join("--- %s\n%s" % (name, self.output(name)[-4000:]) for name in self.running)

    def stop(self):
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
        for process in self.running.values():
            process.wait()


@pytest.fixture
def processes(tmp_path):
    group = Processes(tmp_path)
    yield group
    group.stop()


@pytest.fixture(params=PROVIDERS)
def provider(request):
    return request.param
