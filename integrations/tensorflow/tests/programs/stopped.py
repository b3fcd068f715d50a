"""Ends the transport in a living process: stopped.py <ps address> <worker address>."""

import os
import sys

import tensorflow as tf

import rdma_tensorflow

tf1 = tf.compat.v1
tf1.disable_v2_behavior()


def threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/%s/comm" % task) as comm:
                names.append(comm.read().strip())
        except (FileNotFoundError, ProcessLookupError):
            pass  # It ended meanwhile: TensorFlow's own threads come and go.
    return [name for name in names if name.startswith("rdma")]


ps, worker = sys.argv[1:]
assert threads() == []
files = len(os.listdir("/proc/self/fd"))
server = tf.distribute.Server({"ps": [ps], "worker": [worker]}, job_name="worker", protocol="grpc+verbs")
with tf.device("/job:ps/task:0"):
    source = tf.random.uniform([100_000])
    never = tf1.FIFOQueue(1, [tf.float32], shapes=[[]]).dequeue()
with tf.device("/job:worker/task:0"):
    result = tf.reduce_sum(tf.identity(source))
    waits = tf.identity(never) + 1.0
session = tf1.Session(server.target)
for _ in range(3):
    session.run(result)
assert threads() != []
assert sum(peer["bytes_received"] for peer in rdma_tensorflow.stats()[0]["stats"]["peers"]) == 3 * 400_000

# A receive that waits while the transport ends, then one that comes later.
import threading  # noqa: E402

caught = []


def wait():
    try:
        session.run(waits)
    except tf.errors.OpError as error:
        caught.append(error)


waiting = threading.Thread(target=wait)
waiting.start()
waiting.join(1)
assert waiting.is_alive()
rdma_tensorflow.shutdown()
waiting.join(30)
assert not waiting.is_alive() and isinstance(caught[0], (tf.errors.CancelledError, tf.errors.UnavailableError)), caught
try:
    session.run(result)
    raise AssertionError("a receive without a transport")
except tf.errors.UnavailableError as error:
    assert "server stopped" in error.message, error.message
assert threads() == [], threads()
assert [entry["stats"] for entry in rdma_tensorflow.stats()] == [None]
links = [os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + fd)]
assert not any("rdma" in link or "memfd" in link for link in links), links
rdma_tensorflow.shutdown()  # again: nothing
print("nothing left", flush=True)
