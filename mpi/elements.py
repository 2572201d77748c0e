"""Element types: which can be summed, and in which type they are. Two bytes are too few to add up in.

float16 and bfloat16 are summed, and sent, as float32 and rounded once at the end, so that a mean is as right as its
result can be shown: four times 40,000 sum to 160,000, which float16 has not, and average to 40,000, which it has.
"""

from __future__ import annotations

import numpy as np

#: What each type is summed in. numpy has no bfloat16: its bits come as uint16 and must be named.
SUMMED_IN = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "float16": np.dtype(np.float32),
    "bfloat16": np.dtype(np.float32),
}


def widened(buffer: np.ndarray, name: str) -> np.ndarray:
    """A copy of ``buffer``, one-dimensional, in the type it is summed in. float16 and bfloat16 only."""
    flat = buffer.reshape(-1)
    if name == "float16":
        return flat.astype(np.float32)
    return (flat.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def narrowed(values: np.ndarray, name: str, out: np.ndarray) -> None:
    """Round float32 ``values`` to nearest, ties to even, into ``out``; what is too large becomes infinite."""
    flat = out.reshape(-1)
    if name == "float16":
        with np.errstate(over="ignore"):
            flat[:] = values
        return
    bits = values.view(np.uint32)
    # Carries from the dropped half go where they belong, up into the exponent.
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    # But not out of a NaN's: keep its sign and make it quiet.
    flat.view(np.uint16)[:] = np.where(np.isnan(values), (bits >> 16 & 0x8000 | 0x7FC0).astype(np.uint16), rounded)


#: What can be done with what all ranks give.
OPERATIONS = ("sum", "mean")


def refused(buffer: np.ndarray, out: np.ndarray, op: str, name: str) -> str | None:
    """Why ``buffer`` of elements ``name`` cannot be reduced into ``out``, or None."""
    if name not in SUMMED_IN:
        return f"all-reduce of {name}; the types are {', '.join(SUMMED_IN)}"
    if name != buffer.dtype.name and (name, buffer.dtype.name) != ("bfloat16", "uint16"):
        return f"all-reduce of {buffer.dtype.name} as {name}; bfloat16 comes as uint16, other types as themselves"
    if op not in OPERATIONS:
        return f"op is {op!r}; it must be one of {', '.join(OPERATIONS)}"
    if op == "mean" and name.startswith("int"):
        return f"mean of {name}; the types are {', '.join(kind for kind in SUMMED_IN if 'float' in kind)}"
    if not (buffer.flags.c_contiguous and out.flags.c_contiguous):
        return "all-reduce of an array that is not contiguous"
    if not out.flags.writeable:
        return "all-reduce into an array that is read-only"
    if (out.shape, out.dtype) != (buffer.shape, buffer.dtype):
        return f"all-reduce of {buffer.dtype.name}{[*buffer.shape]} into {out.dtype.name}{[*out.shape]}"
    if out is not buffer and np.may_share_memory(buffer, out):
        return "all-reduce into an array that overlaps its input"
    return None
