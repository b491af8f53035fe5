"""Runs the tests marked `numerical` once per older CPU capability that this processor can imitate.

    python tests/numerics.py [options of pytest]

Torch, MKL and oneDNN choose their kernels by processor, and different kernels round differently. Each run restricts all
three to the instructions of an older processor, so that a tolerance that only holds on this one is found. All three
need the same restriction: torch without AVX-512 next to oneDNN with AMX is no real processor, and fails.
The newest capability of the processor is left out, because the other tests run with it. The exit code is 0 if every run
passed.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

VARIABLES = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
RUNS = {  # name: (the flags of /proc/cpuinfo that it needs, the values of VARIABLES)
    "default": ((), ("default", "SSE4_2", "SSE41")),
    "avx2": (("avx2", "fma"), ("avx2", "AVX2", "AVX2")),
    "avx512": (("avx512f", "avx512bw", "avx512dq", "avx512vl"), ("avx512", "AVX512", "AVX512_CORE")),
}
MARKED = ("-m", "numerical and not slow and not gpu")
TESTS = Path(__file__).parent


def environments(cpuinfo: str) -> dict[str, dict[str, str]]:
    """The environment variables of each run, by name.

    cpuinfo: the text of /proc/cpuinfo. Without flags in it (another platform), or without an older capability, torch's
    own choice is the only run.
    """
    flags = {flag for line in cpuinfo.splitlines() if line.startswith("flags") for flag in line.split()}
    older = [name for name, (needed, _) in RUNS.items() if flags.issuperset(needed)][:-1] if flags else []
    return {name: dict(zip(VARIABLES, RUNS[name][1], strict=True)) for name in older} or {"default": {}}


def main(options: list[str]) -> int:
    """Runs pytest per environment and prints a line for each."""
    source = Path("/proc/cpuinfo")
    # other files are not even imported
    files = [str(file) for file in sorted(TESTS.rglob("test_*.py")) if "pytest.mark.numerical" in file.read_text()]
    lines, failed = [], False
    for name, variables in environments(source.read_text() if source.exists() else "").items():
        print(f"== {name}: {' '.join(f'{key}={value}' for key, value in variables.items())}", flush=True)
        start = time.monotonic()
        command = [sys.executable, "-m", "pytest", *MARKED, *options, *files]
        code = subprocess.run(command, env={**os.environ, **variables}).returncode
        failed = failed or code != 0
        lines.append(f"{name:8} {'failed' if code else 'passed'} in {time.monotonic() - start:.0f} s")
    print("\n".join(lines))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
