"""Programs start from a process that has imported TensorFlow: importing takes seconds of a processor, each time, and these
tests start hundreds of programs.

Run as a program this is that process. It imports TensorFlow, and nothing of it runs yet (it has no threads but OpenBLAS's,
which provide for a fork); then it forks for each line of JSON that comes, with the descriptors of the new program's input
and output. The fork forks once more and ends, so that the program becomes a child of the tests, who are its subreaper. In
every other respect the program is one that Python starts: its own process, environment, directory, arguments, and end.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import types

PR_SET_CHILD_SUBREAPER = 36
# What is read while TensorFlow is imported, or before main(), is fixed in the nursery: who sets anything else starts alone.
LATER = ("RDMA_", "GRPC_", "PYTEST_")


class Program:
    """A program that was born in a nursery, with as much of subprocess.Popen as is needed here."""

    def __init__(self, pid, stdin):
        self.pid, self.stdin, self.returncode = pid, stdin, None

    def _reap(self, flags):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, flags)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def poll(self):
        return self._reap(os.WNOHANG)

    def wait(self, timeout=None):
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired(self.pid, timeout)
            time.sleep(0.02)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The tests' side of it."""

    def __init__(self):
        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        self.environment = dict(os.environ)
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # It ends when the tests' end of the socket is gone.
            self.process = subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )

    def takes(self, environment):
        """Whether a program with this environment can start here: it differs in what is read later only."""
        names = set(environment) | set(self.environment)
        return all(name.startswith(LATER) or environment.get(name) == self.environment.get(name) for name in names)

    def start(self, arguments, stdout, stdin, cwd, environment):
        ours = None
        if stdin == subprocess.PIPE:
            stdin, ours = os.pipe()
        elif stdin == subprocess.DEVNULL:
            stdin = os.open(os.devnull, os.O_RDONLY)
        try:
            order = json.dumps({"arguments": arguments, "cwd": cwd, "environment": environment})
            socket.send_fds(self.socket, [order.encode()], [stdin, stdout])
            pid = self.socket.recv(100)
        finally:
            os.close(stdin)
        if not pid:
            raise RuntimeError("the nursery ended with %s" % self.process.wait())
        return Program(int(pid), ours and os.fdopen(ours, "wb", buffering=0))


def serve(listening):
    """Returns in a new program's process only: what was ordered, and its input and output."""
    while True:
        order, descriptors, _, _ = socket.recv_fds(listening, 1 << 20, 2)
        if not order:
            sys.exit()
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            born = os.fork()
            if born == 0:
                for descriptor in (told, tell, listening.fileno()):
                    os.close(descriptor)
                return json.loads(order), descriptors
            os.write(tell, b"%d" % born)
            os._exit(0)
        # Once the one between is gone, the program is the tests' child.
        os.waitpid(between, 0)
        listening.send(os.read(told, 100))
        for descriptor in (told, tell, *descriptors):
            os.close(descriptor)


def live(order, descriptors):
    """What is left until the program's own code runs; that code, and the module for it."""
    for target, descriptor in zip((0, 1), descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.dup2(1, 2)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    sys.argv = order["arguments"]
    path = sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    module = types.ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    with open(path, "rb") as source:
        return compile(source.read(), path, "exec"), module


def main():
    import tensorflow  # noqa: F401

    order = serve(socket.socket(fileno=int(sys.argv[1])))
    code, module = live(*order)
    exec(code, module.__dict__)


if __name__ == "__main__":
    main()
