"""Row kernels on a CUDA device: ours (through the worker), PyTorch eager, torch.compile, Triton.

usage: rows.py WORKER OUT.json [--seconds S] [--shapes ROWSxCOLUMNS,...] [--limit N]
                               [--earlier EARLIER.json] [--shared] [--warmed]
       rows.py --warm

Every peer of a case is timed in turn, several rounds, by CUDA graphs of back-to-back launches;
medians. An A/A row (ours twice) gives the noise floor of the case. The first `--limit` mappings of
the planner's ranking are tried for each case, the fastest of them with every hint to the cache; with
the output of an earlier run, only those that were fastest there. `default` is the time of the
ranking's first. `--shared` puts peers on the tensors of ours, those of 4 MiB or more: on the same
pages, but slower for them (RESULTS.md). `--warm` compiles the peers of all cases and ends;
`--warmed` relies on that. The exit status is 1 where a case has no result.
"""
import argparse
import json
import math
import statistics
import sys
import time

import torch
import triton

from harness import Opened, Worker, graph_of, time_graph
from row_peers import DTYPES, OPS, Peers, warm

SHAPES = [(23, 769), (37, 1537), (128, 2048), (256, 3072), (1024, 4096), (768, 6144), (128, 8193),
          (64, 12289), (4096, 4096), (32768, 1024), (4096, 131072), (16384, 8192), (8192, 32768)]
ROUNDS = 5
GRAPH_US = 2000.0
# Smallest tensors that peers share with ours.
SHARED = 4 << 20
# Mappings of an earlier run that are tried again.
SHORTLIST = 8


def shortlist(earlier, case):
    for other in earlier.get("cases", []):
        if [other[k] for k in ("op", "rows", "cols", "dtype")] == list(case):
            timed = [c for c in other.get("candidates") or [] if "us" in c]
            timed.sort(key=lambda c: c["us"])
            if timed:
                return {"mappings": [c["mapping"] for c in timed[:SHORTLIST]]}
    return {}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("worker", nargs="?")
    parser.add_argument("out", nargs="?")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--shapes", type=lambda text: text.split(","))
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--earlier")
    for flag in ["--shared", "--warmed", "--warm"]:
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    if not options.warm and options.out is None:
        parser.error("WORKER and OUT.json are missing")
    return options


def measure(worker, case, earlier, options):
    op, rows, n, dtype = case
    started = time.time()
    ours = worker.ask(cmd="prepare", op=op, rows=rows, cols=n, dtype=dtype,
                      limit=options.limit, **shortlist(earlier, case))
    prepared = time.time() - started
    buffers = []
    if options.shared:
        buffers = worker.ask(cmd="share", least=SHARED).get("buffers", [])
    opened = Opened(buffers, (rows, n), DTYPES[dtype])
    try:
        return compare(worker, case, ours, prepared, opened)
    finally:
        opened.close()


def default_of(tried):
    """The time of the first mapping: by a long graph where it was timed by one."""
    return tried and (tried[0].get("graph_us") or tried[0].get("us"))


def compare(worker, case, ours, prepared, opened):
    op, rows, n, dtype = case
    peers = Peers(op, rows, n, DTYPES[dtype], opened.read, opened.written)
    x = peers.x
    calls = {"eager": lambda f=peers.eager(): f(x)}
    try:
        calls["compile"] = lambda f=peers.compiled(): f(x)
    except Exception as error:  # a peer that fails is said, and is no peer
        print("compile failed:", str(error)[:100])
    def reset():
        # Nothing is there to be reset, and nothing compared, where none of ours is right.
        answer = worker.ask(cmd="reset")
        if "error" in answer and ours.get("best"):
            raise RuntimeError(f"the cache can't be reset: {answer['error']}")

    best = None
    for block, warps, call in peers.triton():
        reset()
        try:
            us = time_graph(graph_of(call, 300.0), 2, warm=1)
        except Exception as error:
            print("triton", block, warps, str(error)[:80])
            continue
        if best is None or us < best[0]:
            best = (us, [block, warps], call)
    if best:
        calls["triton"] = best[2]
    graphs = {name: graph_of(call, GRAPH_US) for name, call in calls.items()}
    samples = {name: [] for name in ["ours", "ours_again", *graphs]}
    for r in range(ROUNDS):
        names = list(samples)
        names = names[r % len(names):] + names[:r % len(names)]
        for name in names:
            # Peers and candidates mark lines to stay in the cache; none may meet those of another.
            reset()
            if name.startswith("ours"):
                samples[name].append(worker.ask(cmd="time", rounds=3).get("us", math.inf))
            else:
                samples[name].append(time_graph(graphs[name], warm=1))
    med = {k: statistics.median(v) for k, v in samples.items()}
    rival = min((v, k) for k, v in med.items() if not k.startswith("ours"))
    finite = math.isfinite(med["ours"])
    floor = max(abs(math.log(a / b)) for a, b in zip(samples["ours"], samples["ours_again"])) \
        if finite else math.nan
    return {"op": op, "rows": rows, "cols": n, "dtype": dtype, "median": med, "samples": samples,
            "rival": rival[1], "ratio": rival[0] / med["ours"], "floor": floor,
            "tb_per_s": 2 * rows * n * x.element_size() / med["ours"] * 1e-6,
            "triton": best and best[1], "shared": opened.read is not None,
            "prepare_s": prepared, "best": ours.get("best"), "error": ours.get("error"),
            "default": default_of(ours.get("candidates")), "candidates": ours.get("candidates")}


