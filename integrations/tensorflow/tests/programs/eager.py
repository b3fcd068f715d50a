"""Eager remote calls and tf.function: eager.py <ps address> <worker address>. The client is neither."""

import os
import sys

import numpy as np
import tensorflow as tf

import rdma_tensorflow

ps, worker = sys.argv[1:]
tf.config.experimental_connect_to_cluster(
    tf.train.ClusterSpec({"ps": [ps], "worker": [worker]}), job_name="client", protocol="grpc+verbs"
)
A, B = ("/job:%s/replica:0/task:0/device:CPU:0" % job for job in ("ps", "worker"))
N = 50_000

for i in range(5):
    with tf.device(A):
        x = tf.range(N, dtype=tf.float32) + float(i)
    with tf.device(B):
        y = tf.identity(x) * 2.0  # from worker to worker
    assert np.array_equal(y.numpy(), (np.arange(N, dtype=np.float32) + i) * 2)  # and to the client


@tf.function
def both(start):
    with tf.device(A):
        a = tf.range(N, dtype=tf.float32) + start
    with tf.device(B):
        b = tf.math.cumsum(a * 0.0 + 1.0)
    with tf.device(A):
        return tf.reduce_sum(a + b)


for i in range(5):
    expected = float(np.sum(np.arange(N, dtype=np.float64) * 2 + i + 1))
    assert abs(float(both(tf.constant(float(i)))) / expected - 1) < 1e-3

try:
    with tf.device(B):
        bad = tf.debugging.check_numerics(tf.constant([1.0]) / tf.constant([0.0]), "the far side says no")
    bad.numpy()
    raise AssertionError("no error")
except tf.errors.InvalidArgumentError as error:
    assert "the far side says no" in error.message, error.message
assert len(rdma_tensorflow.stats()) == 1
print("eager ok", flush=True)
os._exit(0)  # TensorFlow's eager context waits for workers that nobody stops
