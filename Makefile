# Every target sets up what it needs: a fresh machine with Python >= 3.11, pip and git is enough.
#   make demo      train on real handwritten digits, on the CPU
#   make test      run the test suite
#   make docs      build the documentation: docs/_build/html/index.html
# PYTHON=python3.12 chooses an interpreter, VENV=dir where the environment goes, JOBS=n how many test processes.
# `make gpu PYTHON=...`, with an interpreter that has dagpu[cuda,dev], runs what needs a GPU: suite, sanitizer, benchmarks.

VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
PYTHONS := $(or $(PYTHON),python3 python python3.14 python3.13 python3.12 python3.11)

.PHONY: help demo cluster-demo test pure deep docs lint types kernels packages screenshots bench gpu check clean

help:
	@sed -n '2,4s/^# //p' Makefile

# --- set-up: a stamp for each extra, made anew when pyproject.toml changes ----------------------------

$(VENV)/.stamp-python:
	@set -e; \
	new_enough='import sys; sys.exit(sys.version_info < (3, 11))'; \
	for python in $(PYTHONS); do \
		if "$$python" -c "$$new_enough" 2>/dev/null; then found="$$python"; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
		echo "dagpu needs Python >= 3.11; none among: $(PYTHONS). Name one: make PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	: 'Debian splits ensurepip off Python: then the pip that is there fills the environment.'; \
	"$$found" -m venv "$(VENV)" >/dev/null 2>&1 || { \
		"$$found" -m venv --clear --without-pip "$(VENV)" && \
		"$$found" -m pip --python "$(BIN)/python" install --quiet pip; }
	@touch $@

$(VENV)/.stamp-%: pyproject.toml build_reader.py $(wildcard dagpu/compiled/*.[ch]) $(VENV)/.stamp-python
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check -e ".[$*]"
	@touch $@

.PRECIOUS: $(VENV)/.stamp-%

# --- what to run -------------------------------------------------------------------------------------

# One thread for each matrix product: NumPy's own threads and those of the streams get into each other's way.
demo: $(VENV)/.stamp-demo
	OPENBLAS_NUM_THREADS=1 "$(BIN)/python" -m examples.digits

# Two worker processes, of which one is killed in the middle.
cluster-demo: $(VENV)/.stamp-cluster
	"$(BIN)/python" -m examples.cluster_mlp

test: $(VENV)/.stamp-dev
	"$(BIN)/python" -m pytest -q -n $(JOBS)

# What has calls, read by Python alone: `make test` reads them by the compiled reader, where it was built.
READ_BY_PYTHON := $(addprefix tests/behaviour/,graphs interop live pipelines promises reuse runs) \
	$(addprefix tests/unit/,backends/cuda runtime tracing)
pure: $(VENV)/.stamp-dev
	DAGPU_COMPILED=0 "$(BIN)/python" -m pytest -q -n $(JOBS) $(READ_BY_PYTHON)

# The properties on all of their examples, of which `make test` tries three tenths, and interrupts in six times as many ways.
# Clusters whose workers are killed at any point, and those that speak TLS, are tested here alone.
deep: $(VENV)/.stamp-dev
	DAGPU_DEEP=1 "$(BIN)/python" -m pytest -q -n $(JOBS) -m deep

docs: $(VENV)/.stamp-docs
	"$(BIN)/python" -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo docs/_build/html/index.html

lint: $(VENV)/.stamp-dev
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .

types: $(VENV)/.stamp-dev
	"$(BIN)/mypy"
	"$(BIN)/pyright" --pythonpath "$(BIN)/python"

# NVRTC is a download of 70 MB, and compiles without a GPU.
kernels: $(VENV)/.stamp-dev $(VENV)/.stamp-nvrtc
	"$(BIN)/python" -m tests.project.kernels.every_kernel

# The wheel and the sdist in clean environments of every Python that is here.
packages: $(VENV)/.stamp-packages
	"$(BIN)/python" -m benchmarks.checking.packages

# The main pages as pictures, light and dark, by a headless Chromium.
screenshots: docs
	"$(BIN)/python" docs/_ext/screenshots.py

bench: $(VENV)/.stamp-bench
	"$(BIN)/python" -m benchmarks.overhead

GPU_BENCHMARKS := calls launch forkjoin wake copies graph decoding peers.digits

gpu:
	OPENBLAS_NUM_THREADS=1 "$(PYTHON)" -m pytest -q -n 8 -m "not exclusive" tests/gpu
	"$(PYTHON)" -m pytest -q -m exclusive tests/gpu
	"$(PYTHON)" -m tests.gpu.long.stress 60
	"$(PYTHON)" -m tests.gpu.long.soak 100000
	"$(PYTHON)" -m tests.gpu.long.if_nodes
	"$(PYTHON)" -m tests.gpu.long.sanitize
	DAGPU_DEVICE=cuda:0 "$(PYTHON)" -m examples.digits
	for each in $(GPU_BENCHMARKS); do "$(PYTHON)" -m benchmarks.$$each || exit 1; done

check: test lint types pure kernels

clean:
	rm -rf "$(VENV)" docs/_build docs/_static/generated docs/benchmarks.md docs/benchmarks docs/examples.md docs/parity.md docs/tutorial/notebook.md .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
