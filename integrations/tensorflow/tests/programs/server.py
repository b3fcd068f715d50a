"""One server that waits: server.py <job> <task> <protocol> <ps addresses> <worker addresses>."""

import sys

import tensorflow as tf
from serve import serve_forever

job, task, protocol, ps, workers = sys.argv[1:]
if protocol == "grpc+verbs":
    import rdma_tensorflow  # makes TensorFlow know the protocol
cluster = {"ps": ps.split(","), "worker": workers.split(",")}
server = tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=int(task), protocol=protocol)
serve_forever()
