"""Devices that are not there: a simulated GPU, and a check that everything stays on one device.

The tensors of the simulated GPU are in the memory of the CPU. Those that are moved to a device count as tensors of a
GPU, and so does what is computed from them. A CPU can therefore show where a run on a GPU would wait: where values are
read from the device, or copied to it without `non_blocking`.
"""

import sys
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnorm.attention.linear import flash
from attnorm.attention.normalizers.hnas import HNAS

aten = torch.ops.aten
READING = {
    *(aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default, aten.nonzero.default),
    *(aten.masked_select.default, aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default),
    aten.repeat_interleave.Tensor,
}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._unsafe_index.Tensor}
TAKES_LENGTHS = {aten._pack_padded_sequence.default}  # on the CPU
BETWEEN = {aten.copy_.default, *INDEXING, *TAKES_LENGTHS}  # they also take tensors on the CPU
HOST, ANY, GPU = range(3)  # where a tensor is. ANY: created with a `device`, and not yet used with other tensors


def device_of(x: object) -> int:
    return getattr(x.untyped_storage(), "simulated_device", HOST) if isinstance(x, Tensor) else HOST


def put(x: Tensor, device: int = GPU) -> Tensor:
    x.untyped_storage().simulated_device = device
    return x


class SimulatedGPU(TorchDispatchMode):
    """Counts the transfers of a block by (phase, update, place in attnorm, operation).

    phase: "train", "validate", or "start" for all else. update: the number of finished updates.
    """

    def __init__(self) -> None:
        super().__init__()
        self.transfers: Counter[tuple[str, int, str, str]] = Counter()
        self.mixed: Counter[str] = Counter()  # operations that a GPU would refuse, for tensors on the CPU
        self.functions = Functions(self)

    def __enter__(self) -> "SimulatedGPU":
        super().__enter__()
        self.functions.__enter__()
        self.only_on_a_cpu, HNAS.attend_at_once = HNAS.attend_at_once, lambda *_: None
        return self

    def __exit__(self, *error: Any) -> None:
        HNAS.attend_at_once = self.only_on_a_cpu
        self.functions.__exit__(*error)
        super().__exit__(*error)

    def count(self, operation: str) -> None:
        """Counts a transfer, unless the innermost code is that of an optimizer, whose step numbers are on the CPU, or
        the function of Lightning that moves batches, which waits for no GPU."""
        frame, place, phase, update = sys._getframe(1), None, "start", -1
        while frame is not None and phase == "start":
            file, name = frame.f_code.co_filename, frame.f_code.co_name
            if place is None and ("/torch/optim/" in file or "/lightning_fabric/" in file):
                return
            if place is None and "/attnorm/" in file and not file.endswith("attention/transfer.py"):
                place = f"{file.partition('/attnorm/')[2]}:{name}"
            elif place is None and "pytorch_lightning" in file and name != "log":
                place = f"{file.rpartition('/')[2]}:{name}"
            for folder, of_loop in (("evaluation_loop.py", "validate"), ("training_epoch_loop.py", "train")):
                if file.endswith(folder) and name in ("run", "advance"):
                    phase, update = of_loop, frame.f_locals["self"].trainer.global_step
            frame = frame.f_back
        self.transfers[phase, update, place or "another package", operation] += 1

    def places(self, phase: str, update: int) -> Counter[str]:
        """How often each place waits for the device."""
        places: Counter[str] = Counter()
        for (of_phase, of_update, place, _), count in self.transfers.items():
            if (of_phase, of_update) == (phase, update):
                places[place] += count
        return places

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        all_devices, devices = ({device_of(x) for x in tensors if x.dim() >= least} for least in (0, 1))
        device = GPU if GPU in all_devices else min(devices or all_devices, default=HOST)
        if device == GPU:
            if func not in BETWEEN and HOST in devices:
                self.mixed[str(func)] += 1
            if func in READING:
                self.count(str(func))
            indices = [x for x in args[1] if x is not None] if func in INDEXING else []
            if any(x.dtype in (torch.bool, torch.uint8) for x in indices):
                self.count(f"{func} with a mask")
            elif any(device_of(x) == HOST for x in indices):
                self.count(f"{func} with an index on the CPU")
            if func is aten.copy_.default and {device_of(x) for x in args[:2]} == {HOST, GPU}:
                self.count("copy_ to the GPU" if device_of(args[0]) == GPU else "copy_ to the CPU")
                return func(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if not tensors and not self.functions.creates:
            device = ANY  # made by an operation or a gradient of PyTorch, which puts it on the device of its tensors
        if device != HOST:
            for x in tree_leaves(result):
                if isinstance(x, Tensor):
                    put(x, device)
        if func in TAKES_LENGTHS:
            put(result[1], HOST)  # the sizes of the batches
        return result


class Functions(TorchFunctionMode):
    """What the dispatcher does not see on a CPU."""

    def __init__(self, gpu: SimulatedGPU):
        super().__init__()
        self.gpu = gpu
        self.creates = False  # whether a function without tensors is being called

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        to_cpu = name == "to" and "cpu" in (*args[1:], kwargs.get("device"))
        if device_of(first) == GPU and (name in ("tolist", "numpy", "cpu") or to_cpu):
            self.gpu.count(name)
            return func(put(first.detach().clone(), HOST), *args[1:], **kwargs)
        self.creates = not any(isinstance(x, Tensor) for x in tree_leaves((args, kwargs)))
        result = func(*args, **kwargs)
        self.creates = False
        if name == "to" and isinstance(first, Tensor) and device_of(first) == HOST:
            targets = [x for x in (*args[1:], *kwargs.values()) if isinstance(x, torch.device)]
            targets += [x for x in args[1:] if device_of(x) == GPU]
            if targets:
                if not kwargs.get("non_blocking"):
                    self.gpu.count("to the GPU")
                return put(result.clone() if result is first else result)
        elif kwargs.get("device") is not None and isinstance(result, Tensor):
            if name in ("tensor", "as_tensor"):
                self.gpu.count(f"{name} to the GPU")
            put(result, ANY)
        return result


class OnMeta(TorchDispatchMode):
    """Fails at an operation between the device meta and the CPU, except of single numbers."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor) and x.dim()]
        devices = {x.device.type for x in tensors}
        assert len(devices) < 2 or func in {*TAKES_LENGTHS, aten._to_copy.default}, f"{func}: {devices}"
        return result


class KernelInChannels(flash.InChannels):
    """As a CUDA kernel: it takes no bias, which rides in channels of the head, and widths of whole octets."""

    name = "emulated"

    def plain_forward(self, q, k, v, scale, causal):
        assert q.shape[-1] == k.shape[-1] == v.shape[-1] and q.shape[-1] % 8 == 0
        return flash.FlashOnCPU().forward(q, k, v, None, scale, causal)

    def plain_backward(self, grad_out, call):
        return flash.FlashOnCPU().plain_backward(grad_out, call)


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes() > 0:
                stored = tensor.untyped_storage().nbytes() // tensor.element_size()  # an expanded view stores less
                self.elements = max(self.elements, stored)
        return result
