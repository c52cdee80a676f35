"""Times work on an NVIDIA GPU without the host: from a graph of launches."""

import statistics

import torch


def median_us(work, copies, launches=16, repeats=9):
    """Microseconds that `work(i)` takes, i in turn up to `copies`: a median, once its work was done for each."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for i in range(copies):
            work(i)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for i in range(launches):
            work(i % copies)
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / launches)
    return statistics.median(times)
