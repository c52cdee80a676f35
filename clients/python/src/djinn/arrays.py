"""Arrays in and out: anything that numpy reads, PyTorch's tensors among it, becomes f32; safetensors become arrays."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import safetensors.numpy

from .types import Floats


def floats(values: Any) -> Floats:
    """f32, contiguous, of a list, an array or a tensor on any device.

    :raises ValueError: a number is not finite.
    """
    if hasattr(values, "detach") and hasattr(values, "cpu"):
        values = values.detach().cpu()
        # numpy knows no bfloat16.
        values = values.float().numpy()
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(values, dtype=np.float32)
    if not np.isfinite(array).all():
        raise ValueError("the values are not all finite")
    return array


def vector(values: Any) -> Floats:
    """A direction, f32 `[width]`.

    :raises ValueError: it has another shape, or a number is not finite.
    """
    array = floats(values)
    if array.ndim != 1:
        raise ValueError(f"a vector is [width], not of shape {array.shape}")
    return array


def indices(values: Iterable[Any]) -> list[int]:
    """Whole numbers, ascending or not.

    :raises TypeError: one is not whole.
    """
    return [operator.index(value) for value in values]


def pack(**tensors: Floats) -> bytes:
    """The bytes of a safetensors file."""
    return safetensors.numpy.save(tensors)


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors of a safetensors file, as arrays, and its metadata."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return safetensors.numpy.load(data), header.get("__metadata__", {})
