"""Cases of the PyTorch worker on a stand-in for a CUDA device. usage: torch_worker.py FILE KERNELS"""
import importlib.util
import io
import json
import os
import sys
import tempfile
from contextlib import redirect_stdout

os.environ["TRITON_INTERPRET"] = "1"
try:
    import torch
except Exception as error:
    print(f"skipped: {error}")
    sys.exit(0)

spec = importlib.util.spec_from_file_location("torch_worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
PROTOCOL = {"warmup_ns": 1000, "sample_ns": 2_000_000, "samples": 3, "single_samples": 2}


class Place:
    """The CPU, with a clock of its own: 5 us a call. Records what was asked."""

    kind = "cuda"
    device = torch.device("cpu")

    def __init__(self):
        self.recorded, self.waits = [], 0

    def wait(self):
        self.waits += 1

    def record(self, call, repetitions):
        self.recorded.append(repetitions)
        call()
        return lambda: 5000 * repetitions


def files(tensors):
    named = []
    for i, tensor in enumerate(tensors):
        named.append(os.path.join(folder.name, f"{i}.raw"))
        with open(named[-1], "wb") as target:
            target.write(bytes(tensor.contiguous().untyped_storage()))
    return named


def checked(case):
    """The reply of a check, and the output that it wrote."""
    out = io.StringIO()
    path = os.path.join(folder.name, "out.raw")
    with redirect_stdout(out):
        case.check("random", path)
    with open(path, "rb") as source:
        written = torch.frombuffer(bytearray(source.read()), dtype=torch.float32)
    return json.loads(out.getvalue()), written


def opened(mode, op, shape, tensors, place, kernels=None, trans="nn"):
    request = {
        "case": {"op": op, "shape": list(shape), "dtype": "f32", "trans": trans},
        "dyadic": files(tensors), "random": files(tensors), "sets": 2,
    }
    return worker.Case(torch, place, mode, kernels, {}, request)


folder = tempfile.TemporaryDirectory()
a, b, x = torch.randn(5, 7), torch.randn(7, 6), torch.randn(4, 300)
with torch.inference_mode():
    place = Place()
    case = opened("cublas", "gemm", (5, 6, 7), [a, b], place)
    reply, out = checked(case)
    assert reply["guards_intact"] and reply["inputs_unchanged"], reply
    assert torch.allclose(out.reshape(5, 6), a @ b, atol=1e-5)
    # A transposed operand is stored as it is said.
    case_t = opened("cublas", "gemm", (5, 6, 7), [a.t(), b], place, trans="tn")
    assert torch.allclose(checked(case_t)[1].reshape(5, 6), a @ b, atol=1e-5)

    # Every phase, and device batches that fill their time.
    samples = case.measure(PROTOCOL)
    assert samples["device_repetitions"] == 400 and samples["device_ns"] == [2_000_000] * 3, samples
    assert len(samples["batch_ns"]) == 3 and len(samples["single_ns"]) == 2
    assert place.waits > 0 and max(place.recorded) <= worker.MOST_RECORDED
    # One recording in the calibration, and one for all batches.
    assert place.recorded.count(400) == 2, place.recorded
    assert case.device_batch(7) == 35_000

    # Whoever writes beside the output, or to an input, is found out.
    whole, count = case.whole[-1]
    case.whole[0][0][0] = 0.0
    assert not checked(case)[0]["guards_intact"]
    case = opened("cublas", "gemm", (5, 6, 7), [a, b], place)
    case.sets[0][0][0].fill_(1.0)
    assert not checked(case)[0]["inputs_unchanged"]

    # What a mode doesn't compute.
    for mode, op in [("cublas", "softmax"), ("eager", "gelu")]:
        try:
            opened(mode, op, (4, 300), [x], place)
            raise AssertionError(f"{mode} computes {op}")
        except worker.Unsupported:
            pass

    try:
        import triton  # noqa: F401
        with open(sys.argv[2], encoding="utf-8") as source:
            kernels = worker.load_kernels(source.read())
        case = opened("triton", "softmax", (4, 300), [x], place, kernels)
        reply, out = checked(case)
        assert reply["guards_intact"] and case.preallocated
        assert torch.allclose(out.reshape(4, 300), torch.softmax(x, -1), atol=1e-6)
        case.call(), case.call()
        assert all(torch.equal(case.sets[0][1], out) for _, out in case.sets)
        print("ok")
    except ImportError as error:
        print(f"ok without Triton: {error}")
