"""Whole trainings, several processes each, against plain grpc."""

import os
import re

import pytest
from conftest import EXAMPLE, free_addresses

TIMEOUT = 240


def start_line_fit(processes, protocol, provider, workers, *args):
    """The example script: one parameter server, then the workers."""
    addresses = free_addresses(1 + workers)
    hosts = ["--ps_hosts=" + addresses[0], "--worker_hosts=" + ",".join(addresses[1:]), "--protocol=" + protocol]
    common = [*hosts, *args]
    processes.start("ps-" + protocol, EXAMPLE, "--job_name=ps", *common, provider=provider)
    names = []
    for task in range(workers):
        name = "worker%d-%s" % (task, protocol)
        directory = processes.directory + "/" + name
        os.mkdir(directory)
        processes.start(
            name, EXAMPLE, "--job_name=worker", "--task_index=%d" % task, *common, provider=provider, cwd=directory
        )
        names.append(name)
    return names


def end_of(output):
    found = re.search(r"end: step: (\d+), weight: (\S+), biase: (\S+)", output)
    assert found, output
    return int(found[1]), float(found[2]), float(found[3])


@pytest.mark.parametrize("protocol,provider", [("grpc", None), ("grpc+verbs", "shm"), ("grpc+verbs", "tcp")])
def test_distribute_asynchronous_converges(processes, protocol, provider):
    """To the same tolerance under each protocol."""
    names = start_line_fit(
        processes, protocol, provider, 2, "--learning_rate=0.02", "--steps=1500", "--steps_to_validate=500"
    )
    for name in names:
        step, weight, bias = end_of(processes.wait(name, TIMEOUT))
        assert step >= 1500
        assert abs(weight - 2) < 0.3
        assert abs(bias - 10) < 0.3


def counter(processes, name, peer, provider, kind):
    """One of the library's counters in the process `name`, about the peer whose name begins so."""
    (entry,) = processes.stats(name)
    peers = entry["stats"]["peers"]
    (found,) = [each for each in peers if each["peer"].startswith(peer) and each["provider"] == provider]
    return found[kind]


# Plain grpc's results, by test: the provider makes no difference to them.
grpc_results = {}


def synchronous_losses(processes, protocol, provider):
    args = ("--issync=1", "--seed=7", "--learning_rate=0.02", "--steps=250")
    names = start_line_fit(processes, protocol, provider, 2, *args)
    outputs = [processes.wait(name, TIMEOUT) for name in names]
    processes.kill("ps-" + protocol)
    for output in outputs:
        _, weight, bias = end_of(output)
        assert abs(weight - 2) < 0.3
        assert abs(bias - 10) < 0.3
    return [re.findall(r"turn: \d+, loss: \S+", output) for output in outputs]


def test_distribute_synchronous_equals_grpc_bit_by_bit(processes, provider):
    if "line fit" not in grpc_results:
        grpc_results["line fit"] = synchronous_losses(processes, "grpc", None)
    assert [len(lines) for lines in grpc_results["line fit"]] == [250, 250]
    assert synchronous_losses(processes, "grpc+verbs", provider) == grpc_results["line fit"]


def digits(processes, protocol, provider, carried=None):
    ps, *workers = free_addresses(3)
    spec = (protocol, ps, ",".join(workers))
    # The servers first: plain grpc gives up on a worker that it once found absent.
    servers = {"ps-" + protocol: ("ps", 0), "worker1-" + protocol: ("worker", 1)}
    for name, (job, task) in servers.items():
        processes.start(name, "server.py", job, task, *spec, provider=provider)
    for name in servers:
        processes.wait_for(name, "ready", TIMEOUT)
    processes.start("digits-" + protocol, "digits.py", *spec, provider=provider)
    output = processes.wait("digits-" + protocol, TIMEOUT)
    for name in servers:
        if carried is not None:
            (entry,) = processes.stats(name)
            for peer in entry["stats"]["peers"]:
                carried.update(peer["protocols"])
        processes.kill(name)
    found = re.search(r"accuracy: (\S+) weights: (\S+)", output)
    assert found, output
    return float(found[1]), found[2]


def test_digits_network_reaches_the_accuracy_of_grpc(processes, provider):
    if "digits" not in grpc_results:
        grpc_results["digits"] = digits(processes, "grpc", None)
    accuracy, weights = digits(processes, "grpc+verbs", provider)
    assert accuracy > 0.93
    # The same to the last bit: updates are synchronous and in a fixed order.
    assert (accuracy, weights) == grpc_results["digits"]


def test_persistent_buffers_train_the_same(processes, provider, monkeypatch):
    """TensorFlow's first design for verbs, forced: both trainings end as grpc's do."""
    if "line fit" not in grpc_results:
        grpc_results["line fit"] = synchronous_losses(processes, "grpc", None)
    if "digits" not in grpc_results:
        grpc_results["digits"] = digits(processes, "grpc", None)
    monkeypatch.setenv("RDMA_PROTOCOL", "persistent")
    assert synchronous_losses(processes, "grpc+verbs", provider) == grpc_results["line fit"]
    carried = set()
    assert digits(processes, "grpc+verbs", provider, carried) == grpc_results["digits"]
    # Empty tensors have no buffer.
    assert "persistent" in carried and carried <= {"persistent", "eager", "local"}, carried


def test_parameter_server_strategy(processes, provider):
    ps, chief, *workers = free_addresses(4)
    spec = (ps, ",".join(workers), chief)
    for job, task in (("ps", 0), ("worker", 0), ("worker", 1)):
        processes.start("%s%d" % (job, task), "strategy_ps.py", job, task, *spec, provider=provider)
    processes.start("chief", "strategy_ps.py", "chief", 0, *spec, provider=provider)
    assert "trained ok" in processes.wait("chief", TIMEOUT)
    names = ("worker0", "worker1")
    # Of each of the 300 steps: the variables to the worker, the gradients to the ps, the loss to the chief.
    for peer, kind, nbytes in (("ps", "bytes_received", 260), ("ps", "bytes_sent", 260), ("chief", "bytes_sent", 4)):
        moved = [counter(processes, name, "/job:%s/" % peer, provider, kind) for name in names]
        assert min(moved) > 0 and sum(moved) == 300 * nbytes


def test_eager_remote_calls_and_functions(processes, provider):
    ps, worker = free_addresses(2)
    for job in ("ps", "worker"):
        processes.start(job, "server.py", job, 0, "grpc+verbs", ps, worker, provider=provider)
    for job in ("ps", "worker"):
        processes.wait_for(job, "ready", TIMEOUT)
    processes.start("client", "eager.py", ps, worker, provider=provider)
    assert "eager ok" in processes.wait("client", TIMEOUT)
    # See the program: 200,000 bytes in each tensor but the last, which has 4.
    assert counter(processes, "worker", "/job:ps/", provider, "bytes_received") == 10 * 200_000
    assert counter(processes, "ps", "/job:worker/", provider, "bytes_received") == 5 * 200_000
    assert counter(processes, "worker", "/job:client/", provider, "bytes_sent") == 5 * 200_000
    assert counter(processes, "ps", "/job:client/", provider, "bytes_sent") == 5 * 4


def test_multi_worker_mirrored_strategy(processes, provider):
    workers = ",".join(free_addresses(2))
    for task in range(2):
        processes.start("worker%d" % task, "strategy_mirrored.py", task, workers, provider=provider)
    outputs = [processes.wait("worker%d" % task, TIMEOUT) for task in range(2)]
    results = [re.search(r"weights: (.*)", output)[1] for output in outputs]
    assert results[0] == results[1]
