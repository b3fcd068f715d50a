"""A parameter server that falls silent without dying, wherever in a step: stalled.py <ps address> <worker address>,
with RDMA_PEER_TIMEOUT_MS set."""

import os
import sys

import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.training import monitored_session

import rdma_tensorflow  # noqa: F401

tf1 = tf.compat.v1
tf1.disable_v2_behavior()
ps, worker = sys.argv[1:]
server = tf.distribute.Server({"ps": [ps], "worker": [worker]}, job_name="worker", protocol="grpc+verbs")
with tf.device("/job:ps/task:0"):
    source = tf.random.uniform([1000])
with tf.device("/job:worker/task:0"):
    result = tf.reduce_sum(tf.identity(source))
session = tf1.Session(server.target)
session.run(result)
print("stalled: going", flush=True)


def fails(*words):
    try:
        for _ in range(10_000_000):
            session.run(result)
    except monitored_session._PREEMPTION_ERRORS as error:
        print(error.message, flush=True)
        assert isinstance(error, tf.errors.UnavailableError)
        assert any(text in error.message for text in words)
        assert cluster_coordinator._is_ps_failure(error)
        assert not cluster_coordinator._is_worker_failure(error)


ASKED = "RDMA_PEER_TIMEOUT_MS=" + os.environ["RDMA_PEER_TIMEOUT_MS"]
# A tensor was missing; or all had come, and the word that the server's part of the step is over was missing.
fails("grpc+verbs: receive from /job:ps", ASKED)
print("stalled: the parameter server", flush=True)
for _ in range(2):  # it is asked for its address, and does not answer that either
    fails(ASKED)
print("stalled: still", flush=True)
for _ in range(60):
    try:
        session.run(result)
        print("stalled: no more", flush=True)
        os._exit(0)  # close() would wait for what was given up
    except tf.errors.UnavailableError as error:
        print("not yet:", error.message, flush=True)
sys.exit(1)
