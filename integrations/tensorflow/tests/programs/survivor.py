"""A worker whose parameter server dies and comes back: survivor.py <protocol> <ps address> <worker address>."""

import os
import sys
import time

import tensorflow as tf

protocol, ps, worker = sys.argv[1:]
if protocol == "grpc+verbs":
    import rdma_tensorflow  # noqa: F401
tf1 = tf.compat.v1
tf1.disable_v2_behavior()
server = tf.distribute.Server({"ps": [ps], "worker": [worker]}, job_name="worker", protocol=protocol)
with tf.device("/job:ps/task:0"):
    source = tf.random.uniform([1000])
with tf.device("/job:worker/task:0"):
    result = tf.reduce_sum(tf.identity(source))


sessions = []
GONE = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.InternalError)


def rounds(message):
    """Never closed: with a worker lost, TensorFlow's close waits for it for 30 s, under plain grpc too."""
    session = tf1.Session(server.target)
    sessions.append(session)
    for i in range(1_000_000):
        assert 300 < session.run(result) < 700
        if i == 10:
            print("survivor:", message, flush=True)
            if message == "after":
                os._exit(0)


try:
    rounds("before")
except GONE as error:
    print("survivor: noticed:", type(error).__name__, error.message[:500], flush=True)
for _ in range(60):
    try:
        rounds("after")
    except GONE as error:
        print("not yet:", error.message[:500], flush=True)
        time.sleep(1)
sys.exit(1)
