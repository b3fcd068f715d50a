"""Imports the plugin after TensorFlow has computed something: late.py <ps address> <worker address>."""

import sys

import numpy as np
import tensorflow as tf

assert float(tf.reduce_sum(tf.random.normal([1000]) * 0)) == 0.0

import rdma_tensorflow  # noqa: E402,F401

ps, worker = sys.argv[1:]
server = tf.distribute.Server({"ps": [ps], "worker": [worker]}, job_name="worker", protocol="grpc+verbs")
with tf.Graph().as_default() as graph:
    with tf.device("/job:ps/task:0"):
        source = tf.range(1_000_000)
    with tf.device("/job:worker/task:0"):
        result = tf.identity(source)
    with tf.compat.v1.Session(server.target, graph=graph) as session:
        for _ in range(3):
            assert np.array_equal(session.run(result), np.arange(1_000_000))
print("late but right", flush=True)
