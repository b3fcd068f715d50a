"""ParameterServerStrategy: strategy_ps.py <job> <task> <ps addresses> <worker addresses> <chief address>."""

import json
import os
import sys

job, task, ps, workers, chief = sys.argv[1:]
os.environ["TF_CONFIG"] = json.dumps(
    {
        "cluster": {"ps": ps.split(","), "worker": workers.split(","), "chief": [chief]},
        "task": {"type": job, "index": int(task)},
    }
)

import tensorflow as tf  # noqa: E402
from serve import serve_forever  # noqa: E402

import rdma_tensorflow  # noqa: E402

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc+verbs")
if job != "chief":
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=job, task_index=int(task), protocol="grpc+verbs", start=True
    )
    serve_forever()

strategy = tf.distribute.ParameterServerStrategy(
    resolver, variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(1)
)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weight = tf.Variable(tf.zeros([64]), name="weight")
    bias = tf.Variable(0.0, name="bias")

TRUE_WEIGHT = tf.linspace(-1.0, 1.0, 64)


@tf.function
def step():
    x = tf.random.normal([32, 64])
    y = tf.linalg.matvec(x, TRUE_WEIGHT) + 3.0
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, weight) + bias - y))
    gradients = tape.gradient(loss, [weight, bias])
    weight.assign_sub(0.05 * gradients[0])
    bias.assign_sub(0.05 * gradients[1])
    return loss


results = [coordinator.schedule(step) for _ in range(300)]
coordinator.join()
last = results[-1].fetch()
print("last loss", last)
assert abs(float(bias.numpy()) - 3.0) < 0.1, bias
assert float(tf.reduce_max(tf.abs(weight - TRUE_WEIGHT))) < 0.1
print("trained ok", flush=True)
os._exit(0)  # the coordinator's threads wait for workers that nobody stops
