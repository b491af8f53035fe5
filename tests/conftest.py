"""Settings that have to be made before torch is imported."""

import os

from numerics import RUNS, VARIABLES

# `ATEN_CPU_CAPABILITY=avx2 pytest` restricts torch alone; oneDNN with instructions that torch must not use fails.
capability = os.environ.get("ATEN_CPU_CAPABILITY")
if capability in RUNS:
    _, values = RUNS[capability]
    for variable, value in zip(VARIABLES, values, strict=True):
        os.environ.setdefault(variable, value)
