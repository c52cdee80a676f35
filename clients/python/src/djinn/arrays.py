"""Arrays in and out: anything that numpy reads, PyTorch's tensors among it, becomes f32; safetensors become arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import safetensors.numpy

from .types import Floats


def floats(values: Any) -> Floats:
    """f32, contiguous, of a list, an array or a tensor on any device."""
    if hasattr(values, "detach") and hasattr(values, "cpu"):
        values = values.detach().cpu()
        # numpy knows no bfloat16.
        values = values.float().numpy()
    return np.ascontiguousarray(values, dtype=np.float32)


def pack(**tensors: Floats) -> bytes:
    """The bytes of a safetensors file."""
    return safetensors.numpy.save(tensors)


def unpack(data: bytes) -> dict[str, Any]:
    """The tensors of a safetensors file, as arrays."""
    return safetensors.numpy.load(data)
