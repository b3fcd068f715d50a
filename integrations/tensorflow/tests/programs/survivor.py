"""A worker whose parameter server dies and comes back: survivor.py <ps address> <worker address>."""

import sys
import time

import tensorflow as tf

import rdma_tensorflow  # noqa: F401

ps, worker = sys.argv[1:]
tf1 = tf.compat.v1
tf1.disable_v2_behavior()
server = tf.distribute.Server({"ps": [ps], "worker": [worker]}, job_name="worker", protocol="grpc+verbs")
with tf.device("/job:ps/task:0"):
    source = tf.random.uniform([1000])
with tf.device("/job:worker/task:0"):
    result = tf.reduce_sum(tf.identity(source))


def rounds(message):
    with tf1.Session(server.target) as session:
        for i in range(1_000_000):
            assert 300 < session.run(result) < 700
            if i == 10:
                print("survivor:", message, flush=True)
                if message == "after":
                    return


try:
    rounds("before")
except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.InternalError) as error:
    print("survivor: noticed:", type(error).__name__, error.message[:500], flush=True)
for _ in range(60):
    try:
        rounds("after")
        break
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.InternalError) as error:
        print("not yet:", error.message[:500], flush=True)
        time.sleep(1)
