# The commands of this project, the same ones for people and for CI. `make` lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Some shells forbid it: each of the hundreds of processes that tests start would then compile every module anew.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
PYTHON := $(VENV)/bin/python
# Made again when the dependencies change; removed with the environment it speaks of.
SYNCED := $(VENV)/.synced
# Options for the command behind a target: make demo ARGS=--once
ARGS ?=
# For `make dist`: the index of a Helm repository with earlier versions of the chart.
CHARTS ?=
# Versions for `make pythons`; empty: all that are supported.
PYTHONS ?=
# What tests/node/ makes clusters with: nothing is nodes of our own, `kind` is docker and kind.
NODE ?=
# Of `make soak`: how long, and which faults.
SECONDS ?= 3600
SEED ?= 7
# Of `make test-all`: how many mistakes it plants; each day has others.
SAMPLE ?= 3
# Test processes at once: most tests wait for other processes. With four, two cores are idle for a third of the time;
# each one loads all tests first, which takes 5 CPU seconds.
WORKERS ?= 6

# Folders of tests of single modules.
UNIT := tests/unit $(wildcard packages/*/tests/unit) demo/tests/unit deploy/tests/unit

# Programs that tests run: each is fetched before the first test, not in the middle of the others.
PROGRAMS = $(PYTHON) -m tests.support.programs

.PHONY: help setup demo test test-kube test-browser test-all test-fast pythons node controlplane soak mistakes lint compiled newest oldest types bench bench-fleet format generated dist image deploy undeploy docs pictures clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(SYNCED) ## install everything into .venv

demo: $(SYNCED) ## run two clusters with real Prometheus servers; ARGS=--once ends when all have scores
	@$(VENV)/bin/dsf demo $(ARGS)

test: $(SYNCED) ## run the tests that need no Go, API server or browser; ARGS="-k words" or a path chooses any
	@$(PROGRAMS) $(if $(ARGS),,--without chromium)
	@WORKERS=$(WORKERS) scripts/test core $(ARGS)

test-kube: $(SYNCED) ## run the tests on a real API server, which Go builds once (minutes; into ~/.cache/dsf)
	@$(PROGRAMS) --without chromium
	@WORKERS=$(WORKERS) scripts/test kube $(ARGS)

test-browser: $(SYNCED) ## run the tests of the page in Chromium
	@$(PROGRAMS)
	@WORKERS=2 scripts/test browser $(ARGS)

test-all: $(SYNCED) ## run all tests but those on real pods, and plant some mistakes: also releases, commands of pages, attacks, whole fleets
	@$(PROGRAMS)
	@WORKERS=$(WORKERS) scripts/test all $(ARGS)
	@$(if $(ARGS),,$(PYTHON) scripts/mistakes --sample $(SAMPLE))

# Tests of single modules wait for little.
test-fast pythons: WORKERS := 3
test-fast: $(SYNCED) ## run the tests of single modules, in 2 minutes; ARGS="-k words" chooses some
	@$(PROGRAMS) redis-server promtool
	@$(PYTHON) -m pytest -n $(WORKERS) --dist loadgroup -m "not (kube or browser or whole)" $(UNIT) $(ARGS)

pythons: $(SYNCED) ## do so on each Python from 3.11 to 3.14 that can be had; PYTHONS="3.13 3.14" chooses some
	@$(PROGRAMS)
	@WORKERS=$(WORKERS) PYTHONS="$(PYTHONS)" scripts/pythons $(ARGS)

node: $(SYNCED) ## run the tests on real pods, with root on Debian; NODE=kind takes docker and kind
	@NODE=$(NODE) $(PYTHON) -m pytest -n0 -s -p no:cacheprovider --durations=15 tests/node $(ARGS)

controlplane: ## find the API server for the tests, or build it once with Go (minutes; into ~/.cache/dsf)
	@scripts/test --controlplane

soak: $(SYNCED) ## random faults for an hour, then the books; SECONDS=150 and SEED=7 choose how long and which
	@$(PROGRAMS)
	@DSF_SOAK_SECONDS=$(SECONDS) DSF_SOAK_SEED=$(SEED) $(PYTHON) -m pytest -n0 -s tests/faults/test_soak.py $(ARGS)

mistakes: $(SYNCED) ## plant 64 mistakes, one at a time, and show which test finds each; ARGS="hub/ kube/" chooses some
	@$(PROGRAMS)
	@$(PYTHON) scripts/mistakes $(ARGS)

lint: $(SYNCED) ## check format, style, layers and workflows
	@$(VENV)/bin/ruff format --check
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/lint-imports
	@scripts/actionlint

compiled: $(SYNCED) ## load all tests, which compiles them: else each test process does so at its first start
	@found=$$($(PYTHON) -m pytest --collect-only --quiet 2>&1) || { tail -n 60 <<<"$$found"; exit 1; }

newest: ## take the newest celery, kombu and redis-py that pyproject.toml allows into uv.lock; then: make test
	@scripts/uv lock --quiet --upgrade-package celery --upgrade-package kombu --upgrade-package redis
	@git diff --unified=1 uv.lock | grep -A2 '^ name = ' | grep '^[-+]version' -B1 || echo "they are in uv.lock already"

oldest: ## take the oldest versions that pyproject.toml allows into uv.lock, and say so there; then: make test-fast
	@grep -q '^resolution = ' pyproject.toml || sed -i '/^\[tool.uv\]/a resolution = "lowest-direct"' pyproject.toml
	@scripts/uv lock --quiet

types: $(SYNCED) ## check types
	@$(VENV)/bin/mypy

bench: $(SYNCED) ## measure; prints a table of figures beside their limits
	@$(PYTHON) -m bench $(ARGS)

bench-fleet: $(SYNCED) ## measure the whole hub under a whole fleet, 25 minutes; ARGS="--clusters 100" is 4; --soak 3600 adds faults
	@$(PYTHON) -m bench.fleet $(ARGS)

format: $(SYNCED) ## format the code and fix what can be fixed
	@$(VENV)/bin/ruff check --fix
	@$(VENV)/bin/ruff format

generated: $(SYNCED) ## write what follows from code and values: reference pages, CRDs, parts of the chart, kustomize base
	@$(VENV)/bin/dsf crds > deploy/helm/files/crds.yaml
	@for script in chart-settings settings-table helm-values-table reference-pages kustomize-base; do \
	    PYTHONPATH=. $(PYTHON) scripts/$$script; \
	done

dist: $(SYNCED) ## make all files of a release into dist/: wheels, chart, kubectl plug-in, SBOM, checksums
	@rm -rf dist
	@$(PYTHON) scripts/artefacts dist $(wildcard $(CHARTS))

image: ## build both images; a kind cluster of the current context gets them, CLUSTERS="cluster1 cluster2" the agent's
	@scripts/deploy image

deploy: ## install the chart on the current context; ARGS="--values FILE" is for helm
	@scripts/deploy deploy $(ARGS)

undeploy: ## remove scorers, configuration and chart from the current context
	@scripts/deploy undeploy $(ARGS)

docs: $(SYNCED) ## build the documentation site into build/site, strictly
	@$(PYTHON) scripts/docs

pictures: $(SYNCED) ## take the pictures of the documentation from running programs
	@$(PYTHON) scripts/pictures

clean: ## remove .venv and caches of this folder
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(SYNCED): pyproject.toml $(wildcard packages/*/pyproject.toml) demo/pyproject.toml uv.lock scripts/uv
	@echo "setup: installing the packages of uv.lock into $(VENV)" >&2
	@scripts/uv sync --locked --all-extras --quiet
	@touch $@
