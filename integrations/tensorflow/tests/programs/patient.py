"""A parameter server that pauses for long: patient.py <protocol> <ps address> <worker address>."""

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
    count = tf1.get_variable("count", initializer=0, use_resource=True)
    source = tf.random.uniform([300_000])
    step = count.assign_add(1)
with tf.device("/job:worker/task:0"):
    result = tf.reduce_sum(tf.identity(source)) + tf.cast(tf.identity(step), tf.float32)
session = tf1.Session(server.target)
session.run(count.initializer)
steps = pause = after = 0
while after < 20:
    begin = time.monotonic()
    session.run(result)  # no error, ever
    steps += 1
    pause = max(pause, time.monotonic() - begin)
    after += pause > 10
    if steps == 10:
        print("patient: going", flush=True)
assert session.run(count) == steps
print("patient: waited, and counted right", flush=True)
os._exit(0)
