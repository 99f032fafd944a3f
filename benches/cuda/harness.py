"""What the CUDA benchmarks share: worker processes and timing by graphs."""
import ctypes
import json
import statistics
import subprocess

import torch

TYPES = {torch.float32: "<f4", torch.bfloat16: "<i2"}


class Worker:
    """A worker process that answers one JSON request per line."""

    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            return {"error": "the worker ended"}
        return json.loads(line)


class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class Opened:
    """Tensors in the memory of another process, which are slower to reach from here."""

    def __init__(self, buffers, shape, dtype):
        self.driver = ctypes.CDLL("libcuda.so.1")
        open_handle = self.driver.cuIpcOpenMemHandle_v2
        open_handle.argtypes = [ctypes.POINTER(ctypes.c_uint64), IpcHandle, ctypes.c_uint]
        self.pointers, self.read, self.written = [], None, None
        torch.cuda.current_stream().synchronize()  # the context is there
        for buffer in buffers:
            if buffer["bytes"] != shape[0] * shape[1] * dtype.itemsize:
                continue
            code = bytes.fromhex(buffer["handle"])
            handle = IpcHandle((ctypes.c_ubyte * 64).from_buffer_copy(code))
            pointer = ctypes.c_uint64()
            code = open_handle(ctypes.byref(pointer), handle, 1)
            if code:
                raise RuntimeError(f"cuIpcOpenMemHandle gives {code}")
            self.pointers.append(pointer)
            self.__cuda_array_interface__ = {
                "shape": shape, "typestr": TYPES[dtype], "version": 2,
                "data": (pointer.value + buffer["offset"], False)}
            tensor = torch.as_tensor(self, device="cuda").view(dtype)
            if buffer["written"]:
                self.written = tensor
            else:
                self.read = tensor

    def close(self):
        self.read = self.written = None
        torch.cuda.synchronize()
        for pointer in self.pointers:
            self.driver.cuIpcCloseMemHandle(pointer)
        self.pointers = []


def graph_of(call, budget_us=3000.0, fewest=3, most=500):
    """A graph of back-to-back calls that fill the budget, and how many calls it holds."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
        side.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record(side)
        for _ in range(5):
            call()
        end.record(side)
        side.synchronize()
        once = start.elapsed_time(end) * 1e3 / 5
        n = max(fewest, min(most, int(budget_us / max(once, 0.5))))
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g, stream=side):
            for _ in range(n):
                call()
    torch.cuda.synchronize()
    g.replay()
    torch.cuda.synchronize()
    return g, n


def time_graph(pair, rounds=3, warm=0):
    """Median device time of one call in microseconds, after untimed runs of the graph."""
    g, n = pair
    out = []
    for _ in range(warm):
        g.replay()
    torch.cuda.synchronize()
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        g.replay()
        end.record()
        torch.cuda.synchronize()
        out.append(start.elapsed_time(end) * 1e3 / n)
    return statistics.median(out)
