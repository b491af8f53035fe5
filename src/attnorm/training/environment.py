"""What a run was made with: versions, code, device, command."""

import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from datetime import datetime
from pathlib import Path

from attnorm.source_code import digest_of_attnorm

PACKAGES = (
    *("attnorm", "torch", "pytorch-lightning", "hydra-core", "datasets", "sentencepiece", "tokenizers"),
    "rouge-score",
)


def describe_environment() -> dict:
    """Plain values for environment.json."""
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in PACKAGES},
        "git": git_state(),
        "code": digest_of_attnorm(),
        "gpus": gpus,
        "cpu_cores": os.cpu_count(),
        "cpu_threads": torch.get_num_threads(),
    }


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_state(folder: Path = Path(__file__).parent) -> dict | None:
    """The commit of the code in a folder and whether tracked files differ from it; None outside a repository, also for
    a package that is installed inside the folder of another repository.

    Untracked files do not count: results, notebooks and data often lie beside the code.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", ".")
        changed = git("status", "--porcelain", "--untracked-files=no") != ""
        return {"commit": git("rev-parse", "HEAD"), "changed": changed}
    except (OSError, subprocess.CalledProcessError):
        return None


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
