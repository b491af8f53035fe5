"""A number per head that is trained or fixed, such as the score of a sink."""

from typing import Any

import torch
from torch import Tensor, nn

from attnorm.attention.hooks import TrainingHooks
from attnorm.attention.normalizers.scores import upcast
from attnorm.attention.option_checks import finite_number, whole


class HeadNumber(TrainingHooks):
    """A trained number per head with the initial value `start`, or the number `fixed`, which is not trained.

    With `fixed`, `start` has no effect. In a model of 16 bits, a fixed number stays in float32.

    name:  the name under which a trained number is recorded.
    heads: the number of heads. None means one number for all of them.

    Raises ValueError for a `start` or `fixed` that is not a finite number.
    """

    value: Tensor

    def __init__(self, name: str, start: Any, fixed: Any, heads: int | None):
        super().__init__()
        for option, number in {"start": start, "fixed": fixed}.items():
            if not (finite_number(number) or (option == "fixed" and number is None)):
                raise ValueError(f"{option}={number!r}: allowed: finite numbers")
        self.name, self.fixed = name, fixed
        if fixed is None:
            self.value = nn.Parameter(torch.full((1 if heads is None else whole("heads", heads, 1),), float(start)))
        else:
            self.register_buffer("value", torch.tensor([float(fixed)], dtype=torch.float64), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> "HeadNumber":
        super()._apply(fn, recurse)
        if self.fixed is not None:
            dtype = torch.promote_types(self.value.dtype, torch.float32)
            self._buffers["value"] = torch.full_like(self.value, self.fixed, dtype=dtype)
        return self

    def forward(self) -> Tensor:
        """The numbers in float32 or wider, (H, 1, 1) or (1, 1, 1)."""
        # a copy, because a view of a parameter requires a gradient even under no_grad, where hooks do not expect it
        return upcast(self.value)[:, None, None].clone()

    def learned_scalars(self) -> dict[str, Tensor]:
        """The numbers, shape (1,) or (heads,), if they are trained."""
        return {self.name: self.value} if self.fixed is None else {}

    def fast_parameters(self) -> list[nn.Parameter]:
        """The parameter, if there is one."""
        return list(self.parameters())
