"""The measuring half of the benchmark: worker.py <protocol> <ps address> <worker address>.

Builds one graph with every case, then answers each line on standard input, "<case> <seconds>", with one line of JSON.
"""

import json
import sys
import time

import tensorflow as tf

from cases import CASES, MANY

protocol, ps, worker = sys.argv[1:]
if protocol == "grpc+verbs":
    import rdma_tensorflow  # makes TensorFlow know the protocol
tf1 = tf.compat.v1
tf1.disable_v2_behavior()

server = tf.distribute.Server({"ps": [ps], "worker": [worker]}, job_name="worker", protocol=protocol)
config = tf1.ConfigProto()
config.graph_options.rewrite_options.disable_meta_optimizer = True
config.graph_options.optimizer_options.opt_level = tf1.OptimizerOptions.L0
session = tf1.Session(server.target, config=config)


def crossing(variable):
    """One tensor from the ps to the worker; the step's result is a single element, so nothing else moves."""
    with tf.device("/job:ps/task:0"):
        source = tf.identity(variable)
    with tf.device("/job:worker/task:0"):
        return tf.slice(tf.identity(source), [0], [1])


def variables(length, count=1):
    """Initialised in one step: each change of the graph between steps costs more than the last."""
    with tf.device("/job:ps/task:0"):
        made = [tf1.Variable(tf.fill([length], 1.0), use_resource=True) for _ in range(count)]
    session.run([variable.initializer for variable in made])
    return made


def build(case, nbytes, count):
    if count == 0:
        with tf.device("/job:ps/task:0"):
            return session.make_callable(tf.no_op())
    if count == MANY:
        parts = [crossing(variable) for variable in variables(nbytes // 4, count)]
        with tf.device("/job:worker/task:0"):
            return session.make_callable(tf.add_n(parts))
    return session.make_callable(crossing(*variables(nbytes // 4)))


steps = {}


def measure(case, seconds):
    if case not in steps:
        steps[case] = build(case, *CASES[case])
        for _ in range(3):
            steps[case]()
    step = steps[case]
    step()
    done, begin = 0, time.perf_counter()
    while True:
        step()
        done += 1
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds and done >= 3:
            return {"steps": done, "seconds": elapsed}


print("ready", flush=True)
for line in sys.stdin:
    case, seconds = line.rsplit(" ", 1)
    print(json.dumps(measure(case, float(seconds))), flush=True)
