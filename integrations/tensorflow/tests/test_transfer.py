"""What crosses between two workers: every kind of tensor, exactly, through the library."""

import os
import re
import subprocess
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2

import rdma_tensorflow
from conftest import DOCS, PROVIDERS, Processes, free_addresses

tf1 = tf.compat.v1
PS = "/job:ps/task:0"
WORKER = "/job:worker/task:0"
REPOSITORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")


def plain_config():
    """No optimiser may move an operation or fold a constant."""
    config = tf1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf1.OptimizerOptions.L0
    return config


class Pair:
    """A parameter server in another process, a worker in this one."""

    def __init__(self, provider, processes):
        ps, worker = free_addresses(2)
        self.provider = provider
        self.processes = processes
        self.ps = processes.start("ps", "server.py", "ps", 0, "grpc+verbs", ps, worker, provider=provider)
        before = os.environ.get("RDMA_PROVIDER")
        os.environ["RDMA_PROVIDER"] = provider
        try:
            self.server = tf.distribute.Server(
                tf.train.ClusterSpec({"ps": [ps], "worker": [worker]}),
                job_name="worker",
                task_index=0,
                protocol="grpc+verbs",
            )
        finally:
            if before is None:
                del os.environ["RDMA_PROVIDER"]
            else:
                os.environ["RDMA_PROVIDER"] = before
        self.address = worker
        processes.wait_for("ps", "ready", 120)

    def session(self, graph):
        return tf1.Session(self.server.target, graph=graph, config=plain_config())

    def stats(self):
        """The statistics of this worker's manager."""
        mine = [entry["stats"] for entry in rdma_tensorflow.stats() if entry["name"].endswith("@" + self.address)]
        assert len(mine) == 1
        return mine[0]

    def responses_pending(self):
        """Requests that the parameter server still holds; it learns of their end by a message, so wait a little."""
        for _ in range(50):
            (entry,) = self.processes.stats("ps")
            if entry["stats"]["responses_pending"] == 0:
                break
            time.sleep(0.1)
        return entry["stats"]["responses_pending"]

    def received(self):
        """Bytes of content that came from the parameter server so far."""
        return sum(peer["bytes_received"] for peer in self.stats()["peers"])

    def peer(self):
        """The library's counters of the parameter server, as this worker sees it."""
        peers = [peer for peer in self.stats()["peers"] if peer["peer"].startswith("/job:ps/")]
        assert len(peers) == 1
        return peers[0]


@pytest.fixture(scope="module", params=PROVIDERS)
def pair(request, tmp_path_factory):
    processes = Processes(tmp_path_factory.mktemp("pair"))
    yield Pair(request.param, processes)
    processes.stop()


MEMCPY_TYPES = [
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128",
]  # fmt: skip
# Types of less than 8 bits and the like; every version of TensorFlow has more of them.
SMALL_TYPES = sorted(
    kind.name for kind in vars(tf.dtypes.experimental).values() if isinstance(kind, tf.DType)
)
# Type, and the type of its bits that NumPy knows.
BITCAST_TYPES = [
    ("qint8", "int8"), ("quint8", "uint8"), ("qint16", "int16"), ("quint16", "uint16"), ("qint32", "int32"),
]  # fmt: skip
# Tested below under their own names.
OTHER_TYPES = ["string", "resource", "variant"]


def test_no_type_is_left_out():
    known = {tf.as_dtype(number).name for number in types_pb2.DataType.values() if 0 < number < 100}
    tested = {*MEMCPY_TYPES, *SMALL_TYPES, *(name for name, _ in BITCAST_TYPES), *OTHER_TYPES}
    assert known - tested == set()


@pytest.mark.parametrize("name", MEMCPY_TYPES + SMALL_TYPES)
def test_memcpy_type(pair, name):
    dtype = tf.as_dtype(name)
    # What the type can hold, down to a sign bit and one more; other bits of NumPy's byte mean nothing.
    values = np.arange(1000) % (2 if name == "int2" else 4) if name in SMALL_TYPES else np.arange(-3, 997)
    values = values.reshape(10, 100).astype(dtype.as_numpy_dtype)
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            source = tf.identity(tf1.placeholder_with_default(values, [10, 100]))
        with tf.device(WORKER):
            result = tf.identity(source)
        with pair.session(graph) as session:
            moved = pair.received()
            for _ in range(2):  # first without cached metadata, then with
                got = session.run(result)
                assert got.dtype == values.dtype
                assert got.tobytes() == values.tobytes()
            assert pair.received() - moved == 2 * values.nbytes


