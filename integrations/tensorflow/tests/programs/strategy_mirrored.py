"""MultiWorkerMirroredStrategy: strategy_mirrored.py <task> <worker addresses>."""

import json
import os
import sys

task, workers = sys.argv[1:]
os.environ["TF_CONFIG"] = json.dumps(
    {"cluster": {"worker": workers.split(",")}, "task": {"type": "worker", "index": int(task)}}
)

import tensorflow as tf  # noqa: E402

import rdma_tensorflow  # noqa: E402,F401

strategy = tf.distribute.MultiWorkerMirroredStrategy(
    cluster_resolver=tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc+verbs")
)
with strategy.scope():
    weight = tf.Variable(tf.zeros([16]))


@tf.function
def step(x, y):
    def replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, weight) - y))
        gradient = tape.gradient(loss, weight)
        total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradient)
        weight.assign_sub(0.05 * total)
        return loss

    return strategy.run(replica, args=(x, y))


random = tf.random.Generator.from_seed(11 + int(task))
goal = tf.linspace(-1.0, 1.0, 16)
for _ in range(100):
    x = random.normal([32, 16])
    step(x, tf.linalg.matvec(x, goal))
error = float(tf.reduce_max(tf.abs(weight - goal)))
assert error < 0.05, error
print("weights:", weight.numpy().tobytes().hex(), flush=True)
