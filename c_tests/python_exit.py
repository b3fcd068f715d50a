#!/usr/bin/env python3
"""Interpreters that end while the library's callbacks come, by ctypes: each ends with status 0.

usage: python_exit.py LIBRARY [PROVIDER]

CPython before 3.14 ends each thread that asks for the interpreter while it ends, by pthread_exit.
"""
import ctypes as C
import subprocess
import sys
import threading
import time

RECV_DONE = C.CFUNCTYPE(None, C.c_int32, C.c_char_p, C.c_size_t, C.c_void_p, C.c_void_p, C.c_void_p)
ROOM = 4096  # larger than any of these structs, as a newer header's is


class Options:
    """A struct of options: words by offset, the rest as its init function left it."""

    def __init__(self, init):
        self.memory = C.create_string_buffer(ROOM)
        ok(init(self.memory, C.c_size_t(ROOM)))

    def put(self, offset, value):
        (C.c_uint64 if isinstance(value, int) else C.c_char_p).from_buffer(self.memory, offset).value = value


def ok(code):
    if code != 0:
        text = C.create_string_buffer(500)
        L.rdma_last_error(text, C.c_size_t(500))
        raise RuntimeError(text.value.decode())


class Slow:
    """An object that ends once no callback comes any more: each of the eight that are under way has ended its thread.

    One that came after CPython has ended would end the process, by a NULL of CPython's (PyGILState_Ensure). What is called is kept
    here, since names of modules are None by then.
    """

    def __init__(self, manager):
        self.manager, self.library, self.text = manager, L, C.create_string_buffer(1 << 16)
        self.sleep, self.length, self.size = time.sleep, C.c_size_t(), C.c_size_t(1 << 16)
        self.error, self.byref = sys.stderr, C.byref

    def __del__(self):
        last, quiet = b"", 0
        for _ in range(300):
            self.sleep(0.02)
            if self.library.rdma_mgr_stats_json(self.manager, self.text, self.size, self.byref(self.length)) != 0:
                return  # destroyed
            now = self.text.value.partition(b'"requests_pending"')[2]
            quiet = quiet + 1 if now == last else 0
            if quiet == 10:
                return
            last = now
        self.error.write("callbacks came for six seconds of the interpreter's end\n")


def child(provider, manual, how):
    manager, key, tensor = C.c_void_p(), b"k", C.create_string_buffer(ROOM)
    options = Options(L.rdma_mgr_options_init)
    options.put(8, b"alone")
    options.put(16, provider.encode())
    C.c_int32.from_buffer(options.memory, 48).value = manual
    ok(L.rdma_mgr_create(options.memory, C.byref(manager)))
    ok(L.rdma_tensor_init(tensor, C.c_size_t(ROOM)))
    steps, came = iter(range(1 << 60)), threading.Event()

    def both():
        step = C.c_int64(next(steps))
        if L.rdma_recv_async(manager, None, key, C.c_size_t(1), step, None, done, None, None) == 0:
            L.rdma_send(manager, key, C.c_size_t(1), step, tensor, None, None, None)

    def on_recv(code, *_):
        came.set()
        if code == 0:
            both()

    def drive():
        while True:
            L.rdma_mgr_wait(manager, C.c_int64(50))

    done = RECV_DONE(on_recv)
    # The library calls it to the end, and ctypes would free what it calls while the interpreter ends. What lives on keeps this module's
    # names, so that who is to end with a module is with another one's.
    threading.slow = Slow(manager)
    C.pythonapi.Py_IncRef(C.py_object(done))
    if manual:
        threading.Thread(target=drive, daemon=True).start()
    for _ in range(8):
        both()
    came.wait()
    if how == "atexit":
        import atexit

        atexit.register(lambda: ok(L.rdma_mgr_destroy(manager)))


L = C.CDLL(sys.argv[1])
if len(sys.argv) > 3:
    child(sys.argv[2], int(sys.argv[3]), sys.argv[4])
else:
    name, failed, passed = sys.argv[2] if len(sys.argv) > 2 else "loopback", 0, 0
    for mode, way in [(0, "leave"), (1, "leave"), (0, "atexit")] * 3:
        command = [sys.executable, __file__, sys.argv[1], name, str(mode), way]
        ended = subprocess.run(command, stderr=subprocess.PIPE, timeout=60, check=False)
        if ended.returncode == 0:
            passed += 1
            continue
        failed += 1
        print(f"progress {mode}, {way}: the interpreter ended with {ended.returncode}:\n{ended.stderr.decode()[-1000:]}")
    print(f"cases: {passed} passed, {failed} failed, 0 skipped")
    sys.exit(failed > 0)
