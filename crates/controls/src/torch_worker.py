"""PyTorch as a control: one JSON request a line in, one JSON reply a line out.

usage: python3 -c SCRIPT MODE DEVICE THREADS [KERNELS]

MODE is eager, compile, cublas or triton; DEVICE is cpu or cuda:N; KERNELS is the text of a module
of Triton kernels. Without the library or the device it says so and ends.
"""
import importlib.util
import json
import os
import sys
import tempfile
import time
import types

GUARD = 256  # elements before and after a tensor that must stay as they are
GUARD_VALUE = 777.25
MOST_RECORDED = 1000  # calls in one graph of a device
CALIBRATIONS = 8
MOST_REPETITIONS = 100000


def say(**reply):
    print(json.dumps(reply), flush=True)


class Unsupported(Exception):
    pass


def operation(torch, op, out):
    """The call of an op on its tensors, and whether it writes to `out`."""
    F = torch.nn.functional
    if op == "gemm":
        return (lambda a, b: torch.mm(a, b, out=out)), True
    if op == "softmax":
        return (lambda x: torch.softmax(x, -1, out=out)), True
    if op == "row_sum":
        return (lambda x: torch.sum(x, -1, out=out)), True
    if op == "rmsnorm":
        return (lambda x, g: F.rms_norm(x, (x.shape[-1],), g, 1e-5)), False
    if op == "layernorm":
        return (lambda x, g, b: F.layer_norm(x, (x.shape[-1],), g, b, 1e-5)), False
    raise Unsupported


def functional(torch, op):
    """The same without `out`, for the compiler."""
    F = torch.nn.functional
    known = {
        "gemm": lambda a, b: torch.mm(a, b),
        "softmax": lambda x: torch.softmax(x, -1),
        "row_sum": lambda x: torch.sum(x, -1),
        "rmsnorm": lambda x, g: F.rms_norm(x, (x.shape[-1],), g, 1e-5),
        "layernorm": lambda x, g, b: F.layer_norm(x, (x.shape[-1],), g, b, 1e-5),
    }
    if op not in known:
        raise Unsupported
    return known[op]


class Cpu:
    """The CPU: a call returns when it is done, and there is no clock but the host's."""

    kind = "cpu"

    def __init__(self, torch, threads):
        self.device = torch.device("cpu")
        mkl = torch.backends.mkl.is_available()
        found = torch.backends.cpu.get_cpu_capability()
        self.config = f"{found}, {'MKL' if mkl else 'no MKL'}, {threads} threads"

    def wait(self):
        pass

    def record(self, call, repetitions):
        return None


