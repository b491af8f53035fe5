"""Whether attention is right and fast on this machine: versions, devices, and the self-checks and speed of its kernels.

    python benchmarks/doctor.py
    python benchmarks/doctor.py --device cpu --seconds 20 --out doctor_cpu.json
    ATTNORM_KERNEL=triton python benchmarks/doctor.py

It measures softmax, dnas and hnas beside the fused attention of PyTorch, and needs no other package.
"""

import argparse
import json
import os
import platform
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler of torch would print lines; read at its import

if TYPE_CHECKING:
    from checkup import LeftOut, SelfCheck, Sizes, Speed

FORMAT = 1  # of the file
PACKAGES = ("attnorm", "torch", "entmax", "triton", "pytorch-triton-rocm", "numpy")
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
PATH = re.compile(r"\S*[/\\]\w\S*")
COLUMNS = "{:<9}{:>6}  {:<8}  {:<24}{:>6}{:>11}{:>9}{:>9}{:>9}"


def main(arguments: Sequence[str] | None = None, sizes: "Sizes | None" = None) -> None:
    """Prints and stores the results. sizes: what is examined; by default what suits the device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    device = "auto: cuda (a GPU, also one of AMD) if PyTorch finds one, otherwise cpu"
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help=device)
    parser.add_argument(
        "--seconds", type=float, default=90, help="for measuring the speed; what takes longer is left out"
    )
    out = "the file for the results; it names no users and no machines, and has no paths"
    parser.add_argument("--out", type=Path, default=Path("attnorm-doctor.json"), help=out)
    args = parser.parse_args(arguments)
    if not args.seconds > 0:
        parser.error(f"--seconds {args.seconds:g}: expected a number above 0")
    if args.out.is_dir() or not os.access(args.out.parent, os.W_OK):
        parser.error(f"--out {args.out}: expected the name of a file in a folder that can be written")

    import torch

    from attnorm.attention.linear.kernels import triton_is_requested

    try:
        triton_is_requested()
    except ValueError as error:
        parser.error(str(error))
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device cuda: {why_no_gpu()}; allowed here: auto, cpu")
    report = measured_report(args.device, args.seconds, sizes)
    args.out.write_text(json.dumps(without_paths(report), indent=2) + "\n", encoding="utf-8")
    print(f"\nWritten: {args.out}. It names no users and no machines, and has no paths.")


def measured_report(device: str, seconds: float, sizes: "Sizes | None") -> dict[str, Any]:
    """The results for the file, which are also printed, each as soon as it is known."""
    import checkup
    import torch

    has_gpu = torch.cuda.is_available()
    device = "cuda" if has_gpu and device != "cpu" else "cpu"
    sizes = sizes or checkup.default_sizes(device)
    of_versions, of_machine = versions(), machine()
    for described in (of_versions, of_machine, *of_machine["gpus"]):
        texts = (f"{name.replace('_', ' ')} {fact}" for name, fact in described.items() if not isinstance(fact, list))
        print(", ".join(texts))
    if not has_gpu:
        of_machine["no_gpu"] = why_no_gpu()
        print(f"no GPU: {of_machine['no_gpu']}")
    print("\nSelf-checks of the attention kernels, without / with a causal mask, by the width of a head", flush=True)
    checks = checkup.kernel_checks(torch.empty(0, device=device).device, sizes.dtypes, sizes.widths)
    show_checks(checks)

    print(f"\nSpeed and memory on {device}, forward and backward: N queries and keys,", end=" ")
    print(f"{sizes.batch} x {sizes.heads} heads of width {sizes.width}, about {seconds:g} seconds")
    print(COLUMNS.format("", "N", "", "computed by", "rounds", "ms", "to SDPA", "MB", "to SDPA"), flush=True)
    speeds: list[Speed] = []
    left_out: list[LeftOut] = []
    for dtype in sizes.measured_dtypes:
        for entry in checkup.speeds(sizes, dtype, device, seconds / len(sizes.measured_dtypes)):
            if isinstance(entry, checkup.LeftOut):
                left_out.append(entry)
            else:
                speeds.append(entry)
                speed = f"{entry.milliseconds:,.1f}", f"{entry.ratio:.2f}x"
                memory = f"{entry.megabytes:,.0f}", f"{entry.memory_ratio:.2f}x"
                print(COLUMNS.format(*entry[:5], *speed, *memory), flush=True)
    for (dtype, length, why), members in groupby(left_out, lambda entry: (entry.dtype, entry.length, entry.why)):
        names = ", ".join(entry.attention for entry in members)
        print(f"left out: {dtype}, {names} for N = {length:,} and above: {why}")
    slow = checkup.slower(speeds, checks, sizes, device)
    limits = ", ".join(f"{name} {checkup.SLOW * ratio:.2f}x" for name, ratio in checkup.EXPECTED.items())
    print(f"\nSlower than expected (above {limits} of SDPA): {'' if slow else 'nothing'}".rstrip())
    for case in slow:
        print(f"  {case.dtype}, {case.attention}, N = {case.length:,}: {case.ratio:.2f}x; {'; '.join(case.why)}")
    return {
        "format": FORMAT,
        "versions": of_versions,
        "machine": of_machine,
        "problem": {"device": device, "batch": sizes.batch, "heads": sizes.heads, "width": sizes.width},
        "self_checks": [entry._asdict() for entry in checks],
        "speed": [entry._asdict() for entry in speeds],
        "left_out": [entry._asdict() for entry in left_out],
        "slower": [entry._asdict() for entry in slow],
    }


def versions() -> dict[str, Any]:
    """The versions of Python and of packages, without those that are not installed."""
    import torch

    known: dict[str, Any] = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            known[name] = metadata.version(name)
    known |= {"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
    known["cudnn"] = torch.backends.cudnn.version()
    return {name: str(value) for name, value in known.items() if value is not None}


def machine() -> dict[str, Any]:
    """The processor and the GPUs, without names that a user has given."""
    import torch

    processor = None
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        architecture = properties.gcnArchName if torch.version.hip else f"sm_{properties.major}{properties.minor}"
        gpus.append(
            {
                "gpu": properties.name,
                "architecture": architecture,
                "gigabytes": round(properties.total_memory / 1e9, 1),
                "multiprocessors": properties.multi_processor_count,
            }
        )
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor or "unknown",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpus": gpus,
    }


def why_no_gpu() -> str:
    """Why PyTorch finds no GPU, and what to do about it."""
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        # on PyPI, only these builds come with CUDA
        has_cuda_on_pypi = sys.platform == "linux" and platform.machine() == "x86_64"
        install = f"pip uninstall -y torch && pip install torch=={torch.__version__.partition('+')[0]}"
        where = install if has_cuda_on_pypi else "https://pytorch.org/get-started/locally"
        return f"torch is a CPU build; to install one with CUDA: {where}"
    hidden = [f"{name}={os.environ[name]}" for name in VISIBLE if name in os.environ]
    try:
        torch.cuda.init()
        reason = ""
    except Exception as error:  # PyTorch says here whether the driver is missing or too old
        reason = f": {str(error).partition('. ')[0]}"
    return f"no device visible{reason}{''.join(f'; {setting} is set' for setting in hidden)}"


def show_checks(checks: "Sequence[SelfCheck]") -> None:
    """A row per dtype and kernel, a column per head width, and the reasons of failures."""
    widths = sorted({check.width for check in checks})
    cells: dict[tuple[str, str], dict[int, list[str]]] = {}
    failures: dict[tuple[str, str], list[str]] = {}
    for check in checks:
        for kernel, reason in check.outcomes.items():
            row = check.dtype, kernel
            cells.setdefault(row, {}).setdefault(check.width, []).append("ok" if reason is None else "FAILED")
            if reason is not None:
                failures.setdefault(row, []).append(f"width {check.width}{', causal' * check.causal}: {reason}")
    form = "{:<9}{:<26}" + "{:<17}" * len(widths)
    print(form.format("", "", *widths).rstrip())
    for row, by_width in cells.items():
        print(form.format(*row, *(" / ".join(by_width.get(width, ["-"])) for width in widths)).rstrip())
    for (dtype, kernel), reasons in failures.items():
        more = f" (and {len(reasons) - 1} more)" if reasons[1:] else ""
        print(f"{kernel} fails for {dtype}, {reasons[0]}{more}")
    used = sorted({check.kernel for check in checks})
    print(f"The first one of a dtype that passes is used: {', '.join(used)}.")


def without_paths(content: Any) -> Any:
    """The same content with "<path>" instead of paths, which messages of libraries may contain."""
    if isinstance(content, str):
        return PATH.sub("<path>", content)
    if isinstance(content, dict):
        return {key: without_paths(value) for key, value in content.items()}
    return [without_paths(value) for value in content] if isinstance(content, (list, tuple)) else content


if __name__ == "__main__":
    main()
