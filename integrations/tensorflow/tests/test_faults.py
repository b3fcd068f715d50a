"""What goes wrong in clusters: late starts, deaths, sizes nobody tried, wrong versions."""

import glob
import os
import re
import subprocess
import sys
import time

import pytest
import rdma_tensorflow
from conftest import DOCS, EXAMPLE, free_addresses
from test_training import end_of

TIMEOUT = 240


def line_fit(addresses, steps, *more):
    return [
        "--ps_hosts=" + addresses[0],
        "--worker_hosts=" + ",".join(addresses[1:]),
        "--learning_rate=0.005",
        "--steps=%d" % steps,
        "--steps_to_validate=100",
        *more,
    ]


def test_parameter_server_started_last(processes, provider):
    args = line_fit(free_addresses(2), 1000)
    processes.start("worker", EXAMPLE, "--job_name=worker", *args, provider=provider)
    time.sleep(8)
    processes.start("ps", EXAMPLE, "--job_name=ps", *args, provider=provider)
    step, weight, bias = end_of(processes.wait("worker", TIMEOUT))
    assert step >= 1000 and abs(weight - 2) < 0.3 and abs(bias - 10) < 0.5


def test_worker_killed_and_restarted(processes, provider):
    args = line_fit(free_addresses(3), 1_000_000)
    processes.start("ps", EXAMPLE, "--job_name=ps", *args, provider=provider)
    for task in range(2):
        directory = "%s/%d" % (processes.directory, task)
        os.mkdir(directory)
        command = ("--job_name=worker", "--task_index=%d" % task, *args)
        processes.start("worker%d" % task, EXAMPLE, *command, provider=provider, cwd=directory)
    processes.wait_for("worker0", "step: ", TIMEOUT)
    processes.wait_for("worker1", "step: ", TIMEOUT)
    processes.kill("worker1")
    seen = processes.output("worker0").count("step: ")
    processes.start("again", EXAMPLE, *command, provider=provider, cwd=directory)
    processes.wait_for("again", "step: ", TIMEOUT)  # trains with the parameter server that knew its predecessor
    assert processes.running["worker0"].poll() is None
    end = time.monotonic() + 60
    while processes.output("worker0").count("step: ") <= seen and time.monotonic() < end:
        time.sleep(0.1)
    assert processes.output("worker0").count("step: ") > seen  # and the other worker never stopped


def test_parameter_server_killed_and_restarted(processes, provider):
    ps, worker = free_addresses(2)
    spec = ("grpc+verbs", ps, worker)
    processes.start("first", "server.py", "ps", 0, *spec, provider=provider)
    processes.start("worker", "survivor.py", *spec, provider=provider)
    processes.wait_for("worker", "survivor: before", TIMEOUT)
    processes.kill("first")
    processes.wait_for("worker", "survivor: noticed", TIMEOUT)
    processes.start("second", "server.py", "ps", 0, *spec, provider=provider)
    output = processes.wait("worker", TIMEOUT)
    assert "survivor: after" in output


def test_tensor_of_2560_mib(processes, provider):
    """Beyond 2^31 bytes, where lengths of 32 bits end."""
    ps, worker = free_addresses(2)
    processes.start("ps", "server.py", "ps", 0, "grpc+verbs", ps, worker, provider=provider)
    processes.start("worker", "huge.py", "grpc+verbs", ps, worker, provider=provider)
    assert "arrived 2684354560 bytes" in processes.wait("worker", 500)


def test_tensor_of_2560_mib_is_too_large_for_plain_grpc(processes):
    """What the test above is compared with. If this fails, TensorFlow has learnt it: change the documentation."""
    ps, worker = free_addresses(2)
    processes.start("ps", "server.py", "ps", 0, "grpc", ps, worker)
    process = processes.start("worker", "huge.py", "grpc", ps, worker)
    assert process.wait(500) == 1
    assert "exceeds the 2GB protobuf limit" in processes.output("worker")


def test_import_after_the_first_operation(processes, provider):
    """TensorFlow's allocators exist by then: tensorflow#37622 aborted here."""
    ps, worker = free_addresses(2)
    processes.start("ps", "server.py", "ps", 0, "grpc+verbs", ps, worker, provider=provider)
    processes.start("worker", "late.py", ps, worker, provider=provider)
    assert "late but right" in processes.wait("worker", TIMEOUT)


def test_deadline_of_the_library_reaches_the_session(processes, provider):
    """RDMA_TIMEOUT_MS; without it only TensorFlow's own timeouts count."""
    ps, worker = free_addresses(2)
    processes.start("ps", "server.py", "ps", 0, "grpc+verbs", ps, worker, provider=provider)
    processes.start("worker", "deadline.py", ps, worker, provider=provider, RDMA_TIMEOUT_MS="4000")
    assert "timed out" in processes.wait("worker", TIMEOUT)


