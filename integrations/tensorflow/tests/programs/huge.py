"""One tensor of 2.5 GiB: huge.py <protocol> <ps address> <worker address>."""

import sys

import numpy as np
import tensorflow as tf

protocol, ps, worker = sys.argv[1:]
if protocol == "grpc+verbs":
    import rdma_tensorflow  # noqa: F401
tf1 = tf.compat.v1
tf1.disable_v2_behavior()
server = tf.distribute.Server({"ps": [ps], "worker": [worker]}, job_name="worker", protocol=protocol)
COUNT = (5 << 30) // 2 // 8
with tf.device("/job:ps/task:0"):
    source = tf.range(np.int64(COUNT))
with tf.device("/job:worker/task:0"):
    got = tf.identity(source)
    size = tf.size(got, out_type=tf.int64)
    ends = tf.gather(got, [0, 1, (1 << 28) - 1, 1 << 28, (1 << 28) + 1, COUNT - 1])
config = tf1.ConfigProto()
config.graph_options.rewrite_options.disable_meta_optimizer = True
config.graph_options.optimizer_options.opt_level = tf1.OptimizerOptions.L0
with tf1.Session(server.target, config=config) as session:
    n, e = session.run([size, ends])
    assert e.tolist() == [0, 1, (1 << 28) - 1, 1 << 28, (1 << 28) + 1, COUNT - 1], e
    print("arrived %d bytes" % (8 * n), flush=True)