@pytest.mark.parametrize("name,bits", BITCAST_TYPES)
def test_bitcast_type(pair, name, bits):
    values = np.arange(100).astype(bits)
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            source = tf.bitcast(tf.identity(tf1.placeholder_with_default(values, [100])), tf.as_dtype(name))
        with tf.device(WORKER):
            result = tf.bitcast(tf.identity(source), tf.as_dtype(bits))
        with pair.session(graph) as session:
            assert session.run(result).tobytes() == values.tobytes()


@pytest.mark.parametrize("shape", [[], [0], [3, 0, 5], [1] * 8, [7, 11, 13]])
def test_shape(pair, shape):
    values = np.random.RandomState(1).standard_normal(shape).astype(np.float32)
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            source = tf.identity(tf1.placeholder_with_default(values, shape))
        with tf.device(WORKER):
            result = tf.identity(source)
        with pair.session(graph) as session:
            for _ in range(2):
                got = session.run(result)
                assert got.shape == tuple(shape)
                assert got.tobytes() == values.tobytes()


@pytest.mark.parametrize(
    "strings",
    [[], [b""], [b"a", "\u00e4\u4e2d".encode(), b"\0\xff"], [b"x" * 3_000_000, b"", b"y" * 17], [b"%d" % i for i in range(5000)]],
    ids=["none", "empty", "bytes", "long", "many"],
)
def test_strings(pair, strings):
    values = np.array(strings, dtype=object)
    with tf.Graph().as_default() as graph:
        feed = tf1.placeholder(tf.string, [len(strings)])
        with tf.device(PS):
            source = tf.identity(feed)
        with tf.device(WORKER):
            result = tf.identity(source)
        with pair.session(graph) as session:
            assert session.run(result, {feed: values}).tolist() == strings


def test_variant(pair):
    values = np.arange(30, dtype=np.float32).reshape(10, 3)
    with tf.Graph().as_default() as graph:
        scalar = tf.constant([], tf.int32)
        with tf.device(PS):
            source = tf.raw_ops.TensorListFromTensor(tensor=tf.identity(values), element_shape=[3])
            texts = tf.raw_ops.TensorListFromTensor(tensor=tf.constant(["a", "b"]), element_shape=scalar)
        with tf.device(WORKER):
            result = tf.raw_ops.TensorListStack(
                input_handle=tf.identity(source), element_shape=[3], element_dtype=tf.float32
            )
            read = tf.raw_ops.TensorListStack(
                input_handle=tf.identity(texts), element_shape=scalar, element_dtype=tf.string
            )
        with pair.session(graph) as session:
            got, text = session.run([result, read])
            assert got.tobytes() == values.tobytes()
            assert text.tolist() == [b"a", b"b"]


def test_dead_tensors(pair):
    with tf.Graph().as_default() as graph:
        feed = tf1.placeholder(tf.bool, [])
        with tf.device(PS):
            off, on = tf.raw_ops.Switch(data=tf.constant([1.5, 2.5]), pred=tf.identity(feed))
        with tf.device(WORKER):
            merged, index = tf.raw_ops.Merge(inputs=[tf.identity(off) * 10, tf.identity(on) * 100])
        with pair.session(graph) as session:
            for choice in (True, False, True):
                got, which = session.run([merged, index], {feed: choice})
                assert which == int(choice)
                assert got.tolist() == ([150.0, 250.0] if choice else [15.0, 25.0])


