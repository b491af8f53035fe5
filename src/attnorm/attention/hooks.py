"""Hooks through which a normalizer or scorer declares how its parameters are recorded and trained."""

from collections.abc import Iterable

from torch import Tensor, nn


class TrainingHooks(nn.Module):
    """Base class of normalizers and scorers. A subclass overrides the hooks that it needs; by default they do nothing.

    A normalizer with a learned temperature, for example, is watched during training if it returns
    ``{"temperature": self.log_temperature.exp()}`` from `learned_scalars`.
    """

    def learned_scalars(self) -> dict[str, Tensor]:
        """Learned scalars that are worth recording during training, by name.

        Each value is a tensor with one element or one element per head, shape (1,) or (heads,). A scalar is recorded in
        ``<name>.csv``, so its name must be a Python identifier.
        """
        return {}

    def fast_parameters(self) -> Iterable[nn.Parameter]:
        """Parameters that are trained with ``optimizer.lr * optimizer.hybrid_lr_factor`` and without weight decay.

        Adam moves a parameter by about its learning rate per update, whatever its gradient, so at the learning rate of
        the weight matrices a scalar would hardly leave its initial value. Parameters of submodules that have hooks of
        their own need not be repeated.
        """
        return ()

    def project_(self) -> None:
        """Moves parameters back into their allowed range, in place.

        It is called after each optimizer update, under `torch.no_grad`.
        """
