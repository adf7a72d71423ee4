#!/usr/bin/env bash
# Decoding on a GPU against the floor that the memory sets: plain step, verification, draft stages, whole rounds.
# Needs Python with torch, triton, numpy, transformers, tokenizers, safetensors, scipy and tqdm; nothing installed of
# ours, no network, no weights unless --model and --drafter name folders of them. Meant to take under 9 minutes; it has
# not been run on a GPU. `benchmarks/gpu_decode.sh --device cpu --shapes tiny` walks through it in seconds.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" benchmarks/gpu_decode.py "$@"