def test_resource_of_another_worker_is_an_error(pair):
    """A resource lives where it was made: its handle crosses, using it elsewhere fails as it does under grpc."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2], shared_name="handle-%s" % pair.provider)
            assign = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant([1.0, 2.0]))
            # The placer keeps a bare handle where it was made; inside a variant it travels.
            boxed = tf.raw_ops.OptionalFromValue(components=[handle])
        with tf.device(WORKER):
            (read,) = tf.raw_ops.OptionalGetValue(
                optional=tf.identity(boxed), output_types=[tf.resource], output_shapes=[[]]
            )
            value = tf.raw_ops.ReadVariableOp(resource=read, dtype=tf.float32)
        with pair.session(graph) as session:
            session.run(assign)
            with pytest.raises(tf.errors.OpError, match="esource"):
                session.run(value)


def test_shape_changes_each_step(pair):
    with tf.Graph().as_default() as graph:
        size = tf1.placeholder(tf.int32, [])
        with tf.device(PS):
            source = tf.range(size, dtype=tf.int32)
        with tf.device(WORKER):
            result = tf.identity(source)
        with pair.session(graph) as session:
            for n in [1, 1000, 0, 7, 300_000, 300_001, 2, 65_536, 3, 1_000_000, 0, 1]:
                assert np.array_equal(session.run(result, {size: n}), np.arange(n))


def test_counters_equal_the_bytes_sent(pair):
    sizes = [1, 100, 5_000, 70_000, 1_000_000]
    with tf.Graph().as_default() as graph:
        results = []
        for n in sizes:
            with tf.device(PS):
                source = tf.fill([n], np.float32(n))
            with tf.device(WORKER):
                results.append(tf.reduce_max(tf.identity(source)))
        with tf.device(WORKER):
            together = tf.stack(results)
        with pair.session(graph) as session:
            session.run(together)
            before = pair.peer()
            for _ in range(10):
                assert session.run(together).tolist() == [float(n) for n in sizes]
            after = pair.peer()
    assert after["bytes_received"] - before["bytes_received"] == 10 * sum(4 * n for n in sizes)
    assert after["requests_sent"] - before["requests_sent"] == 10 * len(sizes)
    assert after["provider"] == pair.provider


def test_nothing_is_copied_on_the_way(pair):
    """Large tensors are written or read straight between TensorFlow's own buffers, never through a proxy."""
    n = 3_000_000
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            source = tf.fill([n], np.float32(1))
        with tf.device(WORKER):
            there = tf.identity(source)
            result = tf.reduce_sum(there)
        with tf.device(PS):
            back = tf.reduce_sum(tf.identity(there))
        with pair.session(graph) as session:
            session.run([result, back])  # connects
            before, (ps_before,) = pair.peer()["protocols"], pair.processes.stats("ps")
            for _ in range(4):
                assert session.run([result, back]) == [n, n]
            after, (ps_after,) = pair.peer()["protocols"], pair.processes.stats("ps")
    direct = [sum(protocols.get(kind, 0) for kind in ("direct_put", "direct_get")) for protocols in (before, after)]
    assert direct[1] - direct[0] == 8  # four each way
    assert pair.stats()["proxy_bytes"] == 0
    assert ps_after["stats"]["proxy_bytes"] == 0
    # What the library held for them, it gave back; it allocated nothing of its own.
    assert ps_after["stats"]["pool_used_bytes"] == ps_before["stats"]["pool_used_bytes"]
    # The result of a large tensor lies in memory that the allocator's visitor registered.
    assert pair.stats()["registered_bytes"] > 4 * n
    assert ps_after["stats"]["registered_bytes"] > 4 * n


def test_error_of_the_sender_keeps_code_and_message(pair):
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            bad = tf.debugging.check_numerics(tf.constant([1.0]) / tf.constant([0.0]), "the sender says no")
        with tf.device(WORKER):
            result = tf.identity(bad) + 1
        with pair.session(graph) as session:
            with pytest.raises(tf.errors.InvalidArgumentError, match="the sender says no"):
                session.run(result)


def test_timeout_cancels_the_receive(pair):
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            queue = tf1.FIFOQueue(10, [tf.float32], shapes=[[4]], shared_name="never-%s" % pair.provider)
            put = queue.enqueue([tf.constant([1.0, 2.0, 3.0, 4.0])])
            waiting = queue.dequeue()
        with tf.device(WORKER):
            result = tf.identity(waiting) * 2
        with pair.session(graph) as session:
            for _ in range(3):
                with pytest.raises(tf.errors.DeadlineExceededError):
                    session.run(result, options=tf1.RunOptions(timeout_in_ms=300))
            session.run(put)
            assert session.run(result).tolist() == [2.0, 4.0, 6.0, 8.0]
    assert pair.stats()["requests_pending"] == 0
    assert pair.responses_pending() == 0


