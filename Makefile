# The commands of this project, the same ones for people and for CI. `make` lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PYTHON := $(VENV)/bin/python
# Made again when the dependencies change; removed with the environment it speaks of.
SYNCED := $(VENV)/.synced
# Options for the command behind a target: make demo ARGS=--once
ARGS ?=
# Test processes at once: most tests wait for other processes.
WORKERS ?= 3

# What the tests on Kubernetes run against; scripts/controlplane says what each one is.
CONTROLPLANE := etcd kube-apiserver kubectl kube-controller-manager placement addon work

.PHONY: help setup demo test again controlplane lint types bench format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(SYNCED) ## install everything into .venv

demo: $(SYNCED) ## run two clusters with real Prometheus servers; ARGS=--once ends when all have scores
	@$(VENV)/bin/dsf demo $(ARGS)

test: $(SYNCED) controlplane ## run all tests; ARGS="-k words" or a path chooses some
	@$(PYTHON) -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

again: $(SYNCED) controlplane ## run the tests that failed last, one after the other, until one fails
	@$(PYTHON) -m pytest --last-failed --last-failed-no-failures none --maxfail 1 $(ARGS)

# Exit code 3: it is not there and cannot be built, and the script has said what would help. The tests that need it are
# skipped then, or fail in CI.
controlplane: ## find the API server for the tests, or build it once with Go (minutes; into ~/.cache/dsf)
	@scripts/controlplane $(CONTROLPLANE) >/dev/null || test $$? -eq 3
	@scripts/controlplane crds >/dev/null || test $$? -eq 3
	@scripts/controlplane operators >/dev/null || test $$? -eq 3

lint: $(SYNCED) ## check format, style and layers
	@$(VENV)/bin/ruff format --check
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/lint-imports

types: $(SYNCED) ## check types
	@$(VENV)/bin/mypy

bench: $(SYNCED) ## measure; prints a table of figures beside their limits
	@$(PYTHON) -m bench $(ARGS)

format: $(SYNCED) ## format the code and fix what can be fixed
	@$(VENV)/bin/ruff check --fix
	@$(VENV)/bin/ruff format

clean: ## remove .venv and caches of this folder
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(SYNCED): pyproject.toml uv.lock scripts/uv
	@echo "setup: installing the packages of uv.lock into $(VENV)" >&2
	@scripts/uv sync --locked --all-extras --quiet
	@touch $@
