"""Compiles the Triton kernels of attention for GPUs that need not be there, and reports what the compilers produced.

    python benchmarks/kernel_compile.py
    python benchmarks/kernel_compile.py --targets sm_90 --dtypes bfloat16 --widths 64 --causal

For each kernel: the number of tensor-core instructions in the assembly, the registers per thread, the bytes of local
memory per thread to which registers are spilled, and the shared memory of a program. The command fails if a kernel has
no tensor-core instruction, spills, or needs more shared memory than a program may have. It says nothing about speed,
nor about results: see tests/attention/linear/test_triton.py for these.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from attnorm.attention.linear import on_triton, triton_kernels

KERNELS = ("forward", "backward_queries", "backward_keys")
TYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
OPTIONAL = ("bias", "bias_strides", "seen", "grad_logsumexp", "grad_bias")
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


class Architecture(NamedTuple):
    """A target of the compiler, and the shared memory of a program in KiB."""

    target: GPUTarget
    shared_kib: int


ARCHITECTURES = {
    "sm_80": Architecture(GPUTarget("cuda", 80, 32), 163),
    "sm_90": Architecture(GPUTarget("cuda", 90, 32), 227),
    "sm_100": Architecture(GPUTarget("cuda", 100, 32), 227),
    "gfx942": Architecture(GPUTarget("hip", "gfx942", 64), 64),
}
TENSOR_CORE = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma(?=\.cta)|v_mfma)")  # in assembly


class Compiled(NamedTuple):
    """What is known about a compiled kernel. Memory in bytes: local memory per thread, shared memory per program.

    tensor_core: the number of tensor-core instructions in the assembly, by name.
    """

    tensor_core: Counter[str]
    registers: int
    local: int
    shared: int

    def problems(self, architecture: Architecture) -> list[str]:
        return [
            *["no tensor-core instruction"] * (not self.tensor_core),
            *["spills"] * (self.local > 0),
            *["too much shared memory"] * (self.shared > 1024 * architecture.shared_kib),
        ]


def compile_kernel(
    kernel: str, architecture: Architecture, dtype: torch.dtype, width: int, causal: bool, plain: bool = False
) -> Compiled:
    """Compiles a kernel for tensors whose addresses and strides are multiples of 16.

    plain: without a bias, its gradient and that of the logsumexp.
    """
    function = getattr(triton_kernels, kernel)
    hip = architecture.target.backend == "hip"
    constants = on_triton.constants(kernel, dtype, width, causal, hip)
    constants |= dict.fromkeys(set(OPTIONAL) & set(function.arg_names)) if plain else {}
    signature = {name: "constexpr" if name in constants else argument_type(name, dtype) for name in function.arg_names}
    compiled = triton.compile(
        ASTSource(function, signature, constants, dict(multiples_of_16(signature))),
        target=architecture.target,
        options=on_triton.compiler_options(on_triton.blocks_of(kernel, dtype, width, hip)),
    )
    assembly = compiled.asm["ptx" if "ptx" in compiled.asm else "amdgcn"]
    used = cuda_usage(compiled.asm["cubin"]) if "cubin" in compiled.asm else hip_usage(assembly)
    return Compiled(Counter(TENSOR_CORE.findall(assembly)), *used, compiled.metadata.shared)


def argument_type(name: str, dtype: torch.dtype) -> Any:
    if name.endswith("_strides"):
        return ("i32",) * 3
    if name in ("heads", "queries", "keys"):
        return "i32"
    if name == "scale":
        return "fp32"
    if name == "seen":
        return "*i32"
    return "*fp32" if name in ("bias", "logsumexp", "grad_logsumexp", "delta", "grad_bias") else f"*{TYPES[dtype]}"


def multiples_of_16(signature: dict[str, Any]) -> Iterator[tuple[tuple[int, ...], list]]:
    for n, kind in enumerate(signature.values()):
        if isinstance(kind, tuple):
            yield from (((n, part), [["tt.divisibility", 16]]) for part in range(len(kind)))
        elif kind.startswith("*"):
            yield (n,), [["tt.divisibility", 16]]


def cuda_usage(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of local memory (spills and stack) per thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage))
    return int(found["REG"]), int(found["STACK"]) + int(found["LOCAL"])


def hip_usage(assembly: str) -> tuple[int, int]:
    """Vector registers and bytes of scratch memory per thread."""
    return tuple(
        int(re.search(rf"\.{key}:\s+(\d+)", assembly)[1]) for key in ("vgpr_count", "private_segment_fixed_size")
    )


def main(args: argparse.Namespace) -> int:
    with_bias = "without a bias" if args.plain else "with a bias and all gradients"
    print(f"triton {triton.__version__}; {with_bias}{', causal' * args.causal}")
    print("| kernel | dtype | width | GPU | tensor-core instructions | registers | spilled | shared KiB |")
    print("|---|---|---|---|---|---|---|---|")
    failures = 0
    for kernel, dtype, width, name in product(args.kernels, args.dtypes, args.widths, args.targets):
        compiled = compile_kernel(kernel, ARCHITECTURES[name], getattr(torch, dtype), width, args.causal, args.plain)
        problems = compiled.problems(ARCHITECTURES[name])
        failures += bool(problems)
        instructions = " + ".join(f"{n} {name}" for name, n in compiled.tensor_core.items())
        numbers = f"{instructions} | {compiled.registers} | {compiled.local} | {compiled.shared / 1024:.1f}"
        row = f"| {kernel} | {dtype} | {width} | {name} | {numbers} |"
        print(" ".join([row, *problems]), flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=KERNELS)
    parser.add_argument("--targets", nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES)
    dtypes = [str(dtype).removeprefix("torch.") for dtype in TYPES]
    parser.add_argument("--dtypes", nargs="+", choices=dtypes, default=dtypes)
    parser.add_argument("--widths", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--plain", action="store_true", help="without a bias, its gradient and that of the logsumexp")
    sys.exit(main(parser.parse_args()))