class Cuda:
    """A CUDA device: calls are queued, and graphs of them are timed by the device's events."""

    kind = "cuda"

    def __init__(self, torch, index):
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise RuntimeError(f"PyTorch finds no CUDA device {index}")
        self.torch = torch
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        # Products in full single precision, as ours.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        name = torch.cuda.get_device_name(index)
        self.config = f"CUDA {torch.version.cuda}, {name}, no TF32"

    def wait(self):
        self.torch.cuda.synchronize()

    def record(self, call, repetitions):
        """A function that runs so many calls as one graph and gives nanoseconds."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # Libraries allocate their workspaces outside the recording.
            call()
            side.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):
                for _ in range(repetitions):
                    call()
        torch.cuda.synchronize()
        # The first run of a graph also brings it to the device.
        graph.replay()
        torch.cuda.synchronize()

        def run():
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            return max(1, round(start.elapsed_time(end) * 1e6))

        return run


class Case:
    """An open case: its tensors between guard zones, and the call that computes it."""

    def __init__(self, torch, place, mode, kernels, compiled, request):
        case = request["case"]
        op, shape = case["op"], case["shape"]
        if case["dtype"] != "f32" or case.get("epilogue") or (mode == "cublas" and op != "gemm"):
            raise Unsupported
        trans = case.get("trans") or "nn"
        if op == "gemm":
            m, n, k = shape
            shapes = [(k, m) if trans[0] == "t" else (m, k), (n, k) if trans[1] == "t" else (k, n)]
            result = (m, n)
        else:
            shapes = [tuple(shape)] + [(shape[1],)] * 2
            result = tuple(shape) if op != "row_sum" else (shape[0],)
        self.torch, self.place = torch, place
        self.whole = []

        def guarded(size):
            count = 1
            for extent in size:
                count *= extent
            whole = torch.full((count + 2 * GUARD,), GUARD_VALUE, dtype=torch.float32,
                               device=place.device)
            self.whole.append((whole, count))
            return whole[GUARD:GUARD + count].view(size)

        def load(files):
            tensors = []
            for file, size in zip(files, shapes):
                with open(file, "rb") as source:
                    data = torch.frombuffer(bytearray(source.read()), dtype=torch.float32)
                tensor = guarded(size)
                tensor.copy_(data.reshape(size))
                tensors.append(tensor)
            if op == "gemm":
                tensors = [t.t() if trans[i] == "t" else t for i, t in enumerate(tensors)]
            return tensors

        self.dyadic = load(request["dyadic"])
        self.sets = [(load(request["random"]), guarded(result))
                     for _ in range(max(1, request.get("sets", 1)))]
        self.copies = {"dyadic": [t.clone() for t in self.dyadic],
                       "random": [t.clone() for t in self.sets[0][0]]}
        self.graphs = {}
        self.turn = 0
        if mode == "compile":
            key = (op, tuple(shape), trans)
            if key not in compiled:
                compiled[key] = compile_anew(torch, functional(torch, op), len(compiled))
            self.calls, self.preallocated = [compiled[key]] * len(self.sets), False
        elif mode == "triton":
            if op not in kernels.BLOCKS:
                raise Unsupported
            # Tuned as it is measured: by graphs of back-to-back launches.
            inputs, out = self.sets[0]
            fastest = kernels.tune(op, shape, inputs, out, lambda one: place.record(one, 20)())
            self.calls = [kernels.launch(op, shape, out, fastest) for _, out in self.sets]
            self.preallocated = True
        else:
            pairs = [operation(torch, op, out) for _, out in self.sets]
            self.calls, self.preallocated = [p[0] for p in pairs], pairs[0][1]

    def call(self):
        """One call; copies of the tensors are taken in turn."""
        self.turn = (self.turn + 1) % len(self.sets)
        self.calls[self.turn](*self.sets[self.turn][0])

    def check(self, kind, file):
        out = self.sets[0][1]
        out.fill_(float("nan"))
        inputs = self.dyadic if kind == "dyadic" else self.sets[0][0]
        result = self.calls[0](*inputs)
        self.place.wait()
        result = out if self.preallocated else result
        torch = self.torch
        same = all(torch.equal(a, b) for a, b in zip(inputs, self.copies[kind]))
        intact = all(
            bool((whole[:GUARD] == GUARD_VALUE).all())
            and bool((whole[GUARD + count:] == GUARD_VALUE).all())
            for whole, count in self.whole
        )
        host = result.detach().contiguous().cpu().clone()
        with open(file, "wb") as target:
            try:
                target.write(host.numpy().tobytes())
            except RuntimeError:  # PyTorch without NumPy
                target.write(bytes(host.untyped_storage()))
        say(reply="checked", guards_intact=intact, inputs_unchanged=same)

    def batch(self, repetitions):
        call, wait = self.call, self.place.wait
        wait()
        start = time.perf_counter_ns()
        for _ in range(repetitions):
            call()
        wait()
        return max(1, time.perf_counter_ns() - start)

    def device_batch(self, repetitions):
        """Nanoseconds of so many calls by the device's clock; None where it has none."""
        if repetitions not in self.graphs:
            self.graphs[repetitions] = self.place.record(self.call, repetitions)
        run = self.graphs[repetitions]
        return None if run is None else run()

    def start(self, protocol):
        aim = protocol["sample_ns"]
        cold = self.batch(1)
        calls, passed = 0, 0
        size = 1 if cold > protocol["warmup_ns"] else 8
        while passed < protocol["warmup_ns"]:
            passed += self.batch(size)
            calls += size
        repetitions = calibrate(self.batch, aim, MOST_REPETITIONS)
        recorded = None
        if self.place.kind != "cpu":
            recorded = calibrate(self.device_batch, aim, MOST_RECORDED)
            # Graphs of the calibration hold memory of the device.
            self.graphs = {}
        return {
            "cold_ns": cold, "warmup_calls": calls, "repetitions": repetitions, "batch_ns": [],
            "single_ns": [], "device_ns": None if recorded is None else [],
            "device_repetitions": recorded,
        }

    def measure(self, protocol):
        samples = self.start(protocol)
        for _ in range(protocol["samples"]):
            samples["batch_ns"].append(self.batch(samples["repetitions"]))
        for _ in range(protocol["single_samples"]):
            samples["single_ns"].append(self.batch(1))
        if samples["device_ns"] is not None:
            for _ in range(protocol["samples"]):
                samples["device_ns"].append(self.device_batch(samples["device_repetitions"]))
        return samples


