"""grpc+verbs against plain grpc, in the same minutes: bench.py --out <folder for the table and the plot>.

Every variant has its own parameter server and worker, all alive together; each round runs each case on every variant,
in rotated order; the figures are medians over the rounds. Machines differ and hosts are shared: quote the ratios.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from cases import CASES, MIB

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.join(HERE, "..", "tests", "programs")
EXAMPLE = os.path.join(HERE, "..", "..", "..", "examples", "tensorflow", "distribute.py")
# Name → (protocol, environment).
VARIANTS = {
    "grpc": ("grpc", {}),
    "verbs shm": ("grpc+verbs", {"RDMA_PROVIDER": "shm"}),
    "verbs shm, shared pool": ("grpc+verbs", {"RDMA_PROVIDER": "shm", "RDMA_TF_POOL": "shared"}),
    "verbs tcp": ("grpc+verbs", {"RDMA_PROVIDER": "tcp"}),
}


def free_addresses(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return ["127.0.0.1:%d" % s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def launch(settings, program, *args, core=None, **kwargs):
    env = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2", CUDA_VISIBLE_DEVICES="", **settings)
    command = [sys.executable, program, *map(str, args)]
    if core is not None:
        command = ["taskset", "-c", str(core), *command]
    return subprocess.Popen(command, env=env, text=True, stderr=subprocess.DEVNULL, **kwargs)


class Variant:
    """A parameter server and a worker that waits for orders."""

    def __init__(self, name, pin):
        self.name = name
        protocol, settings = VARIANTS[name]
        ps, worker = free_addresses(2)
        cores = (0, 1) if pin else (None, None)
        server = os.path.join(TESTS, "server.py")
        self.ps = launch(settings, server, "ps", 0, protocol, ps, worker, core=cores[0], stdout=subprocess.DEVNULL)
        self.worker = launch(
            settings,
            os.path.join(HERE, "worker.py"),
            protocol,
            ps,
            worker,
            core=cores[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def wait_ready(self):
        if self.worker.stdout.readline().strip() != "ready":
            raise RuntimeError("the worker of %s did not start" % self.name)

    def measure(self, case, seconds):
        self.worker.stdin.write("%s %g\n" % (case, seconds))
        self.worker.stdin.flush()
        line = self.worker.stdout.readline()
        if not line:
            raise RuntimeError("the worker ended during %s" % case)
        result = json.loads(line)
        return result["steps"] / result["seconds"]

    def stop(self):
        for process in (self.worker, self.ps):
            process.kill()
            process.wait()


def transfers(args):
    """{case: {variant: steps per second}}"""
    names = list(VARIANTS)
    variants, result = {}, {}
    try:
        for name in names:
            variants[name] = Variant(name, args.pin)
            variants[name].wait_ready()
        for case in [c for c in CASES if not args.cases or c in args.cases]:
            rates = {name: [] for name in names}
            for turn in range(args.rounds):
                for i in range(len(names)):
                    name = names[(turn + i) % len(names)]
                    rates[name].append(variants[name].measure(case, args.seconds))
            result[case] = {name: statistics.median(values) for name, values in rates.items()}
            print(case, {k: round(v, 1) for k, v in result[case].items()}, flush=True)
        return result
    finally:
        for variant in variants.values():
            variant.stop()


def line_fit(name, folder):
    """Steps per second of the example: one ps, two workers, asynchronous."""
    protocol, settings = VARIANTS[name]
    ps, *workers = free_addresses(3)
    common = ["--ps_hosts=" + ps, "--worker_hosts=" + ",".join(workers), "--protocol=" + protocol]
    common += ["--learning_rate=0.0001", "--steps=6000", "--steps_to_validate=500"]
    running = [launch(settings, EXAMPLE, "--job_name=ps", *common, cwd=folder, stdout=subprocess.DEVNULL)]
    try:
        for task in range(2):
            own = os.path.join(folder, "%s-%d-%d" % (name.replace(" ", "-"), task, os.getpid()))
            os.makedirs(own, exist_ok=True)
            subprocess.run(["rm", "-rf", os.path.join(own, "checkpoint")], check=True)
            command = ["--job_name=worker", "--task_index=%d" % task, *common]
            running.append(launch(settings, EXAMPLE, *command, cwd=own, stdout=subprocess.PIPE))
        seen = []
        for line in running[1].stdout:
            found = re.match(r"step: (\d+)", line)
            if found:
                seen.append((time.perf_counter(), int(found[1])))
        (t0, s0), (t1, s1) = seen[len(seen) // 3], seen[-1]
        return (s1 - s0) / (t1 - t0)
    finally:
        for process in running:
            process.kill()
            process.wait()


def digits(name, folder):
    protocol, settings = VARIANTS[name]
    ps, *workers = free_addresses(3)
    spec = (protocol, ps, ",".join(workers))
    server = os.path.join(TESTS, "server.py")
    running = []
    try:
        for job, task in (("ps", 0), ("worker", 1)):
            running.append(launch(settings, server, job, task, *spec, stdout=subprocess.PIPE))
        for process in running:
            process.stdout.readline()
        running.append(launch(settings, os.path.join(TESTS, "digits.py"), *spec, stdout=subprocess.PIPE))
        output = running[-1].communicate(timeout=300)[0]
        return float(re.search(r"rate: (\S+) steps/s", output)[1])
    finally:
        for process in running:
            process.kill()
            process.wait()


def trainings(args):
    folder = tempfile.mkdtemp()
    result = {}
    try:
        for title, program in (("line fit, 2 workers", line_fit), ("digits network, 2 workers", digits)):
            rates = {name: [] for name in VARIANTS}
            for _ in range(args.training_rounds):
                for name in VARIANTS:
                    rates[name].append(program(name, folder))
            result[title] = {name: statistics.median(values) for name, values in rates.items()}
            print(title, {k: round(v, 1) for k, v in result[title].items()}, flush=True)
        return result
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)


def cell(case, rate, base):
    nbytes, count = CASES.get(case, (0, 0))
    text = "%.0f" % rate if rate >= 100 else "%.1f" % rate
    if nbytes * count >= 64 << 10:
        text += " (%.2f GB/s)" % (rate * nbytes * count / 1e9)
    return text + ("" if base is None else ", **%.2f×**" % (rate / base))


def table(results):
    names = list(VARIANTS)
    lines = ["| steps per second | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for case, rates in results.items():
        base = rates["grpc"]
        cells = [cell(case, rates[name], None if name == "grpc" else base) for name in names]
        lines.append("| %s | %s |" % (case, " | ".join(cells)))
    return "\n".join(lines) + "\n"


def plot(results, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = [c for c in results if CASES.get(c, (0, 0))[1] == 1]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    sizes = [CASES[c][0] for c in cases]
    for name in VARIANTS:
        left.plot(sizes, [results[c][name] for c in cases], marker="o", label=name)
        big = [c for c in cases if CASES[c][0] >= 64 << 10]
        right.plot([CASES[c][0] for c in big], [results[c][name] * CASES[c][0] / 1e9 for c in big], marker="o", label=name)
    left.set(xscale="log", yscale="log", xlabel="bytes per step", ylabel="steps per second")
    right.set(xscale="log", xlabel="bytes per step", ylabel="GB/s")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle("TensorFlow: one tensor from ps to worker per step")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=".")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--training-rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.6)
    parser.add_argument("--pin", action="store_true", help="one core for the ps, one for the worker")
    parser.add_argument("--cases", nargs="*", help="only these")
    parser.add_argument("--no-trainings", action="store_true")
    args = parser.parse_args()
    args.out = os.path.abspath(args.out)
    os.makedirs(args.out, exist_ok=True)
    busy = os.getloadavg()[0]
    results = transfers(args)
    if not args.no_trainings:
        results.update(trainings(args))
    import tensorflow as tf

    with open(os.path.join(args.out, "tensorflow-bench.md"), "w") as out:
        out.write("# TensorFlow %s: grpc+verbs against plain grpc\n\n" % tf.__version__)
        out.write("Written by `make bench-tensorflow`%s" % (" with --pin" if args.pin else ""))
        out.write(" on %d processors, load average before it %.1f.\n\n" % (os.cpu_count(), busy))
        out.write(table(results))
        out.write("\n![steps per second and GB/s against the size of the tensor](tensorflow-bench.png)\n")
    plot(results, os.path.join(args.out, "tensorflow-bench.png"))


if __name__ == "__main__":
    main()
