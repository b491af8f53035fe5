"""What a run is made with: command, device, memory."""

import os
import platform
import re
import resource
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from attnorm.source_code import stated


def describe_environment() -> dict[str, Any]:
    """How and with what a run is started, for run.json."""
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        **stated(),
        "gpus": gpus,
        "cpu": cpu_model(),
        "cpu_cores": os.cpu_count(),
        "cpu_threads": torch.get_num_threads(),
    }


def cpu_model() -> str:
    """The model of the CPU as Linux names it, or else as Python does; it tells machines apart whose speeds differ."""
    with suppress(OSError):
        if named := re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M):
            return named[1].strip()
    return platform.processor() or platform.machine()


def gpus_for(accelerator: object) -> list[str] | None:
    """The GPUs that PyTorch sees, by their names in CUDA_VISIBLE_DEVICES; None if a run on `accelerator` uses none."""
    import torch

    if accelerator not in ("gpu", "cuda") and not (accelerator == "auto" and torch.cuda.is_available()):
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]


def peak_memory() -> dict[str, float]:
    """Peak memory in MB (10^6 bytes): of this process, and of the GPU if there is one."""
    import torch

    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes on macOS, in kibibytes on Linux
    peak = {"process_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6, 1)}
    if torch.cuda.is_available():
        peak["gpu_mb"] = round(torch.cuda.max_memory_allocated() / 1e6, 1)
    return peak
