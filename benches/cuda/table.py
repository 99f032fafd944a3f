"""Markdown of the outputs of rows.py or of gemm.py.

usage: table.py RESULTS.json...

A case that several files have is taken from the last of them.
"""
import json
import math
import sys

BIG = 256 << 20


def products(cases):
    print("| M×N×K | ours | default plan | cuBLAS | ratio | floor | TFLOP/s |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for c in cases:
        med, trans = c["median"], "" if c["trans"] == "nn" else f" {c['trans']}"
        default = f"{c['default']:.2f}" if c.get("default") else "–"
        print(f"| {c['m']}×{c['n']}×{c['k']}{trans} | {med['ours']:.2f} | {default} | {med['cublas']:.2f} "
              f"| {c['ratio']:.3f} | {c['floor']:.3f} | {c['tflops']:.1f} |")
    ratios = [c["ratio"] for c in cases if c["ratio"] > 0]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"\n{len(cases)} cases, geometric mean {mean:.3f}, smallest {min(ratios):.3f}.")


def case_of(c):
    return tuple(c.get(k) for k in ("op", "rows", "cols", "dtype", "m", "n", "k", "trans"))


def main():
    found, copies = {}, {}
    for path in sys.argv[1:]:
        with open(path) as f:
            results = json.load(f)
        found.update((case_of(c), c) for c in results["cases"])
        for c in results.get("copy", []):
            us = min(c["us"], c["memcpy_us"])
            copies[c["mib"]] = min(us, copies.get(c["mib"], us))
    every = list(found.values())
    if not every:
        sys.exit("usage: table.py RESULTS.json... (at least one case)")
    if "m" in every[0]:
        return products(every)
    print("| rows×columns | dtype | op | ours | default plan | eager | compile | triton | ratio | floor "
          "| TB/s | of copy |")
    print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    logs = []
    cases = [c for c in every if c["ratio"] > 0]  # the others have no result
    for c in sorted(cases, key=lambda c: (c["rows"] * c["cols"], c["dtype"], c["op"])):
        med, size = c["median"], 4 if c["dtype"] == "f32" else 2
        one = c["rows"] * c["cols"] * size
        copy = copies.get(one >> 20)
        share = f"{100 * copy / med['ours']:.0f} %" if copy and 2 * one >= BIG else ""
        default = f"{c['default']:.2f}" if c.get("default") else "–"
        peers = " | ".join(f"{med[p]:.2f}" if p in med else "–" for p in ["eager", "compile", "triton"])
        print(f"| {c['rows']}×{c['cols']} | {c['dtype']} | {c['op']} | {med['ours']:.2f} | {default} | {peers} "
              f"| {c['ratio']:.3f} | {c['floor']:.3f} | {c['tb_per_s']:.2f} | {share} |")
        logs.append((math.log(c["ratio"]), c["floor"]))
    mean = math.exp(sum(l for l, _ in logs) / len(logs))
    print(f"\n{len(logs)} cases, geometric mean {mean:.3f}; by the floor {sum(l > f for l, f in logs)} "
          f"wins and {sum(l < -f for l, f in logs)} losses; "
          f"{sum(l < math.log(0.95) for l, _ in logs)} under 0.95.")


main()
