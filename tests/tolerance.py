"""How far two floating-point computations of the same numbers may lie apart on any processor."""

import math

import torch
from torch import Tensor

OPERATIONS = 16  # rounded operations in sequence per layer of a Transformer


def rounding(dtype: torch.dtype, *, depth: float = 1, size: int = 1) -> float:
    r"""The relative difference that rounding alone may cause: $16 \cdot eps \cdot depth \cdot \sqrt{size}$.

    Processors add the same numbers in different orders: AVX2, AVX-512 and AMX sum different lanes together, and a
    matrix library chooses its blocks by processor, thread count and shape. Each order is correct up to rounding.

    - Each of the $n$ additions of a sum has a relative error of at most $eps / 2$. These errors are nearly independent,
      so the error of the sum grows with $\sqrt{n}$, not with its worst case $n$ (Higham and Mary, "A New Approach to
      Probabilistic Rounding Error Analysis", 2019).
    - Operations in sequence pass their errors on and add their own, so the error grows linearly with depth.
    - A layer of a Transformer has about 16 rounded operations in sequence (norms, projections, scores, normalizer,
      weighted sum, feed-forward layers, residuals). Two computations are compared, and both round: twice 16 times
      $eps / 2$ is the factor $16 \cdot eps$.

    A wrong formula is still found: at depth 4 and width 64, float32 gives 6e-5.

    dtype: the narrowest type that either computation rounds to.
    depth: layers in sequence; 1 for a single call such as attention or a loss, a fraction for a part of a layer.
    size:  length of the longest sum, such as the width, the number of keys or the number of classes.
    """
    return OPERATIONS * torch.finfo(dtype).eps * depth * math.sqrt(size)


def tolerance(dtype: torch.dtype, *, depth: float = 1, size: int = 1, scale: float | Tensor = 1.0) -> dict[str, float]:
    """`rounding` as the rtol and atol of `torch.testing.assert_close`.

    scale: the magnitude of the terms that are summed; 1 suits the states behind a norm. A result near 0 may be the
           difference of two terms of this size, so its error is relative to them and atol is proportional to `scale`.
    """
    relative = rounding(dtype, depth=depth, size=size)
    return {"rtol": relative, "atol": relative * (scale.item() if isinstance(scale, Tensor) else scale)}
