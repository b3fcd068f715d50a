"""Fits a line with one parameter server and any number of workers, over protocol "grpc+verbs".

The script of the contrib/verbs days, ported to tf.compat.v1; README.md says how to run it.
"""

import time

import numpy as np
import tensorflow.compat.v1 as tf

flags = tf.app.flags
FLAGS = flags.FLAGS
flags.DEFINE_float("learning_rate", 0.00003, "Initial learning rate.")
flags.DEFINE_integer("steps_to_validate", 1000, "Steps between two lines of output.")
flags.DEFINE_string("ps_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", "", "One of 'ps', 'worker'")
flags.DEFINE_integer("task_index", 0, "Index of task within the job")
flags.DEFINE_integer("issync", 0, "1: synchronous updates, 0: asynchronous")
flags.DEFINE_integer("steps", 1000000, "Steps to train.")
flags.DEFINE_string("protocol", "grpc+verbs", "Protocol of the servers; 'grpc' for TensorFlow's own.")
flags.DEFINE_integer("seed", -1, "Not negative: workers advance in lock-step over fixed data, so runs can be compared.")


def loss(label, pred):
    return tf.square(label - pred)


def main(_):
    ps_hosts = FLAGS.ps_hosts.split(",")
    worker_hosts = FLAGS.worker_hosts.split(",")
    issync = FLAGS.issync
    repeatable = FLAGS.seed >= 0
    cluster = tf.train.ClusterSpec({"ps": ps_hosts, "worker": worker_hosts})
    server = tf.train.Server(
        cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index, protocol=FLAGS.protocol
    )
    if FLAGS.job_name == "ps":
        server.join()
        return
    if repeatable:
        tf.set_random_seed(FLAGS.seed)
        np.random.seed(FLAGS.seed + FLAGS.task_index)
    with tf.device(
        tf.train.replica_device_setter(worker_device="/job:worker/task:%d" % FLAGS.task_index, cluster=cluster)
    ):
        global_step = tf.Variable(0, name="global_step", trainable=False)
        arrivals = tf.Variable(0, name="arrivals", trainable=False)
        arrive = tf.assign_add(arrivals, 1, use_locking=True)

        input = tf.placeholder("float")
        label = tf.placeholder("float")

        weight = tf.get_variable("weight", [1], tf.float32, initializer=tf.random_normal_initializer())
        biase = tf.get_variable("biase", [1], tf.float32, initializer=tf.random_normal_initializer())
        pred = tf.multiply(input, weight) + biase

        loss_value = loss(label, pred)
        optimizer = tf.train.GradientDescentOptimizer(FLAGS.learning_rate)

        grads_and_vars = optimizer.compute_gradients(loss_value)
        if issync == 1:
            rep_op = tf.train.SyncReplicasOptimizer(
                optimizer,
                replicas_to_aggregate=len(worker_hosts),
                total_num_replicas=len(worker_hosts),
                use_locking=True,
            )
            train_op = rep_op.apply_gradients(grads_and_vars, global_step=global_step)
            # Without spare tokens no worker can run ahead and take another one's turn.
            init_token_op = rep_op.get_init_tokens_op(num_tokens=0 if repeatable else -1)
            chief_queue_runner = rep_op.get_chief_queue_runner()
        else:
            train_op = optimizer.apply_gradients(grads_and_vars, global_step=global_step)

        init_op = tf.global_variables_initializer()
        saver = tf.train.Saver()

    sv = tf.train.Supervisor(
        is_chief=(FLAGS.task_index == 0),
        logdir="./checkpoint/",
        init_op=init_op,
        summary_op=None,
        saver=saver,
        global_step=global_step,
        save_model_secs=60,
        recovery_wait_secs=1,
    )

    with sv.prepare_or_wait_for_session(server.target) as sess:
        if FLAGS.task_index == 0 and issync == 1:
            sv.start_queue_runners(sess, [chief_queue_runner])
            sess.run(init_token_op)
        step = 0
        turn = 0
        while (turn if repeatable else step) < FLAGS.steps:
            train_x = np.random.randn(1)
            train_y = 2 * train_x + np.random.randn(1) * 0.33 + 10
            _, loss_v, step = sess.run([train_op, loss_value, global_step], feed_dict={input: train_x, label: train_y})
            turn += 1
            if repeatable:
                print("turn: %d, loss: %s" % (turn, float(loss_v[0]).hex()), flush=True)
                sess.run(arrive)
                while sess.run(arrivals) < len(worker_hosts) * turn:
                    time.sleep(0.001)
            elif step % FLAGS.steps_to_validate == 0:
                w, b = sess.run([weight, biase])
                print("step: %d, weight: %f, biase: %f, loss: %f" % (step, w[0], b[0], loss_v[0]), flush=True)
        w, b = sess.run([weight, biase])
        print("end: step: %d, weight: %f, biase: %f" % (step, w[0], b[0]), flush=True)
        sv.request_stop()

    sv.stop()


if __name__ == "__main__":
    tf.disable_v2_behavior()
    flags.FLAGS(__import__("sys").argv)
    if FLAGS.protocol == "grpc+verbs":
        import rdma_tensorflow  # makes TensorFlow know the protocol
    tf.app.run()