def test_shutdown_leaves_nothing(processes, provider):
    """Threads, files, receives that wait, receives that come later."""
    ps, worker = free_addresses(2)
    processes.start("ps", "server.py", "ps", 0, "grpc+verbs", ps, worker, provider=provider)
    processes.wait_for("ps", "ready", TIMEOUT)
    processes.start("worker", "stopped.py", ps, worker, provider=provider)
    assert "nothing left" in processes.wait("worker", TIMEOUT)
    # The parameter server hears of it in its own time.
    end = time.monotonic() + TIMEOUT
    while True:
        (entry,) = processes.stats("ps")
        (peer,) = [peer for peer in entry["stats"]["peers"] if peer["provider"] == provider]
        left = entry["stats"]["responses_pending"], peer["connects"], peer["disconnects"]
        if left == (0, 1, 1):
            break
        assert time.monotonic() < end, left
        time.sleep(0.05)


def run(program, **env):
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env={**os.environ, **env})


def test_r22_descriptors_per_server(provider):
    """What each further server of a process takes, gRPC's socket included: no more than the documentation says."""
    addresses = free_addresses(3)
    program = (
        "import os, rdma_tensorflow, tensorflow as tf\n"
        "kept = []\n"
        "for task in range(3):\n"
        "    before = len(os.listdir('/proc/self/fd'))\n"
        "    kept.append(tf.distribute.Server({'ps': %r}, job_name='ps', task_index=task, protocol='grpc+verbs'))\n"
        "print('descriptors', len(os.listdir('/proc/self/fd')) - before)\n" % addresses
    )
    result = run(program, RDMA_PROVIDER=provider)
    assert result.returncode == 0, result.stderr
    taken = int(re.search(r"descriptors (\d+)", result.stdout)[1])
    with open(DOCS) as docs:
        told = re.search(r"an idle server takes (\d+) on shm, (\d+) on tcp", docs.read())
    assert taken <= 1 + int(told[1 + ("shm", "tcp").index(provider)])


def test_import_leaves_tensors_the_memory_of_the_machine():
    """The pooling allocator has a limit of its own; what the user set stays."""
    told = (
        "import rdma_tensorflow, tensorflow as tf, ctypes\n"
        "getenv = ctypes.CDLL(None).getenv\n"
        "getenv.restype = ctypes.c_char_p\n"
        "print('limit', getenv(b'TF_CPU_BFC_MEM_LIMIT_IN_MB').decode(), flush=True)\n"
        "tf.zeros([100 << 18])\n"
    )
    result = run(told)
    assert result.returncode == 0, result.stderr
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") // (1 << 20)
    assert "limit %d\n" % max(physical, 1 << 16) in result.stdout
    result = run(told, TF_CPU_BFC_MEM_LIMIT_IN_MB="64")
    assert result.returncode == 1
    assert "limit 64\n" in result.stdout
    assert "ResourceExhaustedError" in result.stderr  # TensorFlow does read this variable


def test_import_does_not_start_cuda(tmp_path):
    """A process may import, fork and only then use a GPU. This driver ends whoever starts it."""
    names = ("cuPointerGetAttribute", "cuCtxSetCurrent", "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2")
    stubs = "".join("int %s(void) { return 0; }\n" % name for name in (*names, "cuMemGetHandleForAddressRange"))
    source = tmp_path / "cuda.c"
    source.write_text("#include <unistd.h>\nint cuInit(unsigned flags) { _exit(99); }\n" + stubs)
    library = str(tmp_path / "libcuda.so.1")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, str(source)], check=True)
    program = "import rdma_tensorflow\nprint('driver', 'libcuda.so.1' in open('/proc/self/maps').read())"
    result = run(program, LD_LIBRARY_PATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "driver True" in result.stdout


def test_other_versions_refuse_to_load():
    result = run("import tensorflow as tf; tf.__version__ = '2.14.0'; import rdma_tensorflow")
    assert result.returncode != 0
    known = " and ".join(rdma_tensorflow.SUPPORTED_TENSORFLOW)
    assert "supports TensorFlow %s; this is TensorFlow 2.14.0" % known in result.stderr


def test_plugin_of_another_version_refuses_to_load():
    """Even when somebody loads the file by hand: an error, not a crash."""
    folder = os.path.join(os.path.dirname(rdma_tensorflow.__file__), "lib")
    own = rdma_tensorflow.versions()["tensorflow"].replace(".", "_")
    others = [path for path in glob.glob(folder + "/rdma_tf_*.so") if own not in path]
    if not others:
        pytest.skip("the wheel holds one plugin only (TF_VERSIONS)")
    for path in others:
        result = run("import tensorflow as tf; tf.load_library(%r)" % path)
        assert result.returncode == 1
        assert re.search(r"NotFoundError|undefined symbol", result.stderr), result.stderr


def test_interpreter_ends_cleanly_with_a_running_server():
    address = free_addresses(1)[0]
    program = (
        "import rdma_tensorflow, tensorflow as tf\n"
        "s = tf.distribute.Server({'worker': ['%s']}, job_name='worker', protocol='grpc+verbs')\n"
        "assert len(rdma_tensorflow.stats()) == 1\n"
        "print('leaving')\n" % address
    )
    result = run(program)
    assert result.returncode == 0, result.stderr
    assert "leaving" in result.stdout
