"""One step, and how it ended: once.py <protocol> <ps address> <worker address>."""

import os
import sys

import tensorflow as tf

protocol, ps, worker = sys.argv[1:]
if protocol == "grpc+verbs":
    import rdma_tensorflow  # noqa: F401
tf1 = tf.compat.v1
tf1.disable_v2_behavior()
server = tf.distribute.Server({"ps": [ps], "worker": [worker]}, job_name="worker", protocol=protocol)
with tf.device("/job:ps/task:0"):
    source = tf.random.uniform([1000])  # cannot be folded into a constant elsewhere
with tf.device("/job:worker/task:0"):
    result = tf.reduce_sum(tf.identity(source))
try:
    print("once: result", tf1.Session(server.target).run(result), flush=True)
except tf.errors.OpError as error:
    print("once:", type(error).__name__, error.message, flush=True)
os._exit(0)