def test_error_elsewhere_aborts_the_step(pair):
    """A receive that waits for a tensor which will not come ends with the step, on both sides."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            queue = tf1.FIFOQueue(10, [tf.float32], shapes=[[4]], shared_name="aborted-%s" % pair.provider)
            waiting = queue.dequeue()
        with tf.device(WORKER):
            result = tf.identity(waiting) * 2
            late = tf.py_function(lambda: time.sleep(0.5) or 1.0, [], tf.float32)
            bad = tf.debugging.check_numerics(late / 0.0, "somebody else failed")
        with pair.session(graph) as session:
            begin = time.monotonic()
            with pytest.raises(tf.errors.InvalidArgumentError, match="somebody else failed"):
                session.run([result, bad])
            assert time.monotonic() - begin < 30
    assert pair.stats()["requests_pending"] == 0
    assert pair.responses_pending() == 0


def test_abort_while_receives_start(pair):
    """An abort may come between any two lines of a receive's start; none may be lost."""
    with tf.Graph().as_default() as graph:
        with tf.device(PS):
            sources = [tf.identity(tf1.placeholder_with_default([float(i)], [1])) for i in range(40)]
        with tf.device(WORKER):
            result = tf.add_n([tf.identity(each) for each in sources])
            bad = tf.debugging.check_numerics(tf1.placeholder_with_default([np.nan], [1]), "at once")
        with pair.session(graph) as session:

            def rounds():
                for _ in range(200):
                    with pytest.raises(tf.errors.InvalidArgumentError, match="at once"):
                        session.run([result, bad])

            thread = threading.Thread(target=rounds, daemon=True)
            thread.start()
            thread.join(120)
            assert not thread.is_alive()
    assert pair.stats()["requests_pending"] == 0
    assert pair.responses_pending() == 0


def test_abort_before_a_receive_starts():
    """The abort that luck alone brings above, by the plugin's own classes."""
    program = os.path.join(REPOSITORY, "build", "tensorflow", tf.__version__, "receive_test")
    libraries = [os.path.join(os.path.dirname(rdma_tensorflow.__file__), "lib"), tf.sysconfig.get_lib()]
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join(libraries))
    done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def test_closed_session_ends_its_receives(pair):
    graph = tf.Graph()
    with graph.as_default():
        with tf.device(PS):
            queue = tf1.FIFOQueue(10, [tf.float32], shapes=[[4]], shared_name="closed-%s" % pair.provider)
            waiting = queue.dequeue()
        with tf.device(WORKER):
            result = tf.identity(waiting) * 2
    session = pair.session(graph)
    outcome = []

    def run():
        try:
            outcome.append(session.run(result))
        except tf.errors.OpError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(1)
    assert thread.is_alive()
    session.close()
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(outcome[0], tf.errors.OpError)
    assert pair.stats()["requests_pending"] == 0
    assert pair.responses_pending() == 0


def test_r22_fields_of_stats_are_documented(pair):
    """In both directions: none is missing from the documentation, none is in it that is not there."""

    def names(value):
        if isinstance(value, list):
            return set().union(*map(names, value))
        if not isinstance(value, dict):
            return set()
        open_ended = ("completions", "protocols")
        return {*value, *(name for key in value if key not in open_ended for name in names(value[key]))}

    with open(DOCS) as docs:
        section = docs.read().split("**Statistics.**")[1].split("**Descriptors.**")[0]
    told = {name for row in section.splitlines() if row.startswith("| `") for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    (pair.session(tf.Graph())).close()
    latency = {"count", "sum", "p50", "p90", "p99", "buckets"}
    assert names(pair.stats()) - latency == told
    assert all("`%s`" % name in section for name in latency)


def usage(pid):
    with open("/proc/%d/status" % pid) as status:
        fields = dict(line.split(":", 1) for line in status)
    return {
        "memory": int(fields["VmRSS"].split()[0]),
        "threads": int(fields["Threads"]),
        "files": len(os.listdir("/proc/%d/fd" % pid)),
    }


def test_hundred_sessions_leave_nothing(pair):
    def once(i):
        with tf.Graph().as_default() as graph:
            with tf.device(PS):
                source = tf.fill([100_000], np.float32(i))
            with tf.device(WORKER):
                result = tf.reduce_sum(tf.identity(source))
            with pair.session(graph) as session:
                assert session.run(result) == 100_000.0 * i

    for i in range(30):
        once(i)
    pids = (os.getpid(), pair.ps.pid)
    before = [usage(pid) for pid in pids]
    for i in range(100):
        once(i)
    after = [usage(pid) for pid in pids]
    for was, now in zip(before, after):
        assert now["threads"] <= was["threads"] + 2
        assert now["files"] <= was["files"] + 2
        # One leaked tensor per session would be 40 MB. TensorFlow itself keeps a little per graph.
        assert now["memory"] <= was["memory"] + 20_000
