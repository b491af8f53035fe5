"""Which kernel computes linear-memory attention, decided by a self-check on first use.

torch's fused kernels are private operators: a version of torch, a GPU or a driver may lack one, or give it another
meaning. Before a kernel is first used for a device, dtype and head width, with or without a causal mask, it must agree
with the dense formula on a small problem, in value and in every gradient. The first of the candidates that does is used
from then on. The last candidate needs no check: it consists of ordinary public operations.

ATTNORM_KERNEL=triton in the environment puts the kernel in Triton before those of torch.
"""

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from attnorm.attention.linear.blockwise import Blockwise
from attnorm.attention.linear.flash import BIAS_PARTS, SIXTEEN_BITS, EfficientOnCUDA, FlashOnCPU, FlashOnCUDA, Kernel
from attnorm.attention.linear.on_triton import WIDEST, Triton
from attnorm.attention.linear.self_check import disagreement

log = logging.getLogger(__name__)

Case = tuple[torch.device, torch.dtype, int, bool]  # device, dtype, head width, and whether it is causal

FALLBACK = Blockwise()

Decision = tuple[Kernel, dict[str, str]]  # the kernel that is used, and why each preferred one is refused
_decisions: dict[Case, Decision] = {}
_warned: set[tuple[str, str]] = set()
_lock = threading.Lock()


def candidate_kernels(device: torch.device, dtype: torch.dtype, width: int) -> list[Kernel]:
    """The fused kernels that may serve, the fastest one of torch first, after the one in Triton if it is requested.

    Raises ValueError for another request than that one.
    """
    requested: list[Kernel] = [Triton()] if triton_is_requested() and dtype != torch.float64 and width <= WIDEST else []
    if device.type == "cpu":
        return [*requested, FlashOnCPU()]
    if device.type != "cuda" or dtype == torch.float64 or width + BIAS_PARTS > 256:
        return []
    return [*requested, *([FlashOnCUDA()] if dtype in SIXTEEN_BITS else []), EfficientOnCUDA()]


def triton_is_requested() -> bool:
    """Whether ATTNORM_KERNEL is "triton". Raises ValueError for another value than that or an empty one."""
    request = os.environ.get("ATTNORM_KERNEL", "")
    if request not in ("", "triton"):
        raise ValueError(f"ATTNORM_KERNEL={request!r}: allowed: 'triton', or leave it unset for the kernels of torch")
    return request == "triton"


def kernel_for(q: Tensor, causal: bool) -> Kernel:
    """The kernel for the device, dtype and head width of `q` (B, H, N, D), with or without a causal mask."""
    case = q.device, q.dtype, q.shape[-1], causal
    return (_decisions.get(case) or _decide(case))[0]


def self_checks() -> dict[str, dict]:
    """The outcome of every self-check of this process, such as {"cpu float32 64": {"kernel": ..., "refused": {}}}.

    The key of a causal mask ends in " causal".

    kernel:  the name of the kernel that is used for this device, dtype and head width.
    refused: the kernels that failed the check, each with the reason.
    """
    with _lock:
        cases = sorted(_decisions.items(), key=lambda item: (str(item[0][:2]), *item[0][2:]))
        return {_label(case): {"kernel": kernel.name, "refused": {**refused}} for case, (kernel, refused) in cases}


def forget() -> None:
    """Discards all outcomes, so that every kernel is checked again."""
    with _lock:
        _decisions.clear()
        _warned.clear()


def check(kernel: Kernel, case: Case) -> str | None:
    """Why a kernel cannot be used in a case, or None if it agrees with the dense formula.

    The check runs in a thread of its own, where none of the caller's modes are active: autocast, inference mode, a
    disabled gradient, and the modes with which torch intercepts operations.
    """
    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(disagreement, kernel, *case).result()
        except Exception as error:  # of any kind: a kernel that cannot be used must not end a run
            return f"{type(error).__name__}: {error}".splitlines()[0]


def _decide(case: Case) -> Decision:
    if case[0].type == "cuda" and torch.cuda.is_current_stream_capturing():
        return FALLBACK, {}  # a check would wait for the GPU, which a graph capture forbids; decided at the next call
    with _lock:
        if case not in _decisions:
            refused: dict[str, str] = {}
            for kernel in candidate_kernels(*case[:3]):
                if (reason := check(kernel, case)) is None:
                    break
                refused[kernel.name] = reason
            else:
                kernel = FALLBACK
            _decisions[case] = kernel, refused
            _warn(case, kernel, refused)
        return _decisions[case]


def _warn(case: Case, kernel: Kernel, refused: dict[str, str]) -> None:
    for name, reason in refused.items():
        if (str(case[0]), name) not in _warned:
            _warned.add((str(case[0]), name))
            log.warning(
                "The attention kernel %s is not used for %s (head width %d%s), because it failed its self-check: %s. "
                "The kernel %s takes its place. Results are the same; time and memory may differ.",
                name,
                " ".join(_label(case).split()[:2]),
                case[2],
                ", causal" * case[3],
                reason,
                kernel.name,
            )


def _label(case: Case) -> str:
    device, dtype, width, causal = case
    return f"{device} {str(dtype).removeprefix('torch.')} {width}" + " causal" * causal
