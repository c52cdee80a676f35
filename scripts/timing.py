"""Times work on an NVIDIA GPU without the host: from a graph of launches."""

import statistics

import torch


def captured(work, copies, launches):
    """A graph of `launches` times `work(i)`, i in turn up to `copies`, once its work was done for each."""
    side = torch.cuda.Stream()
    # What was made for the work on this stream is there, and what was freed on it is no longer used.
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for i in range(copies):
            work(i)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for i in range(launches):
            work(i % copies)
    return graph


def medians_us(works, copies, launches=16, repeats=9):
    """Microseconds that each `work(i)` takes, i in turn up to `copies`: medians of times taken in turns."""
    graphs = [captured(work, copies, launches) for work in works]
    times = [[] for _ in works]
    for _ in range(repeats):
        for graph, mine in zip(graphs, times):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            mine.append(begin.elapsed_time(end) * 1e3 / launches)
    return [statistics.median(mine) for mine in times]


def median_us(work, copies, launches=16, repeats=9):
    """The same of one."""
    return medians_us([work], copies, launches, repeats)[0]
