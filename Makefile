# Every target makes its own environment: all a machine needs is make and Python 3.11 or newer.
# `make PYTHON=/path/to/python` chooses the interpreter.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
RUNTIME := $(VENV)/.installed-runtime
DEVELOPMENT := $(VENV)/.installed-development
PYTHON ?=
# Three for each core: many tests wait for other programs.
WORKERS ?= $(shell echo $$(($$(nproc) * 3)))
SEEDS ?= 500
SOAK_SEEDS ?= 10000
SOAK_FUZZES ?= 20
MUTANTS ?= 20
MUTATION_SEED ?= 1

# Where the environment has Python keep no compiled modules, every program that a test starts would compile them anew.
export PYTHONDONTWRITEBYTECODE :=

# Recipes name programs as a reader would type them; the environment's own come first.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

PIP_INSTALL := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help
help:  ## say what can be made
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 16

# In a copy, so that the example stays as it is; afresh, so that it can be run any number of times.
DEMO := build/demo

.PHONY: demo
demo: $(RUNTIME)  ## run the example job in build/demo, from raw files to histograms
	@mkdir -p $(DEMO)
	@cp -R examples/reconstruction/pilotage.yaml examples/reconstruction/raw examples/reconstruction/scripts $(DEMO)
	pilotage graph $(DEMO)/pilotage.yaml
	pilotage run $(DEMO)/pilotage.yaml --fresh
	cat $(DEMO)/all-run001.root
	pilotage run $(DEMO)/pilotage.yaml
	@pilotage serve --stop --journal sqlite:$(DEMO)/.pilotage 2>/dev/null || true

# Looking for every planted bug from the first seed on takes long: `make test` begins where each was found before.
WITHOUT_HINTS := tests/simulation/test_mutants.py::test_a_planted_bug_is_found_without_a_hint

# `check` has held the house rules.
TIDY := tests/test_tidy.py

.PHONY: test
test: check  ## check, then run the tests
	pytest --numprocesses $(WORKERS) --dist worksteal --deselect $(WITHOUT_HINTS) --ignore $(TIDY)

.PHONY: check
check: $(DEVELOPMENT)  ## lint, format, types, imports and house rules
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types rules

# The two halves of `check`, which keep two cores busy.
.PHONY: types rules
types: $(DEVELOPMENT)
	mypy --num-workers "$$(nproc)"

rules: $(DEVELOPMENT)
	ruff check .
	ruff format --check .
	lint-imports --no-logo
	@if [ -d src/pilotage/agent ]; then vermin --quiet --no-tips --target=3.8- --violations src/pilotage/agent; fi
# All tests are collected: one that cannot be is told here, and the workers of `test` find every module compiled.
	pytest --quiet -k test_tidy

.PHONY: simulate
simulate: $(RUNTIME)  ## run SEEDS made-up worlds with every fault there is (500)
	pilotage simulate --seeds $(SEEDS)

.PHONY: soak
soak: $(DEVELOPMENT)  ## ten thousand worlds, every planted bug without a hint, a long storm, a file of 5 GB, one-line bugs, long fuzzing: for a quiet night
	seq 1 100 $(SOAK_SEEDS) | xargs --max-procs "$$(nproc)" --replace=FIRST pilotage simulate --from FIRST --seeds 100
	pytest --numprocesses $(WORKERS) --dist worksteal $(WITHOUT_HINTS)
	CHAOS_PACKAGES=1000 CHAOS_KILLS=100 pytest tests/acceptance/test_chaos.py
	SPARSE_BYTES=5000000000 pytest tests/acceptance/test_unusual_files.py -k large
	$(MAKE) --no-print-directory mutate
	for seed in $$(seq $(SOAK_FUZZES)); do \
	  pytest --quiet --numprocesses $(WORKERS) --dist worksteal --hypothesis-seed="$$seed" tests/property; \
	done

.PHONY: mutate
mutate: $(DEVELOPMENT)  ## put MUTANTS one-line bugs into each room, one at a time, and count those that a test notices (20)
	python -m tests.mutation --record --mutants $(MUTANTS) --seed $(MUTATION_SEED)

.PHONY: reproduce
reproduce: $(DEVELOPMENT)  ## heal real processes, and compare the model of pilot jobs with real pilots on a real Slurm cluster under load: eleven minutes
	python -m tests.reproduction.healing
	python -m tests.reproduction

.PHONY: bench
bench: $(DEVELOPMENT)  ## measure every figure the documentation gives, up to a hundred thousand
	@failed=; for each in language book engine run files selection fairness forecast forecast_jobs healing grain provenance; do python -m bench.$$each || failed="$$failed $$each"; done; \
	if [ -n "$$failed" ]; then echo "make: figures were missed in$$failed" >&2; exit 1; fi

.PHONY: bench-full
bench-full: $(DEVELOPMENT)  ## the same with a million packages and ten million events: for a quiet night
	@failed=; for each in book engine run; do python -m bench.$$each --full || failed="$$failed $$each"; done; \
	if [ -n "$$failed" ]; then echo "make: figures were missed in$$failed" >&2; exit 1; fi

.PHONY: docs
docs: $(DEVELOPMENT)  ## write the generated parts of the reference pages
	python docs/generate.py

.PHONY: clean
clean:  ## remove the environment and everything made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests bench docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The interpreter is asked for its version because a name on the PATH may be a shim for one that is not installed.
# Debian parts ensurepip from Python (python3-venv): root gets it installed, anyone else is told.
$(VENV)/bin/python:
	@python=; \
	for candidate in $(or $(PYTHON),python3.11 python3.12 python3.13 python3); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "make: no $(or $(PYTHON),Python) of version 3.11 or newer: install python3.11, or name one with PYTHON=..." >&2; exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	  package=$$("$$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	  if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	    echo "make: $$python cannot make environments: install $$package (apt-get install $$package)" >&2; exit 1; \
	  fi; \
	  echo "installing $$package"; \
	  apt-get update -qq; \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y "$$package" >/dev/null; \
	fi; \
	echo "making $(VENV) with $$python"; \
	"$$python" -m venv $(VENV)

# Built without isolation, so that the pins hold for the build backend too.
$(RUNTIME): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing pilotage into $(VENV)"
	@$(PIP_INSTALL) hatchling editables
	@$(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@

# Every version is pinned, so nothing is resolved at first; what nobody imports, most of it, is never compiled.
$(DEVELOPMENT): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing pilotage and what checks and tests need into $(VENV)"
	@$(PIP_INSTALL) --no-compile --no-deps --requirement constraints.txt
	@$(PIP_INSTALL) --no-compile --no-build-isolation --editable '.[dev]'
	@touch $(RUNTIME) $@
