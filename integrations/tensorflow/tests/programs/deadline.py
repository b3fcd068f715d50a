"""A receive that the library gives up: deadline.py <ps address> <worker address>, with RDMA_TIMEOUT_MS set."""

import os
import sys
import time

import tensorflow as tf

import rdma_tensorflow  # noqa: F401

tf1 = tf.compat.v1
tf1.disable_v2_behavior()
ps, worker = sys.argv[1:]
server = tf.distribute.Server({"ps": [ps], "worker": [worker]}, job_name="worker", protocol="grpc+verbs")
with tf.device("/job:ps/task:0"):
    ready = tf.constant([1.0, 2.0]) + 1.0
    never = tf1.FIFOQueue(1, [tf.float32], shapes=[[]]).dequeue()
with tf.device("/job:worker/task:0"):
    result = tf.identity(ready) * 2.0
    waits = tf.identity(never) + 1.0
with tf1.Session(server.target) as session:
    session.run(result)
    begin = time.monotonic()
    try:
        session.run(waits)
        raise AssertionError("no error")
    except tf.errors.DeadlineExceededError as error:
        assert "grpc+verbs" in error.message, error.message
    assert time.monotonic() - begin > 0.9 * int(os.environ["RDMA_TIMEOUT_MS"]) / 1000
    assert session.run(result).tolist() == [4.0, 6.0]
print("timed out", flush=True)
