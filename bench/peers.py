"""What the benchmarks share: UCX and Open MPI as peers, the order of measuring, and what is said of the machine."""
import csv
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time

UCX = {
    "UCX tag": {"latency": "tag_lat", "rate": "tag_bw", "bandwidth": "tag_bw"},
    "UCX AM": {"latency": "ucp_am_lat", "rate": "ucp_am_bw", "bandwidth": "ucp_am_bw"},
    # For any thread to call, as this library always is.
    "UCX tag, threads": {"latency": "tag_lat", "rate": "tag_bw", "bandwidth": "tag_bw", "options": ["-M", "multi"]},
}
UCX_ENVIRONMENT = {
    "shm": {"UCX_TLS": "posix,cma,self"},
    "tcp": {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"},
}
OB1 = ["--mca", "pml", "ob1", "--mca", "mpi_yield_when_idle", "0", "--oversubscribe", "--bind-to", "none", "--mca", "btl"]
OB1_WAYS = {"shm": ["self,vader"], "tcp": ["self,tcp", "--mca", "btl_tcp_if_include", "lo"]}
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
UNITS = {"latency": "us", "ready": "us", "rate": "M/s", "bandwidth": "GB/s"}
port = [13500 + os.getpid() % 1000]


def clean_environment(**more):
    """This process's, without what would change the settings of anybody measured."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("RDMA_", "UCX_", "OMPI_"))} | more


def complain(command, done):
    print(f"\n{' '.join(command)}: {done.stderr.strip()[-500:]}", file=sys.stderr)


def repeats(size, microseconds):
    """So many that it takes about a tenth of a second."""
    return max(8, min(200000, int(0.1 / (microseconds * 1e-6 + size / 3e9))))


def ucx(provider, tests, mode, size, window):
    """One point of UCX."""
    count = repeats(size, 2 if provider == "shm" else 8)
    environment = clean_environment(UCX_LOG_LEVEL="error", **UCX_ENVIRONMENT[provider])
    port[0] += 1
    common = ["ucx_perftest", "-p", str(port[0]), *tests.get("options", [])]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    command = common + ["127.0.0.1", "-c", "0", "-t", tests[mode], "-s", str(size), "-n", str(count), "-w",
                        str(max(4, count // 10)), "-O", str(window), "-f", "-v"]
    with subprocess.Popen(common + ["-c", "1"], **quiet) as server:
        try:
            for _ in range(20):
                time.sleep(0.05)
                done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
                lines = done.stdout.strip().splitlines()
                if done.returncode == 0 and len(lines) >= 2:
                    # iterations; median, average, overall us; MiB/s average, overall; messages/s average, overall
                    fields = [float(x) for x in lines[-1].split(",")]
                    return {"latency": fields[2], "rate": fields[6] / 1e6, "bandwidth": fields[4] * 2**20 / 1e9}[mode]
        finally:
            server.kill()
    return complain(command, done)


def per_message(mode, size, microseconds):
    """What is reported of a point of which one message took so long."""
    return {"latency": microseconds, "rate": 1 / microseconds, "bandwidth": size / microseconds / 1e3}[mode]


def ob1(peer, ways, how, mode, size, window, rounds):
    """One point of Open MPI, by peer_mpi.c."""
    command = ["mpirun", "-n", "2", *OB1, *ways, peer, how, str(size), str(window), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=clean_environment(**ROOT))
    if done.returncode != 0:
        return complain(command, done)
    return per_message(mode, size, float(done.stdout))


def in_turns(title, who, points, rounds):
    """The figures of each (point, name): each point is measured by each in turn, and another one begins in each round. `who` has
    functions by name, of what makes a point."""
    seen = {(point, name): [] for point in points for name in who}
    names = list(who)
    for number in range(rounds):
        for index, point in enumerate(points):
            print(f"\r{title}: round {number + 1} of {rounds}, point {index + 1} of {len(points)}   ", end="", file=sys.stderr, flush=True)
            for shift in range(len(names)):
                name = names[(shift + number) % len(names)]
                value = who[name](*point)
                if value is not None:
                    seen[point, name].append(value)
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    return {key: values for key, values in seen.items() if values}


def write_csv(path, seen_on, columns, rows):
    """Rows end in a list of figures, and their unit."""
    with open(path, "w", newline="") as file:
        file.writelines(f"# {line}\n" for line in seen_on)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*columns, "median", "lowest", "highest", "unit"])
        for *head, values, unit in rows:
            writer.writerow([*head, *(f"{x:.5g}" for x in (statistics.median(values), min(values), max(values))), unit])


def say_missing():
    for name, package in (("ucx_perftest", "ucx-utils"), ("mpirun", "openmpi-bin")):
        if not shutil.which(name):
            print(f"{name} (Debian: {package}) is not here: no comparison with it")


def first(command, pattern):
    """What the output of a command says, or a question mark."""
    if not shutil.which(command[0]):
        return "?"
    found = re.search(pattern, subprocess.run(command, capture_output=True, text=True).stdout)
    return found[1].strip() if found else "?"


def ucx_version():
    return f"UCX {first(['ucx_info', '-v'], r'Version ([0-9.]+)')}, "


class Ahead:
    """Measured programs go before others of the machine, where that is allowed: by nice, and by that of the session, since Linux
    shares processors among sessions first."""
    FILE = "/proc/self/autogroup"

    def __enter__(self):
        self.session, self.allowed = None, False
        try:
            os.setpriority(os.PRIO_PROCESS, 0, -20)
            self.allowed = True
            self.session = open(self.FILE).read().split()[-1]
            self.write("-20")
        except (OSError, IndexError):
            pass
        return self.allowed

    def write(self, nice):
        with open(self.FILE, "w") as file:
            file.write(nice)

    def __exit__(self, *_):
        if self.session is not None:
            try:
                self.write(self.session)
            except OSError:
                pass


def machine(ahead, before):
    """Where this was seen, in a line; `before`: the load then."""
    load = ["{:.1f}".format(x) for x in (before, os.getloadavg()[0])]
    model = first(["lscpu"], r"Model name:\s*(.+)")
    version = first(["git", "describe", "--always", "--dirty", "--tags"], r"(.+)")
    return (f"{os.cpu_count()} processors ({model}), Linux {platform.release().split('-')[0]}; load average before {load[0]}, after {load[1]}"
            + (", measured programs at nice -20" if ahead else "") + f"; version {version}, {time.strftime('%Y-%m-%d')}")


def facts(rounds, ahead, before, more=""):
    """Lines that say where this was seen; `more` is of who was measured, beside Open MPI."""
    here, _, version = machine(ahead, before).rpartition("; ")
    return [here, f"{more}Open MPI {first(['mpirun', '--version'], r'([0-9.]+)')}; {version}; medians of {rounds} rounds"]
