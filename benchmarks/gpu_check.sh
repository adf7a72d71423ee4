#!/usr/bin/env bash
# Every kernel on a GPU: right or not, its bytes, its time, and its share of the copy bandwidth of the same run.
# Needs Python with torch, triton, numpy, transformers, tokenizers, safetensors, scipy and tqdm; nothing installed of
# ours, no network. Under 9 minutes. `benchmarks/gpu_check.sh --dry` walks through it on a CPU, in tiny shapes.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" benchmarks/gpu_check.py "$@"
