"""A parameter server that falls silent after it sent its tensor and before it said that its part of the step is over:
unanswered.py <ps address> <worker address>, with RDMA_PEER_TIMEOUT_MS set."""

import os
import sys

import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator

import rdma_tensorflow  # noqa: F401

tf1 = tf.compat.v1
tf1.disable_v2_behavior()
ps, worker = sys.argv[1:]
silence_ms = int(os.environ["RDMA_PEER_TIMEOUT_MS"])
server = tf.distribute.Server({"ps": [ps], "worker": [worker]}, job_name="worker", protocol="grpc+verbs")


def tell(value):
    print("unanswered: arrived", flush=True)
    return value


with tf.device("/job:ps/task:0"):
    source = tf.random.uniform([1000])
    count = tf1.get_variable("count", initializer=0, use_resource=True)
    step = count.assign_add(1).op
    never = tf1.FIFOQueue(1, [tf.float32], shapes=[[]]).dequeue().op
with tf.device("/job:worker/task:0"):
    arrived = tf1.py_func(tell, [source], tf.float32)
    result = tf.reduce_sum(tf.identity(source))
session = tf1.Session(server.target)
session.run(count.initializer)

# A step that takes longer than the time-out is not silence, before the first connection and after it.
for prepare in (), (result,):
    session.run(prepare)
    try:
        session.run(never, options=tf1.RunOptions(timeout_in_ms=5 * silence_ms // 2))
        raise AssertionError("nobody put anything into the queue")
    except tf.errors.DeadlineExceededError:
        pass
session.run(step)  # TensorFlow's preparation of these graphs waits for the server as under gRPC
print("unanswered: going", flush=True)


def is_blamed(fetches):
    try:
        session.run(fetches)
        raise AssertionError("a step at a stopped server")
    except tf.errors.UnavailableError as error:
        print(error.message, flush=True)
        assert "RDMA_PEER_TIMEOUT_MS=%d" % silence_ms in error.message
        assert cluster_coordinator._is_ps_failure(error)
        assert not cluster_coordinator._is_worker_failure(error)


is_blamed([arrived, never])
print("unanswered: the parameter server", flush=True)
is_blamed(step)  # no tensor of this one goes through the library
is_blamed(result)
print("unanswered: still", flush=True)
for _ in range(60):
    try:
        session.run([result, step])
        print("unanswered: no more", flush=True)
        os._exit(0)  # close() would wait for what was given up
    except tf.errors.UnavailableError as error:
        print("not yet:", error.message, flush=True)
sys.exit(1)