def calibrate(batch, aim, most):
    """The number of calls that fills `aim` nanoseconds."""
    repetitions = 1
    for _ in range(CALIBRATIONS):
        ns = batch(repetitions)
        if ns >= 0.8 * aim or repetitions == most:
            break
        repetitions = min(most, max(repetitions + 1, int(repetitions * aim / max(ns, 1))))
    return repetitions


def compile_anew(torch, plain, number):
    """Compiles a function for fixed sizes. Each gets code of its own: PyTorch keeps one cache a
    code object, turns sizes that change into variables, and gives up after a few of them."""
    code = plain.__code__.replace(co_name=f"case_{number}")
    own = types.FunctionType(code, plain.__globals__, code.co_name, None, plain.__closure__)
    return torch.compile(own, dynamic=False, fullgraph=True)


def load_kernels(text):
    """The module of Triton kernels; Triton reads the source of its kernels from a file."""
    folder = tempfile.TemporaryDirectory()
    path = os.path.join(folder.name, "triton_rows.py")
    with open(path, "w", encoding="utf-8") as target:
        target.write(text)
    spec = importlib.util.spec_from_file_location("triton_rows", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.folder = folder  # kept while the module is
    return module


def main():
    mode, device, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ[name] = str(threads)
    try:
        import torch
    except Exception:
        say(reply="unavailable", reason="PyTorch isn't installed for python3")
        return
    kernels = None
    try:
        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        if device == "cpu":
            place = Cpu(torch, torch.get_num_threads())
        else:
            place = Cuda(torch, int(device.partition(":")[2] or 0))
        version = f"PyTorch {torch.__version__}, {place.config}"
        if mode == "triton":
            try:
                kernels = load_kernels(sys.argv[4])
            except ImportError:
                say(reply="unavailable", reason="Triton isn't installed for python3")
                return
            version = f"Triton {kernels.VERSION}, {version}"
    except Exception as error:
        say(reply="unavailable", reason=str(error).splitlines()[0] if str(error) else
            type(error).__name__)
        return
    say(reply="ready", version=version)
    case, compiled = None, {}
    with torch.inference_mode():
        for line in sys.stdin:
            request = json.loads(line)
            do = request["do"]
            try:
                if do == "exit":
                    return
                if do == "open-control":
                    case = None
                    started = time.perf_counter_ns()
                    try:
                        case = Case(torch, place, mode, kernels, compiled, request)
                        place.wait()
                    except Unsupported:
                        say(reply="unavailable", reason="it doesn't compute this op")
                        continue
                    say(reply="opened", upload_ns=time.perf_counter_ns() - started,
                        preallocated=case.preallocated)
                elif case is None:
                    say(reply="failed", message="no case is open")
                elif do == "check":
                    case.check(request["data"], request["file"])
                elif do == "start":
                    say(reply="measured", samples=case.start(request["protocol"]))
                elif do == "batch":
                    case.batch(1)
                    say(reply="time", ns=case.batch(request["repetitions"]))
                elif do == "device-batch":
                    ns = case.device_batch(request["repetitions"])
                    if ns is None:
                        say(reply="failed", message="the CPU has no clock of its own")
                    else:
                        say(reply="time", ns=ns)
                elif do == "measure":
                    say(reply="measured", samples=case.measure(request["protocol"]))
                else:
                    say(reply="failed", message="not for a control")
            except Exception as error:  # A failed request is a reply; the process lives on.
                say(reply="failed", message=type(error).__name__)


if __name__ == "__main__":
    main()