def main():
    began, options = time.time(), arguments()
    deadline = began + options.seconds
    earlier = {}
    if options.earlier:
        with open(options.earlier) as f:
            earlier = json.load(f)
    shapes = [s for s in SHAPES if not options.shapes or f"{s[0]}x{s[1]}" in options.shapes]
    cases = [(op, rows, n, dtype) for rows, n in shapes for dtype in DTYPES for op in OPS]
    for process in [] if options.warmed else warm(cases):
        process.join(timeout=max(1.0, min(120.0, deadline - time.time())))
    print(f"peers compiled after {time.time() - began:.0f} s", flush=True)
    if options.warm:
        return
    worker = Worker(options.worker)
    print(worker.ask(cmd="facts"))
    results = {"torch": torch.__version__, "triton": triton.__version__, "cases": [], "copy": [],
               "empty": {g: worker.ask(cmd="empty", groups=g) for g in [1, 132, 1024]}}
    print("empty kernel", results["empty"])
    for mib in sorted({rows * n * (4 if d == "f32" else 2) >> 20 for _, rows, n, d in cases} - {0}):
        if mib < 32:
            continue
        answer = worker.ask(cmd="copy", bytes=mib << 20)
        a = torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
        b = torch.empty_like(a)
        engine = time_graph(graph_of(lambda: b.copy_(a), GRAPH_US))
        del a, b
        torch.cuda.empty_cache()
        print("copy", mib, "MiB:", answer, f"cudaMemcpy {engine:.1f} us")
        results["copy"].append({"mib": mib, "memcpy_us": engine, **answer})
    for case in cases:
        if time.time() > deadline:
            print("out of time")
            break
        row = measure(worker, case, earlier, options)
        results["cases"].append(row)
        torch.cuda.empty_cache()
        m = (row["best"] or {}).get("mapping") or {}
        med = row["median"]
        print(f"{row['rows']}x{row['cols']} {row['dtype']} {row['op']} {med['ours']:.2f} "
              f"d{row['default'] or math.nan:.2f} "
              + " ".join(f"{k[0]}{v:.2f}" for k, v in med.items() if not k.startswith("ours"))
              + f" ratio {row['ratio']:.3f} floor {row['floor']:.3f} {row['tb_per_s']:.2f} "
              f"C{m.get('cluster', 1)}S{m.get('subgroups')}V{m.get('vector')}"
              f"A{m.get('accumulators')}{'c' if m.get('cache') else ''}"
              f"{'a' if m.get('ahead') else ''} {m.get('residency', '')} {row['error'] or ''}",
              flush=True)
        with open(options.out, "w") as f:
            json.dump(results, f)
    rows = [c for c in results["cases"] if math.isfinite(c["ratio"]) and c["ratio"] > 0]
    if rows:
        logs = [math.log(c["ratio"]) for c in rows]
        print("cases", len(rows), "geomean", round(math.exp(sum(logs) / len(logs)), 4),
              "wins", sum(r > c["floor"] for r, c in zip(logs, rows)),
              "losses", sum(r < -c["floor"] for r, c in zip(logs, rows)),
              "under 0.95:", sum(c["ratio"] < 0.95 for c in rows),
              f"after {time.time() - began:.0f} s")
    if len(rows) < len(cases):
        sys.exit(f"{len(rows)} of {len(cases)} cases have a result")


if __name__ == "__main__":
    main()
