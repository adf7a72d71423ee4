"""Where a kernel's test runs: on the CPU under Triton's interpreter, or on a GPU.

bf16 runs on a GPU only, since the interpreter does not round it as a GPU does.
"""

import pytest
import torch

LANES = [
    pytest.param("cpu", torch.float32, id="interpreter-fp32", marks=pytest.mark.interpreter),
    pytest.param("cuda", torch.float32, id="gpu-fp32", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.bfloat16, id="gpu-bf16", marks=pytest.mark.gpu),
]
lanes = pytest.mark.parametrize(("device", "dtype"), LANES)
