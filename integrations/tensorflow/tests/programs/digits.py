"""A convolutional network on scikit-learn's digits: digits.py <protocol> <ps address> <worker addresses>.

This is worker 0, which drives the training; ps and worker 1 only serve. Both workers compute the gradient of half a
batch, the ps applies the sum. Every value that decides the result has a fixed order, so runs can be compared to the
last bit.
"""

import hashlib
import sys
import time

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

protocol, ps, workers = sys.argv[1:]
if protocol == "grpc+verbs":
    import rdma_tensorflow  # makes TensorFlow know the protocol
tf1 = tf.compat.v1
tf1.disable_v2_behavior()

STEPS = 300
HALF = 32

cluster = tf.train.ClusterSpec({"ps": [ps], "worker": workers.split(",")})
server = tf.distribute.Server(cluster, job_name="worker", task_index=0, protocol=protocol)

data = load_digits()
images = (data.images / 16.0).astype(np.float32)[..., None]
labels = data.target.astype(np.int32)
order = np.random.RandomState(3).permutation(len(images))
images, labels = images[order], labels[order]
train_images, train_labels = images[:1500], labels[:1500]
test_images, test_labels = images[1500:], labels[1500:]

random = np.random.RandomState(5)
shapes = [[3, 3, 1, 16], [16], [3, 3, 16, 32], [32], [2 * 2 * 32, 64], [64], [64, 10], [10]]
scales = [0.3, 0.0, 0.08, 0.0, 0.12, 0.0, 0.15, 0.0]
with tf.device("/job:ps/task:0"):
    variables = [
        tf1.get_variable("v%d" % i, initializer=(random.standard_normal(shape) * scale).astype(np.float32))
        for i, (shape, scale) in enumerate(zip(shapes, scales))
    ]


def network(batch):
    c1, b1, c2, b2, w3, b3, w4, b4 = variables
    x = tf.nn.relu(tf.nn.conv2d(batch, c1, 1, "SAME") + b1)
    x = tf.nn.max_pool2d(x, 2, 2, "SAME")
    x = tf.nn.relu(tf.nn.conv2d(x, c2, 1, "SAME") + b2)
    x = tf.nn.max_pool2d(x, 2, 2, "SAME")
    x = tf.nn.relu(tf.matmul(tf.reshape(x, [-1, 2 * 2 * 32]), w3) + b3)
    return tf.matmul(x, w4) + b4


feeds, gradients = [], []
for worker in range(2):
    with tf.device("/job:worker/task:%d" % worker):
        batch = tf1.placeholder(tf.float32, [HALF, 8, 8, 1])
        target = tf1.placeholder(tf.int32, [HALF])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=network(batch))
        gradients.append(tf1.gradients(tf.reduce_mean(losses), variables))
        feeds.append((batch, target))
with tf.device("/job:ps/task:0"):
    train = tf.group(
        *[tf1.assign_sub(v, 0.1 * (a + b)) for v, a, b in zip(variables, gradients[0], gradients[1])]
    )
with tf.device("/job:worker/task:0"):
    test_batch = tf1.placeholder(tf.float32, [None, 8, 8, 1])
    guess = tf.argmax(network(test_batch), 1)

config = tf1.ConfigProto(intra_op_parallelism_threads=1)
with tf1.Session(server.target, config=config) as session:
    session.run(tf1.global_variables_initializer())
    for step in range(STEPS):
        if step == 50:
            begin_time = time.perf_counter()
        first = step * 2 * HALF % (len(train_images) - 2 * HALF)
        feed = {}
        for worker, (batch, target) in enumerate(feeds):
            begin = first + worker * HALF
            feed[batch] = train_images[begin : begin + HALF]
            feed[target] = train_labels[begin : begin + HALF]
        session.run(train, feed)
    print("rate: %.1f steps/s" % ((STEPS - 50) / (time.perf_counter() - begin_time)))
    accuracy = np.mean(session.run(guess, {test_batch: test_images}) == test_labels)
    weights = hashlib.sha256(b"".join(v.tobytes() for v in session.run(variables))).hexdigest()
    print("accuracy: %.4f weights: %s" % (accuracy, weights), flush=True)
