"""How long memory takes to be read at all on an NVIDIA GPU from sm_90 on, for scripts that time kernels that read it."""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch
from timing import median_us

# Blocks of a multiprocessor, warps of a block, and stages of a warp's ring of 4 KiB each: all were the fastest for some size
# on an H200 machine.
SHAPES = ((2, 4, 1), (3, 4, 2), (4, 4, 3), (3, 4, 4), (1, 8, 4), (3, 8, 2))
STAGE = 4096


class Reads(ctypes.Structure):
    _fields_ = [
        ("from_", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        *((name, ctypes.c_uint32) for name in "chunks bytes stages early".split()),
    ]


class Reader:
    def __init__(self):
        with tempfile.TemporaryDirectory() as folder:
            library, source = Path(folder) / "reads.so", Path(__file__).with_name("reads.cu")
            major, minor = torch.cuda.get_device_capability()
            command = ["nvcc", "-shared", "-Xcompiler=-fPIC", "-std=c++17", "-O3", f"-arch=sm_{major}{minor}"]
            subprocess.run([*command, "-o", library, source], check=True)
            self.library = ctypes.CDLL(str(library))

    def us(self, buffers, *, chunk=STAGE, shuffled=False, early=False):
        """
        Microseconds that one of the tensors takes, in turn, in chunks of so many bytes: those of the fastest shape. `shuffled`:
        in random order, as pages lie. `early`: read before the kernel before has ended, as weights are.
        """
        chunks, blocks = buffers[0].nbytes // chunk, torch.cuda.get_device_properties(0).multi_processor_count
        order = torch.randperm(chunks, device="cuda", dtype=torch.int32) if shuffled else None
        launches = max(3, min(16, (8 << 30) // buffers[0].nbytes))

        def time(at_once, warps, stages):
            order_at = None if order is None else order.data_ptr()
            args = [Reads(b.data_ptr(), order_at, chunks, chunk, stages * STAGE // chunk or 1, early) for b in buffers]

            def work(i):
                stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
                grid = min(blocks * at_once, -(-chunks // warps))
                code = self.library.read_chunks(ctypes.byref(args[i]), grid, warps, stream)
                if code:
                    raise RuntimeError(f"read_chunks: CUDA error {code}")

            return median_us(work, len(buffers), launches, repeats=5)

        return min(time(*shape) for shape in SHAPES)
