"""Strict FP32 products on a CUDA device: ours (through the worker) and cuBLAS (torch.mm, no TF32).

usage: gemm.py WORKER OUT.json [--seconds S] [--shapes MxNxK[nt|tn|tt],...] [--limit N]

Both peers of a case are timed in turn, several rounds, by CUDA graphs of back-to-back launches;
medians. An A/A row (ours twice) gives the noise floor of the case. The first `--limit` mappings of
the planner's ranking are tried for each case; what the first one took is the time of a default plan.
The exit status is 1 where a case has no result.
"""
import argparse
import json
import math
import re
import statistics
import sys
import time

import torch

from harness import Worker, graph_of, time_graph

SHAPES = [(32, 32, 32), (128, 128, 128), (127, 193, 61), (256, 1024, 128), (513, 257, 129),
          (1024, 128, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048),
          (4096, 4096, 4096), (16, 4096, 4096), (64, 4096, 4096), (4096, 4096, 64),
          (4095, 4097, 4093)]
AIMS = {(32, 32, 32): 1.8, (128, 128, 128): 2.8, (127, 193, 61): 2.4, (256, 1024, 128): 4.2,
        (513, 257, 129): 4.6, (1024, 128, 256): 5.4, (512, 512, 512): 10.5,
        (1024, 1024, 1024): 52, (16, 4096, 4096): 28}
ROUNDS = 5


def describe(row):
    m = row.get("mapping") or {}
    if not m:
        return ""
    block = [m["warps"][i] * m["lanes"][i] * m["tile"][i] for i in (0, 1)]
    return (f"{block[0]}x{block[1]}x{m['depth']} w{m['warps']} t{m['tile']} s{m['stages']} "
            f"z{m['slices']} c{m['copy']} regs {row.get('registers')} r{row.get('groups_per_core')}")


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("worker")
    parser.add_argument("out")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--shapes", type=lambda text: text.split(","))
    parser.add_argument("--limit", type=int, default=64)
    return parser.parse_args()


def main():
    options = arguments()
    torch.backends.cuda.matmul.allow_tf32 = False
    worker = Worker(options.worker)
    deadline = time.time() + options.seconds
    cases = [(shape, "nn") for shape in SHAPES]
    if options.shapes:
        found = [re.fullmatch(r"(\d+)x(\d+)x(\d+)(nt|tn|tt)?", s) for s in options.shapes]
        cases = [(tuple(map(int, s.groups()[:3])), s[4] or "nn") for s in found]
    print(worker.ask(cmd="facts"))
    results = {"torch": torch.__version__, "cases": []}
    for (m, n, k), trans in cases:
        if time.time() > deadline:
            print("out of time")
            break
        started = time.time()
        ours = worker.ask(cmd="prepare", m=m, n=n, k=k, trans=trans, limit=options.limit)
        prepared = time.time() - started
        a = torch.rand(*((k, m) if trans[0] == "t" else (m, k)), device="cuda") * 2 - 1
        b = torch.rand(*((n, k) if trans[1] == "t" else (k, n)), device="cuda") * 2 - 1
        a, b = a.t() if trans[0] == "t" else a, b.t() if trans[1] == "t" else b
        c = torch.empty(m, n, device="cuda")
        peer = graph_of(lambda: torch.mm(a, b, out=c), fewest=2, most=400)
        samples = {"ours": [], "ours_again": [], "cublas": []}
        for r in range(ROUNDS):
            names = list(samples)
            names = names[r % 3:] + names[:r % 3]
            for name in names:
                if name == "cublas":
                    samples[name].append(time_graph(peer))
                else:
                    samples[name].append(worker.ask(cmd="time", rounds=3).get("us", math.inf))
        med = {key: statistics.median(v) for key, v in samples.items()}
        ratio = med["cublas"] / med["ours"]
        pairs = zip(samples["ours"], samples["ours_again"])
        floor = max(abs(math.log(x / y)) for x, y in pairs) if math.isfinite(med["ours"]) else math.nan
        tflops = 2 * m * n * k / med["ours"] * 1e-6
        best = ours.get("best") or {}
        tried = ours.get("candidates") or []
        failed = [t["failed"] for t in tried if "failed" in t]
        default = (tried[0].get("graph_us") or tried[0].get("us")) if tried else None
        results["cases"].append({"m": m, "n": n, "k": k, "trans": trans, "median": med, "samples": samples, "ratio": ratio,
                                 "floor": floor, "tflops": tflops, "prepare_s": prepared,
                                 "compile_s": ours.get("compile_s"), "best": best, "default": default,
                                 "candidates": tried, "error": ours.get("error")})
        aim = AIMS.get((m, n, k))
        print(f"{m}x{n}x{k} {trans}: ours {med['ours']:9.2f} us, cuBLAS {med['cublas']:9.2f}, ratio {ratio:5.3f}, floor {floor:.3f}, "
              f"{tflops:5.1f} TFLOP/s{f', aim {aim}' if aim else ''}; {describe(best)}; err {best.get('error', math.nan):.2f}; default {default or math.nan:.2f}; "
              f"{len(tried)} tried, {len(failed)} failed, {prepared:.1f} s ({ours.get('compile_s', 0):.1f} compiling) "
              f"{ours.get('error') or ''} {failed[0][:120] if failed else ''}", flush=True)
        del a, b, c, peer
        torch.cuda.empty_cache()
        with open(options.out, "w") as f:
            json.dump(results, f)
    ratios = [case["ratio"] for case in results["cases"] if case["ratio"] > 0]
    if ratios:
        print("cases", len(ratios), "geomean", math.exp(sum(map(math.log, ratios)) / len(ratios)),
              "under 0.97:", sum(r < 0.97 for r in ratios))
    if len(ratios) < len(cases):
        sys.exit(f"{len(ratios)} of {len(cases)} cases have a result")


if __name__ == "__main__":
    main()
