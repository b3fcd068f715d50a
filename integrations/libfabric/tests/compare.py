#!/usr/bin/env python3
"""Runs MPI programs over Open MPI's own ob1 and over the libfabric provider rdmat, and compares what they print, case by case.

usage: compare.py --tests FOLDER --provider FOLDER [--only TEXT] [--ways NAMES] [--long N] [--list]

--tests has mpi_tests, --provider librdmat-fi.so. Each program runs over ob1 first; then in each way that is listed for it: rdmat on
shared memory, rdmat on tcp. A case passes where the program's own checks hold and each rank's digest of what it received is the same as over ob1.
--only: programs whose line contains TEXT. --ways: of shm, tcp. --long N: N times as many operations where a program takes a number. --list: what
there is, with names to give to --only. Ends with "N passed, N failed, N skipped".
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import time

SECONDS = 900  # what a program may take; its cases have limits of their own, in which something has to happen
TRIES = 3  # of ob1, whose runtime now and then loses a process that it has spawned; what it does not do is no reference
COMMON = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
# tcp is for those that are spawned, whom vader does not reach.
OB1 = ["--mca", "pml", "ob1", "--mca", "btl", "self,vader,tcp", "--mca", "btl_tcp_if_include", "lo", "--mca", "osc", "pt2pt"]
RDMAT = ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "rdmat", "--mca", "osc", "pt2pt"]
# One-sided by the provider's own writes and atomics in place of messages.
BTL = ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "opal_common_ofi_provider_include", "rdmat", "--mca", "osc", "rdma",
       "--mca", "btl", "self,ofi"]
WAYS = {"shm": (RDMAT, {"RDMA_PROVIDER": "shm"}), "tcp": (RDMAT, {"RDMA_PROVIDER": "tcp"}),
        "btl": (BTL, {"RDMA_PROVIDER": "shm"})}

# (program, its numbers, ranks, ways). A number grows with --long.
PROGRAMS = [
    ("p2p", [], 2, "shm tcp"),
    ("p2p", [], 5, "shm"),
    ("match", [], 3, "shm tcp"),
    ("complete", [], 2, "shm tcp"),
    ("complete", [], 5, "shm"),
    ("flood", [100000], 2, "shm"),
    ("flood", [30000], 2, "tcp"),
    ("flood", [10000], 4, "shm"),
    ("traffic", [100000], 3, "shm"),
    ("traffic", [30000], 2, "tcp"),
    ("traffic", [30000], 8, "shm"),
    ("types", [], 2, "shm tcp"),
    ("collectives", [], 2, "shm"),
    ("collectives", [], 5, "shm"),
    ("collectives", [], 4, "tcp"),
    ("reductions", [], 3, "shm tcp"),
    ("reductions", [], 8, "shm"),
    ("nonblocking", [], 4, "shm tcp"),
    ("communicators", [], 4, "shm"),
    ("communicators", [], 7, "shm"),
    ("topologies", [], 2, "shm"),
    ("topologies", [], 6, "shm tcp"),
    ("spawn", [], 2, "shm"),
    ("spawn", [], 3, "tcp"),
    ("windows", [], 2, "shm tcp btl"),
    ("windows", [], 3, "shm"),
    ("atomics", [], 2, "btl"),
    ("swaps", [], 3, "shm tcp"),  # not btl: Open MPI's own btl ofi falls over in it, with libfabric's sockets as well
    ("atomics", [], 4, "shm tcp"),
    ("threads", [], 2, "shm tcp"),
    ("threads", [], 4, "shm"),
    ("cg", [200], 2, "shm"),
    ("cg", [201], 5, "shm tcp"),
    ("sort", [1 << 20], 4, "shm tcp"),
    ("sort", [1 << 18], 7, "shm"),
    ("stopped", [], 3, "shm tcp"),
]
LONGER = ("flood", "traffic", "sort")
# A rank is killed: mpirun ends. Bytes that are on their way then.
KILLED = [(3, 0, "shm tcp"), (2, 1 << 26, "shm tcp"), (4, 5000, "shm")]


class Runs:
    def __init__(self, tests, provider):
        self.program = os.path.abspath(os.path.join(tests, "mpi_tests"))
        self.provider = os.path.abspath(provider)
        self.passed, self.failed, self.skipped = 0, 0, 0
        self.known = {}

    def run(self, way, ranks, arguments, seconds=SECONDS):
        """(exit status or None, output, messages, seconds)."""
        options, more = (OB1, {}) if way == "ob1" else WAYS[way]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("RDMA_", "FI_", "OMPI_", "PMIX_"))}
        environment.update({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        if way != "ob1":
            environment.update({"FI_PROVIDER_PATH": self.provider, "MPI_TESTS_STRICT": "1", **more})
        began = time.monotonic()
        process = subprocess.Popen(["mpirun", "-n", str(ranks), *COMMON, *options, self.program, *map(str, arguments)], text=True,
                                   errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=environment, start_new_session=True)
        try:
            said, complained = process.communicate(timeout=seconds)
            code = process.returncode
        except subprocess.TimeoutExpired:
            # mpirun ends its ranks when it is asked to; whatever does not end then is killed.
            process.terminate()
            try:
                said, complained = process.communicate(timeout=15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                said, complained = process.communicate()
            code = None
        return code, said, complained, time.monotonic() - began

    def cases(self, said):
        """What a program printed, by case: its digests, or None where its own checks failed; what it skipped; whether it came to its end."""
        found, skips = {}, {}
        for line in said.splitlines():
            if match := re.match(r"(case|FAILED|value) ([^ ]+): ?(.*)", line):
                found[match[1] == "value" and "value " + match[2] or match[2]] = None if match[1] == "FAILED" else match[3]
            elif match := re.match(r"SKIPPED ([^ ]+): (.*)", line):
                skips[match[1]] = match[2]
        return found, skips, "end" in said.splitlines()

    def over_ob1(self, ranks, arguments):
        """The cases of a run that came to its end, or of the last of several that did not."""
        key = (ranks, *arguments)
        for _ in range(TRIES if key not in self.known else 0):
            code, said, complained, took = self.run("ob1", ranks, arguments)
            self.known[key], _, ended = self.cases(said)
            if code == 0 and ended:
                break
            print(f"ob1 itself: exit status {code} after {took:.0f} s\n{said[-2000:]}{complained[-3000:]}", flush=True)
        return self.known[key]

    def compare(self, way, ranks, arguments):
        title = f"{' '.join(map(str, arguments))}, {ranks} ranks, {way}"
        wanted = self.over_ob1(ranks, arguments)
        code, said, complained, took = self.run(way, ranks, arguments)
        if code != 0 and "PMIx_Init" in complained:
            # Open MPI's runtime: a process that it has spawned waits in PMIx_Init, before any provider is asked for, for an answer that is lost.
            print(f"{title}: the runtime waits for a process that it has spawned (PMIx_Init); once more", flush=True)
            code, said, complained, took = self.run(way, ranks, arguments)
        found, skips, ended = self.cases(said)
        wrong = []
        for name in dict.fromkeys([*wanted, *found]):
            if wanted.get(name) is None:
                # What cannot be over ob1 says nothing about the provider; it has to hold by itself.
                if found.get(name) is not None and name in wanted:
                    self.skip(f"{name} ({title})", "ob1 itself fails here")
                else:
                    wrong.append(f"{name}: {'not seen over ob1' if name in found else 'failed over ob1, and here'}")
            elif name not in found:
                wrong.append(f"{name}: did not come to its end")
            elif found[name] is None:
                wrong.append(f"{name}: its own checks fail")
            elif found[name] != wanted[name]:
                wrong.append(f"{name}: {found[name]} instead of {wanted[name]}")
            else:
                self.passed += 1
        for name, why in skips.items():
            self.skip(f"{name} ({title})", why)
        if not wrong and (code != 0 or not ended):
            wrong.append(f"exit status {code}")
        self.failed += len(wrong)
        print(f"{'FAILED' if wrong else 'ok    '} {title}: {len(found)} cases, {took:.0f} s", flush=True)
        if wrong:
            print("\n".join("  " + line for line in wrong))
            print(f"  exit status {'none: it was ended' if code is None else code}; it said:\n{said[-3000:]}{complained[-6000:]}", flush=True)

    def skip(self, name, why):
        self.skipped += 1
        print(f"SKIPPED {name}: {why}", flush=True)

    def killed(self, way, ranks, size):
        """mpirun ends by itself, and says that it did not go well; nobody got a message that was not sent."""
        before = set(os.listdir("/dev/shm"))
        code, said, complained, took = self.run(way, ranks, ["killed", size], 90)
        time.sleep(0.5)
        left = {name for name in set(os.listdir("/dev/shm")) - before if "vader" not in name and "ompi" not in name}
        good = code not in (0, None) and "FAILED" not in said and "hangs" not in complained
        title = f"killed, {ranks} ranks, {size} bytes on their way, {way}"
        print(f"{'ok    ' if good else 'FAILED'} {title}: exit status {code}, {took:.0f} s" + (f"; left in /dev/shm: {sorted(left)}" if left else ""),
              flush=True)
        if good:
            self.passed += 1
        else:
            self.failed += 1
            print(said[-2000:] + complained[-3000:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", required=True)
    parser.add_argument("--provider", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--long", type=int, default=1)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    runs, ways = Runs(arguments.tests, arguments.provider), arguments.ways.split(",")
    for program, numbers, ranks, over in PROGRAMS:
        words = [program, *(n * arguments.long if program in LONGER else n for n in numbers)]
        for way in over.split():
            title = f"{' '.join(map(str, words))} {ranks} {way}"
            if way not in ways or arguments.only not in title:
                continue
            if arguments.list:
                print(title)
            else:
                runs.compare(way, ranks, words)
    for ranks, size, over in KILLED:
        for way in over.split():
            title = f"killed {size} {ranks} {way}"
            if way in ways and arguments.only in title:
                print(title) if arguments.list else runs.killed(way, ranks, size)
    if arguments.list:
        return 0
    print(f"{runs.passed} passed, {runs.failed} failed, {runs.skipped} skipped")
    return 1 if runs.failed else 0


if __name__ == "__main__":
    sys.exit(main())
