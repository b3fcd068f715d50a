"""Clusters of processes for the tests, and their end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(HERE, "programs")
EXAMPLE = os.path.join(HERE, "..", "..", "..", "examples", "tensorflow", "distribute.py")
PROVIDERS = ("shm", "tcp")


def free_addresses(count):
    """Addresses nobody listens on at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return ["127.0.0.1:%d" % s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


class Processes:
    """Python programs that run side by side; output goes to files, whatever still runs at the end is killed."""

    def __init__(self, directory):
        self.directory = str(directory)
        self.running = {}

    def start(self, name, program, *args, provider=None, cwd=None, **env):
        path = program if os.path.isabs(program) else os.path.join(PROGRAMS, program)
        environment = dict(os.environ, **env)
        if provider is not None:
            environment["RDMA_PROVIDER"] = provider
        log = open(os.path.join(self.directory, name + ".log"), "ab")
        with log:
            process = subprocess.Popen(
                [sys.executable, path, *map(str, args)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=cwd or self.directory,
                env=environment,
            )
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
