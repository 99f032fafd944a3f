"""What the CUDA benchmarks share: worker processes and timing by graphs."""
import json
import statistics
import subprocess

import torch


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


def time_graph(pair, rounds=3):
    """Median device time of one call in microseconds."""
    g, n = pair
    out = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        g.replay()
        end.record()
        torch.cuda.synchronize()
        out.append(start.elapsed_time(end) * 1e3 / n)
    return statistics.median(out)
