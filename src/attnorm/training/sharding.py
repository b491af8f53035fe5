"""trainer=fsdp: fully sharded data parallel training (FSDP2).

Each process holds a shard of every parameter, of its gradient and of its state in the optimizer. A layer's parameters
are gathered just before the layer runs, and dropped again afterwards.
"""

from collections.abc import Mapping
from typing import Any

from pytorch_lightning.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from attnorm.errors import UserError
from attnorm.models.layers import DecoderLayer, EncoderLayer
from attnorm.tasks.ranks import is_sharded, whole_tensor

LAYERS = (EncoderLayer, DecoderLayer)  # modules that are called as such, which `fully_shard` needs; normalizers are not


class FullySharded(ModelParallelStrategy):
    """Lightning's strategy for FSDP2, with all processes in one data-parallel group.

    The layers of a model (`EncoderLayer`, `DecoderLayer`) are sharded one by one, and the rest of its parameters with
    the model as a whole. A checkpoint has the format of a run with a single process, whatever the number of processes,
    so any number of processes can resume it.
    """

    lightning_restore_optimizer = True

    def __init__(self) -> None:
        super().__init__(save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        # Lightning's defaults are tensor parallel within a machine and data parallel across machines.
        self._data_parallel_size, self._tensor_parallel_size = self.num_processes * self.num_nodes, 1
        super().setup_environment()

    def shard(self, model: nn.Module) -> None:
        """Shards a model. Raises UserError for a parameter without dimensions, which cannot be sharded."""
        from torch.distributed.fsdp import fully_shard

        if is_sharded(model):
            return
        if scalars := [name for name, parameter in model.named_parameters() if parameter.ndim == 0]:
            raise UserError(f"trainer=fsdp: {scalars[0]} has no dimensions; give it the shape (1,), or use trainer=ddp")
        mesh = self.device_mesh["data_parallel"]
        for module in model.modules():
            if isinstance(module, LAYERS):
                fully_shard(module, mesh=mesh)
        fully_shard(model, mesh=mesh)

    # A checkpoint has whole tensors on the CPU, numbered as in the optimizer of a single process, where Lightning would
    # number them in the order of the model.

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The parameters by name."""
        assert self.lightning_module is not None
        return _whole(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The state of an optimizer."""
        return _whole(optimizer.state_dict())

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """The content of a checkpoint."""
        return self.checkpoint_io.load_checkpoint(checkpoint_path)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        assert self.lightning_module is not None
        present = self.lightning_module.state_dict()
        state = {name: in_shards(value, present.get(name)) for name, value in checkpoint["state_dict"].items()}
        self.lightning_module.load_state_dict(state, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            numbers = [number for group in saved["param_groups"] for number in group["params"]]
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            state = {
                number: {key: in_shards(value, parameter) for key, value in saved["state"][number].items()}
                for number, parameter in zip(numbers, parameters, strict=True)
                if number in saved["state"]
            }
            optimizer.load_state_dict({**saved, "state": state})


def _whole(value: Any) -> Any:
    """A state with whole tensors on the CPU in place of shards; all processes must call it."""
    if isinstance(value, Mapping):
        return {key: _whole(item) for key, item in value.items()}
    return whole_tensor(value.detach()).cpu() if isinstance(value, DTensor) else value


def in_shards(value: Any, like: Any) -> Any:
    """A whole tensor in the shards of another one, if it has the same shape; everything else unchanged.

    Every process must hold the whole tensor, so nothing is sent.
    """
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or isinstance(value, DTensor):
        return value
    if value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
