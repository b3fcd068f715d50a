"""Tensors from a parameter server over an RDMA device: softroce.py <ps address> <worker address>.

Slow machines are expected: this runs under emulation.
"""

import os
import sys
import time

begin = time.monotonic()


def say(*what):
    print("%6.1f s:" % (time.monotonic() - begin), *what, flush=True)


import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

say("imported TensorFlow", tf.__version__)
import rdma_tensorflow  # noqa: E402

say("loaded the plugin", rdma_tensorflow.versions())
tf1 = tf.compat.v1
tf1.disable_v2_behavior()
ps, worker = sys.argv[1:]
server = tf.distribute.Server({"ps": [ps], "worker": [worker]}, job_name="worker", protocol="grpc+verbs")
SIZES = [1, 1000, 100_000, 1_000_000]
STEPS = 5
with tf.device("/job:ps/task:0"):
    weight = tf1.get_variable("weight", initializer=np.zeros(1000, np.float32))
    start = tf1.placeholder(tf.int32, [])
    sources = [tf.range(start, start + size) for size in SIZES]
with tf.device("/job:worker/task:0"):
    results = [tf.identity(source) for source in sources]
    gradient = tf.identity(weight) - 1.0
with tf.device("/job:ps/task:0"):
    train = tf1.assign_sub(weight, 0.5 * tf.identity(gradient))
config = tf1.ConfigProto()
config.graph_options.rewrite_options.disable_meta_optimizer = True
config.graph_options.optimizer_options.opt_level = tf1.OptimizerOptions.L0
with tf1.Session(server.target, config=config) as session:
    session.run(tf1.global_variables_initializer())
    say("connected to the parameter server")
    for step in range(STEPS):
        for size, got in zip(SIZES, session.run(results, {start: step})):
            assert np.array_equal(got, np.arange(step, step + size)), (size, got)
        session.run(train)
        say("step", step)
    assert np.abs(session.run(weight) - (1 - 0.5**STEPS)).max() < 1e-6
(entry,) = rdma_tensorflow.stats()
(peer,) = [peer for peer in entry["stats"]["peers"] if peer["peer"].startswith("/job:ps/")]
say(peer["provider"], peer["bytes_received"], "bytes received", peer["bytes_sent"], "sent", peer["protocols"])
assert peer["provider"] == "ibverbs"
assert peer["bytes_received"] >= STEPS * 4 * sum(SIZES)
say("TensorFlow over", os.environ["RDMA_DEVICE"], "ok")
os._exit(0)
