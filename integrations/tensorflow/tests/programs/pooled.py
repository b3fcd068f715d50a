"""Tensors of many sizes from a parameter server and back, then without a server: pooled.py <ps address> <worker address>.

Says at the end what rdma_tensorflow.memory() says, after the first round and after many.
"""

import json
import sys

import numpy as np
import tensorflow as tf

import rdma_tensorflow

ps, worker = sys.argv[1:]
tf1 = tf.compat.v1
server = tf.distribute.Server({"ps": [ps], "worker": [worker]}, job_name="worker", protocol="grpc+verbs")
config = tf1.ConfigProto()
config.graph_options.rewrite_options.disable_meta_optimizer = True
config.graph_options.optimizer_options.opt_level = tf1.OptimizerOptions.L0
SIZES = [0, 1, 1000, 1025, 100_000, 4_000_000, 20_000_000]

with tf.Graph().as_default() as graph:
    size, first = tf1.placeholder(tf.int32, []), tf1.placeholder(tf.int32, [])
    with tf.device("/job:ps/task:0"):
        source = tf.range(first, first + size)
    with tf.device("/job:worker/task:0"):
        there = tf.identity(source)
    with tf.device("/job:ps/task:0"):
        back = tf.identity(there) + 1

# What a step fetched lies in TensorFlow's memory, without a copy.
kept = []
with tf1.Session(server.target, graph=graph, config=config) as session:

    def round_of(step):
        for count in SIZES:
            here, again = session.run([there, back], {size: count, first: step})
            assert np.array_equal(here, np.arange(step, step + count, dtype=np.int32))
            assert np.array_equal(again, np.arange(step + 1, step + 1 + count, dtype=np.int32))
        return here

    kept.append(round_of(7))
    for i in range(2):
        round_of(i)
    once = rdma_tensorflow.memory()
    for i in range(10):
        round_of(100 + i)
    often = rdma_tensorflow.memory()
    print("pooled: rounds done", flush=True)
    sys.stdin.readline()  # the test looks at this process

rdma_tensorflow.shutdown()
assert np.array_equal(kept[0], np.arange(7, 7 + SIZES[-1], dtype=np.int32))
kept[0] += 1
values = tf.random.normal([3_000_000])
assert float(tf.reduce_max(values * 0)) == 0.0
assert int(kept[0][-1]) == 7 + SIZES[-1]
print("pooled:", json.dumps({"once": once, "often": often}), flush=True)
