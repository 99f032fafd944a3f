"""Row kernels of PyTorch eager, torch.compile and Triton, and a warm-up that compiles them all.

Triton kernels hold a row in one block, tuned over its warps; rows over 65536 columns go through
looped kernels, tuned over block and warps.
"""
import multiprocessing
import os

import torch
import triton
import triton.language as tl

OPS = ["softmax", "rmsnorm", "layernorm"]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# Rows that a Triton block doesn't hold.
LONGEST = 65536


@triton.jit
def softmax_kernel(x, g, b, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    v = tl.load(x + row * n + cols, mask=mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * n + cols, e / tl.sum(e, 0), mask=mask)


@triton.jit
def rmsnorm_kernel(x, g, b, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    v = tl.load(x + row * n + cols, mask=mask, other=0.0).to(tl.float32)
    gamma = tl.load(g + cols, mask=mask, other=0.0).to(tl.float32)
    r = 1.0 / tl.sqrt(tl.sum(v * v, 0) / n + 1e-5)
    tl.store(y + row * n + cols, v * r * gamma, mask=mask)


@triton.jit
def layernorm_kernel(x, g, b, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    v = tl.load(x + row * n + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(v, 0) / n
    c = tl.where(mask, v - mean, 0.0)
    r = 1.0 / tl.sqrt(tl.sum(c * c, 0) / n + 1e-5)
    gamma = tl.load(g + cols, mask=mask, other=0.0).to(tl.float32)
    beta = tl.load(b + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + row * n + cols, c * r * gamma + beta, mask=mask)


@triton.jit
def softmax_loop(x, g, b, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    most = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + cols, mask=cols < n, other=-float("inf"),
                    eviction_policy="evict_last").to(tl.float32)
        new = tl.maximum(most, v)
        total = tl.where(new > -float("inf"), total * tl.exp(most - new) + tl.exp(v - new), total)
        most = new
    top = tl.max(most, 0)
    total = tl.sum(tl.where(most > -float("inf"), total * tl.exp(most - top), 0.0), 0)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + cols, mask=cols < n, other=0.0,
                    eviction_policy="evict_first").to(tl.float32)
        tl.store(y + row + cols, tl.exp(v - top) / total, mask=cols < n)


@triton.jit
def rmsnorm_loop(x, g, b, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + cols, mask=cols < n, other=0.0,
                    eviction_policy="evict_last").to(tl.float32)
        total += v * v
    r = 1.0 / tl.sqrt(tl.sum(total, 0) / n + 1e-5)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + cols, mask=cols < n, other=0.0,
                    eviction_policy="evict_first").to(tl.float32)
        gamma = tl.load(g + cols, mask=cols < n, other=0.0).to(tl.float32)
        tl.store(y + row + cols, v * r * gamma, mask=cols < n)


@triton.jit
def layernorm_loop(x, g, b, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        total += tl.load(x + row + cols, mask=cols < n, other=0.0,
                         eviction_policy="evict_last").to(tl.float32)
    mean = tl.sum(total, 0) / n
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + cols, mask=cols < n, other=0.0,
                    eviction_policy="evict_last").to(tl.float32)
        c = tl.where(cols < n, v - mean, 0.0)
        squares += c * c
    r = 1.0 / tl.sqrt(tl.sum(squares, 0) / n + 1e-5)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        v = tl.load(x + row + cols, mask=cols < n, other=0.0,
                    eviction_policy="evict_first").to(tl.float32)
        gamma = tl.load(g + cols, mask=cols < n, other=0.0).to(tl.float32)
        beta = tl.load(b + cols, mask=cols < n, other=0.0).to(tl.float32)
        tl.store(y + row + cols, (v - mean) * r * gamma + beta, mask=cols < n)


KERNELS = {"softmax": (softmax_kernel, softmax_loop), "rmsnorm": (rmsnorm_kernel, rmsnorm_loop),
           "layernorm": (layernorm_kernel, layernorm_loop)}


class Peers:
    """The calls of one case, on tensors of their own or on `x` and `y`."""

    def __init__(self, op, rows, n, dtype, x=None, y=None):
        self.op, self.rows, self.n = op, rows, n
        self.x = torch.randn(rows, n, device="cuda", dtype=dtype) if x is None else x
        self.gamma = torch.randn(n, device="cuda", dtype=dtype)
        self.beta = torch.randn(n, device="cuda", dtype=dtype)
        self.y = torch.empty_like(self.x) if y is None else y

    def eager(self):
        n, gamma, beta = self.n, self.gamma, self.beta
        if self.op == "softmax":
            return lambda x: torch.softmax(x, -1)
        if self.op == "rmsnorm":
            return lambda x: torch.nn.functional.rms_norm(x, (n,), gamma, 1e-5)
        return lambda x: torch.nn.functional.layer_norm(x, (n,), gamma, beta, 1e-5)

    def compiled(self):
        torch._dynamo.reset()
        call = torch.compile(self.eager())
        call(self.x)
        return call

    def triton(self):
        """Block, warps and call of every configuration."""
        single, loop = KERNELS[self.op]
        if self.n <= LONGEST:
            block = triton.next_power_of_2(self.n)
            configs = [(block, w) for w in [1, 2, 4, 8, 16, 32] if 1 <= block // (32 * w) <= 128]
            kernel = single
        else:
            configs = [(4096, 8), (4096, 16), (8192, 16), (8192, 32), (16384, 32)]
            kernel = loop

        def call(block, warps):
            kernel[(self.rows,)](self.x, self.gamma, self.beta, self.y, self.n, BLOCK=block,
                                 num_warps=warps)
        return [(b, w, lambda b=b, w=w: call(b, w)) for b, w in configs]


def _warm(cases):
    for op, rows, n, dtype in cases:
        try:
            peers = Peers(op, rows, n, DTYPES[dtype])
            peers.compiled()
            for _, _, call in peers.triton():
                call()
            torch.cuda.synchronize()
            del peers
            torch.cuda.empty_cache()
        except Exception as error:  # said again where the case is timed
            print("warm-up:", op, rows, n, dtype, str(error)[:80], flush=True)


def warm(cases, processes=12):
    """Compiles the peers of all cases in several processes, whose caches on disk the caller then
    finds."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    parts = [cases[i::processes] for i in range(processes)]
    context = multiprocessing.get_context("spawn")
    running = [context.Process(target=_warm, args=(part,)) for part in parts if part]
    for process in running:
        process.start()
    return running
