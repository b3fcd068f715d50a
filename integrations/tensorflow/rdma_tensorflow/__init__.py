"""TensorFlow's server protocol "grpc+verbs", over rdma-transport.

Import this module before TensorFlow's first operation, then name the protocol:

    import rdma_tensorflow
    server = tf.distribute.Server(cluster, job_name="worker", task_index=0, protocol="grpc+verbs")

Tensors between workers then travel over shared memory, RDMA or TCP, whichever reaches the peer best; everything
else stays on gRPC. The RDMA_* environment variables choose and tune the transport.
"""

import atexit
import ctypes
import json
import os

import tensorflow as tf

__version__ = "0.1.0"

PROTOCOL = "grpc+verbs"

_LIB_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")


# TensorFlow has no stable C++ interface: each version has its own build of the plugin, named after it.
SUPPORTED_TENSORFLOW = tuple(
    sorted(
        (name[len("rdma_tf_") : -len(".so")].replace("_", ".") for name in os.listdir(_LIB_DIR) if name.startswith("rdma_tf_")),
        key=lambda version: [int(part) for part in version.split(".")],
    )
)


def _plugin_path():
    version = tf.__version__
    if version not in SUPPORTED_TENSORFLOW:
        raise ImportError(
            "rdma_tensorflow %s supports TensorFlow %s; this is TensorFlow %s"
            % (__version__, " and ".join(SUPPORTED_TENSORFLOW), version)
        )
    return os.path.join(_LIB_DIR, "rdma_tf_%s.so" % version.replace(".", "_"))


def _load():
    path = _plugin_path()
    # By its full path first, so that the plugin finds exactly this copy.
    transport = ctypes.CDLL(os.path.join(_LIB_DIR, "librdma_transport.so.0"))
    transport.rdma_version.restype = ctypes.c_char_p
    tf.load_library(path)
    plugin = ctypes.CDLL(path)
    plugin.rdma_tf_load_error.restype = ctypes.c_char_p
    plugin.rdma_tf_stats.restype = ctypes.c_void_p
    plugin.rdma_tf_memory.restype = ctypes.c_void_p
    plugin.rdma_tf_free.argtypes = [ctypes.c_void_p]
    error = plugin.rdma_tf_load_error().decode()
    if error:
        raise ImportError("rdma_tensorflow: " + error)
    return transport, plugin


_transport, _plugin = _load()


def versions():
    """Versions of the package, of librdma_transport and of TensorFlow, as a dict."""
    return {
        "rdma_tensorflow": __version__,
        "rdma_transport": _transport.rdma_version().decode(),
        "tensorflow": tf.__version__,
    }


def _told(text):
    if not text:
        raise MemoryError("rdma_tensorflow")
    try:
        return json.loads(ctypes.string_at(text).decode())
    finally:
        _plugin.rdma_tf_free(text)


def stats():
    """Transport statistics of every "grpc+verbs" server in this process.

    A list of {"name": ..., "stats": ...}; "stats" is what rdma_mgr_stats_json tells, None for a stopped server.
    """
    return _told(_plugin.rdma_tf_stats())


def memory():
    """Where TensorFlow's CPU memory comes from, as a dict.

    "kind" is "shared" (RDMA_TF_POOL=shared), "registered" or "tensorflow"; "shared_bytes" are what TensorFlow's
    allocator holds of the library's pool, "registered_bytes" what it holds of ordinary memory that is registered.
    """
    return _told(_plugin.rdma_tf_memory())


def shutdown():
    """Ends the transport of every server in this process; later receives fail as unavailable.

    Runs by itself when the interpreter exits.
    """
    _plugin.rdma_tf_shutdown()


# TensorFlow never destroys a Python server: without this, transport threads would meet its dying globals.
atexit.register(shutdown)
