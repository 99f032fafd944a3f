"""Row kernels on a CUDA device: ours (through the worker), PyTorch eager, torch.compile, Triton.

usage: rows.py WORKER OUT.json [quick|full [SECONDS [ROWSxCOLUMNS,...]]]

Every peer of a case is timed in turn, several rounds, by CUDA graphs of back-to-back launches;
medians. An A/A row (ours twice) gives the noise floor of the case.
"""
import json
import math
import statistics
import sys
import time

import torch
import triton
import triton.language as tl

from harness import Worker, graph_of, time_graph

SHAPES = [(23, 769), (37, 1537), (128, 2048), (256, 3072), (1024, 4096), (768, 6144), (128, 8193),
          (64, 12289), (4096, 4096), (32768, 1024), (16384, 8192), (8192, 32768), (4096, 131072)]
OPS = ["softmax", "rmsnorm", "layernorm"]
ROUNDS = 5


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


KERNELS = {"softmax": softmax_kernel, "rmsnorm": rmsnorm_kernel, "layernorm": layernorm_kernel}


def eager(op, n, gamma, beta):
    if op == "softmax":
        return lambda x: torch.softmax(x, -1)
    if op == "rmsnorm":
        return lambda x: torch.nn.functional.rms_norm(x, (n,), gamma, 1e-5)
    return lambda x: torch.nn.functional.layer_norm(x, (n,), gamma, beta, 1e-5)


def main():
    worker = Worker(sys.argv[1])
    quick = len(sys.argv) > 3 and sys.argv[3] == "quick"
    deadline = time.time() + float(sys.argv[4]) if len(sys.argv) > 4 else None
    print(worker.ask(cmd="facts"))
    results = {"torch": torch.__version__, "triton": triton.__version__, "cases": [], "copy": []}
    for mib in [] if quick else [64, 256, 1024]:
        answer = worker.ask(cmd="copy", bytes=mib << 20)
        print("copy", mib, "MiB:", answer)
        results["copy"].append({"mib": mib, **answer})
    shapes = SHAPES
    if len(sys.argv) > 5:
        wanted = sys.argv[5].split(",")
        shapes = [s for s in SHAPES if f"{s[0]}x{s[1]}" in wanted]
    for rows, n in shapes:
        for dtype_name, dtype in [("f32", torch.float32), ("bf16", torch.bfloat16)]:
            for op in OPS:
                if deadline and time.time() > deadline:
                    print("out of time")
                    break
                started = time.time()
                ours = worker.ask(cmd="prepare", op=op, rows=rows, cols=n, dtype=dtype_name)
                prepared = time.time() - started
                x = torch.randn(rows, n, device="cuda", dtype=dtype)
                gamma = torch.randn(n, device="cuda", dtype=dtype)
                beta = torch.randn(n, device="cuda", dtype=dtype)
                y = torch.empty_like(x)
                peers = {}
                f = eager(op, n, gamma, beta)
                peers["eager"] = graph_of(lambda: f(x))
                if not quick:
                    try:
                        torch._dynamo.reset()
                        c = torch.compile(f)
                        c(x)
                        peers["compile"] = graph_of(lambda: c(x))
                    except Exception as error:  # a peer that fails is said, and is no peer
                        print("compile failed:", str(error)[:100])
                if n <= 65536:
                    kernel, block = KERNELS[op], triton.next_power_of_2(n)
                    best = None
                    for warps in [1, 2, 4, 8, 16, 32]:
                        if block // (warps * 32) > 256:
                            continue
                        call = lambda w=warps: kernel[(rows,)](x, gamma, beta, y, n, BLOCK=block, num_warps=w)
                        try:
                            pair = graph_of(call, 500.0)
                        except Exception as error:
                            print("triton", warps, str(error)[:80])
                            continue
                        t = time_graph(pair)
                        if best is None or t < best[0]:
                            best = (t, warps, call)
                    peers["triton"] = graph_of(best[2])
                samples = {name: [] for name in ["ours", "ours_again", *peers]}
                for r in range(ROUNDS):
                    names = list(samples)
                    names = names[r % len(names):] + names[:r % len(names)]
                    for name in names:
                        if name.startswith("ours"):
                            samples[name].append(worker.ask(cmd="time", rounds=3).get("us", math.inf))
                        else:
                            samples[name].append(time_graph(peers[name]))
                med = {k: statistics.median(v) for k, v in samples.items()}
                rival = min((v, k) for k, v in med.items() if not k.startswith("ours"))
                ratio = rival[0] / med["ours"]
                floor = max(abs(math.log(a / b)) for a, b in zip(samples["ours"], samples["ours_again"])) \
                    if math.isfinite(med["ours"]) else math.nan
                gbs = 2 * rows * n * x.element_size() / med["ours"] * 1e-6
                case = {"op": op, "rows": rows, "cols": n, "dtype": dtype_name, "median": med,
                        "samples": samples, "rival": rival[1], "ratio": ratio, "floor": floor,
                        "tb_per_s": gbs, "prepare_s": prepared,
                        "best": ours.get("best"), "error": ours.get("error"),
                        "candidates": ours.get("candidates")}
                results["cases"].append(case)
                b = (ours.get("best") or {}).get("mapping") or {}
                print(f"{op:9} {rows}x{n} {dtype_name:4} ours {med['ours']:9.2f} us  best peer {rival[0]:9.2f} ({rival[1]:7}) "
                      f"ratio {ratio:5.2f} floor {floor:.3f} {gbs:5.2f} TB/s  S{b.get('subgroups')} V{b.get('vector')} P{b.get('pack')} A{b.get('accumulators')} "
                      f"c{int(b.get('cache', 0))} regs {(ours.get('best') or {}).get('registers')} {ours.get('error') or ''}", flush=True)
                del x, y, peers
                torch.cuda.empty_cache()
    with open(sys.argv[2], "w") as f:
        json.dump(results, f)
    ratios = [c["ratio"] for c in results["cases"] if math.isfinite(c["ratio"]) and c["ratio"] > 0]
    if ratios:
        print("cases", len(ratios), "geomean", math.exp(sum(map(math.log, ratios)) / len(ratios)),
              "wins", sum(r > 1 for r in ratios), "under 0.95:", sum(r < 0.95 for r in ratios))


main()
