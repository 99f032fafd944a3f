"""PyTorch as a control: one JSON request a line in, one JSON reply a line out."""
import json
import os
import sys
import time


def say(**reply):
    print(json.dumps(reply), flush=True)


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
    return None, False


def functional(torch, op):
    """The same without `out`, for the compiler."""
    F = torch.nn.functional
    return {
        "gemm": lambda a, b: torch.mm(a, b),
        "softmax": lambda x: torch.softmax(x, -1),
        "row_sum": lambda x: torch.sum(x, -1),
        "rmsnorm": lambda x, g: F.rms_norm(x, (x.shape[-1],), g, 1e-5),
        "layernorm": lambda x, g, b: F.layer_norm(x, (x.shape[-1],), g, b, 1e-5),
    }.get(op)


class Case:
    def __init__(self, torch, mode, request):
        case = request["case"]
        op, shape = case["op"], case["shape"]
        if case["dtype"] != "f32" or case.get("epilogue"):
            raise ValueError("unsupported")
        trans = case.get("trans") or "nn"
        if op == "gemm":
            m, n, k = shape
            shapes = [(k, m) if trans[0] == "t" else (m, k), (n, k) if trans[1] == "t" else (k, n)]
            result = (m, n)
        else:
            shapes = [tuple(shape)] + [(shape[1],)] * 2
            result = tuple(shape) if op != "row_sum" else (shape[0],)

        def load(files):
            tensors = []
            for file, size in zip(files, shapes):
                with open(file, "rb") as source:
                    data = bytearray(source.read())
                tensor = torch.frombuffer(data, dtype=torch.float32).clone().reshape(size)
                tensors.append(tensor)
            if op == "gemm":
                for i in range(2):
                    if trans[i] == "t":
                        tensors[i] = tensors[i].t()
            return tensors

        self.torch = torch
        self.inputs = {kind: load(request[kind]) for kind in ("dyadic", "random")}
        self.copies = {kind: [t.clone() for t in ts] for kind, ts in self.inputs.items()}
        self.out = torch.full(result, float("nan"), dtype=torch.float32)
        if mode == "compile":
            plain = functional(torch, op)
            self.fn, self.preallocated = (torch.compile(plain) if plain else None), False
        else:
            self.fn, self.preallocated = operation(torch, op, self.out)
        if self.fn is None:
            raise ValueError("unsupported")

    def check(self, kind, file):
        self.out.fill_(float("nan"))
        result = self.fn(*self.inputs[kind])
        same = all(
            self.torch.equal(a, b) for a, b in zip(self.inputs[kind], self.copies[kind])
        )
        with open(file, "wb") as target:
            target.write(result.contiguous().numpy().tobytes() if has_numpy(self.torch)
                         else bytes(result.contiguous().untyped_storage()))
        say(reply="checked", guards_intact=True, inputs_unchanged=same)

    def batch(self, repetitions):
        fn, inputs = self.fn, self.inputs["random"]
        start = time.perf_counter_ns()
        for _ in range(repetitions):
            fn(*inputs)
        return time.perf_counter_ns() - start

    def start(self, protocol):
        cold = self.batch(1)
        calls, passed = 0, 0
        size = 1 if cold > protocol["warmup_ns"] else 8
        while passed < protocol["warmup_ns"]:
            passed += max(1, self.batch(size))
            calls += size
        r = 1
        for _ in range(8):
            ns = self.batch(r)
            if ns >= 0.8 * protocol["sample_ns"] or r == 100000:
                break
            r = min(100000, max(r + 1, int(r * protocol["sample_ns"] / max(ns, 1))))
        return {
            "cold_ns": cold, "warmup_calls": calls, "repetitions": r, "batch_ns": [],
            "single_ns": [], "device_ns": None, "device_repetitions": None,
        }


def has_numpy(torch):
    try:
        torch.zeros(1).numpy()
        return True
    except Exception:
        return False


def main():
    mode, threads = sys.argv[1], int(sys.argv[2])
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ[name] = str(threads)
    try:
        import torch
    except Exception:
        say(reply="unavailable", reason="PyTorch isn't installed for python3")
        return
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    say(reply="ready", version=str(torch.__version__))
    case = None
    with torch.inference_mode():
        for line in sys.stdin:
            request = json.loads(line)
            do = request["do"]
            try:
                if do == "exit":
                    return
                if do == "open-control":
                    started = time.perf_counter_ns()
                    case = None
                    try:
                        case = Case(torch, mode, request)
                    except ValueError:
                        say(reply="unavailable", reason="it doesn't compute this op")
                        continue
                    say(reply="opened", upload_ns=time.perf_counter_ns() - started,
                        preallocated=case.preallocated)
                elif do == "check":
                    case.check(request["data"], request["file"])
                elif do == "start":
                    say(reply="measured", samples=case.start(request["protocol"]))
                elif do == "batch":
                    case.batch(1)
                    say(reply="time", ns=case.batch(request["repetitions"]))
                elif do == "measure":
                    protocol = request["protocol"]
                    samples = case.start(protocol)
                    for _ in range(protocol["samples"]):
                        samples["batch_ns"].append(case.batch(samples["repetitions"]))
                    for _ in range(protocol["single_samples"]):
                        samples["single_ns"].append(case.batch(1))
                    say(reply="measured", samples=samples)
                else:
                    say(reply="failed", message="not for a control")
            except Exception as error:  # A failed request is a reply; the process lives on.
                say(reply="failed", message=type(error).__name__)


main()
