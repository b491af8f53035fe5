"""trainer=fsdp: fully sharded data parallel training (FSDP2).

Each process holds a shard of every parameter, of its gradient and of its state in the optimizer. A layer's parameters
are gathered just before the layer runs, and dropped again afterwards.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from attnorm.errors import UserError
from attnorm.models.layers import DecoderLayer, EncoderLayer
from attnorm.run.checkpoint import load_file
from attnorm.run.shards import SHARDS, remove_unused, save_shards, with_shards
from attnorm.tasks.ranks import is_sharded, whole

LAYERS = (EncoderLayer, DecoderLayer)  # modules that are called as such, which `fully_shard` needs; normalizers are not


class FullySharded(ModelParallelStrategy):
    """Lightning's strategy for FSDP2, with all processes in one data-parallel group.

    The layers of a model (`EncoderLayer`, `DecoderLayer`) are sharded one by one, and the rest of its parameters with
    the model as a whole. A checkpoint has the format of a run with a single process, whatever the number of processes,
    so any number of processes can resume it.

    sharded_checkpoints: each process writes its own shards into a folder beside the checkpoint (by
                         `torch.distributed.checkpoint`), instead of sending them to the first process, which writes one
                         file. This is faster for large models.
    """

    lightning_restore_optimizer = True

    def __init__(self, sharded_checkpoints: bool = False):
        super().__init__(save_distributed_checkpoint=False)
        self.sharded_checkpoints = sharded_checkpoints

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

    # A checkpoint has whole tensors on the CPU, numbered as in the optimizer of a single process, or shards of them.

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The parameters by name."""
        assert self.lightning_module is not None
        return self._portable(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The state of an optimizer."""
        return self._portable(optimizer.state_dict())

    def _portable(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._portable(item) for key, item in value.items()}
        if isinstance(value, DTensor):
            return value.detach() if self.sharded_checkpoints else whole(value.detach()).cpu()
        return value

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None) -> None:
        path = Path(self.broadcast(str(filepath)))
        if self.sharded_checkpoints:
            checkpoint = save_shards(checkpoint, path.parent)
        if self.is_global_zero:
            self.checkpoint_io.save_checkpoint(checkpoint, path)
            remove_unused(path.parent)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """The content of a checkpoint. Of tensors in shards, each process reads only what it needs."""
        file = Path(self.broadcast(str(checkpoint_path)))
        content = load_file(file)
        if SHARDS not in content:
            return self.checkpoint_io.load_checkpoint(file)
        assert self.lightning_module is not None
        parameters = self.lightning_module.state_dict()
        numbered = [dict(zip(*pair, strict=True)) for pair in self._numbered(content["optimizer_states"])]

        def template(path: list[Any], size: torch.Size, dtype: torch.dtype) -> Tensor:
            like = parameters[path[1]] if path[0] == "state_dict" else numbered[path[1]][path[3]]
            if like.shape != size:
                raise UserError(f"{'.'.join(map(str, path))} has the shape {tuple(size)}, not {tuple(like.shape)}")
            return torch.empty_like(like, dtype=dtype)

        return with_shards(content, file, template)

    def _numbered(self, states: list[dict[str, Any]]) -> Iterator[tuple[list[int], list[Tensor]]]:
        """For each optimizer, the numbers that parameters have in its saved state, and the parameters."""
        for optimizer, saved in zip(self.optimizers, states, strict=True):
            numbers = [number for group in saved["param_groups"] for number in group["params"]]
            yield numbers, [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        assert self.lightning_module is not None
        present = self.lightning_module.state_dict()
        state = {name: in_shards(value, present.get(name)) for name, value in checkpoint["state_dict"].items()}
        self.lightning_module.load_state_dict(state, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        states = checkpoint["optimizer_states"]
        for optimizer, saved, pair in zip(self.optimizers, states, self._numbered(states), strict=True):
            state = {
                number: {key: in_shards(value, parameter) for key, value in saved["state"].get(number, {}).items()}
                for number, parameter in zip(*pair, strict=True)
            }
            optimizer.load_state_dict(
                {**saved, "state": {number: values for number, values in state.items() if values}}
            )


def in_shards(value: Any, like: Any) -> Any:
    """A whole tensor in the shards of another one, if it has the same shape; everything else unchanged.

    Every process must hold the whole tensor, so nothing is sent.
    """
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or isinstance(value, DTensor):
        return value
    if value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
