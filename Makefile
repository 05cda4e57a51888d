# Every target makes the environments that it needs, in this checkout.
#
#   PYTHON=python3.12        makes them with another Python (3.11 or newer) than python3
#   TORCH=torch==2.14.1      puts another torch than constraints.txt pins into .venv, in a fresh .venv that keeps to the
#                            choice until another is made; whatever pip takes: TORCH="torch --index-url https://…".
#                            `TORCH=` returns to the pin.

PYTHON ?= python3
CHOSEN := $(shell cat .venv/torch 2>/dev/null)
TORCH  ?= $(CHOSEN)
export TORCH

RUN := .venv/bin/python -m
PIP := -m pip install -qq --no-input --disable-pip-version-check
# One more than cores: processes of a test wait for each other.
AT_ONCE = $(shell $(PYTHON) -c 'import os; print(min(4, 1 + (os.cpu_count() or 1)))')
WANTED := pyproject.toml constraints.txt src/meshwright/version.py

.DEFAULT_GOAL := help
.PHONY: help venv demo accuracy test test-gpu lint hunt parity curves exchange chaos clean another-torch

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/.stamp ## a 10 M Llama planned, trained on 4 CPU processes, killed, resumed on 2 under another plan
	@.venv/bin/python examples/demo/demo.py

accuracy: .venv/.stamp ## the tables of docs/accuracy.md, from the measurements that come with the package
	@$(RUN) meshwright validate --docs docs/accuracy.md

test: lint .venv-base/.stamp ## lint, then the whole test suite
	@$(RUN) pytest -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder

hunt: .venv/.stamp ## every property test with examples that no run has drawn; what fails is kept in .hypothesis
	@$(RUN) pytest -n $(AT_ONCE) --hypothesis-profile hunt -m hypothesis

parity: .venv/.stamp ## many processes against one, all plans of the array; CASE=NAME runs one; writes docs/parity.md
	@$(RUN) tests.parity.run $(if $(CASE),--case $(CASE))

curves: .venv/.stamp ## 200 steps of two models under five unlike plans each, against one process's losses
	@$(RUN) tests.train.curves

exchange: .venv/.stamp ## checkpoints of ten unlike plans under each other, bit for bit
	@$(RUN) tests.train.exchange

chaos: .venv/.stamp ## processes killed at random in every phase of a run, and what comes of it; prints its seed
	@$(RUN) benchmarks.chaos

test-gpu: .venv/.stamp ## the tests that need a GPU; they skip, and say so, where there is none
	@$(RUN) pytest -m gpu || { code=$$?; [ $$code -eq 5 ] && echo "test-gpu: there are no GPU tests" || exit $$code; }

lint: .venv/.stamp ## ruff (lint and format), mypy, codespell
	@echo "lint: ruff check"; $(RUN) ruff check --quiet
	@echo "lint: ruff format"; $(RUN) ruff format --check --quiet
	@echo "lint: mypy"; $(RUN) mypy --no-error-summary
	@echo "lint: codespell"; $(RUN) codespell_lib

venv: .venv/.stamp ## .venv, with everything that development needs
	@:

.venv/.stamp: $(WANTED)
	@$(call make_venv,.venv)
	@if [ -z "$$TORCH" ]; then cp constraints.txt .venv/constraints.txt; else \
	    echo ".venv: installing $$TORCH instead of the torch of constraints.txt"; \
	    set -f; .venv/bin/python $(PIP) $$TORCH && printf '%s' "$$TORCH" > .venv/torch && \
	    grep -v '^torch==' constraints.txt > .venv/constraints.txt; fi
	@echo ".venv: installing meshwright[train,dev] (editable) under constraints.txt"
	@.venv/bin/python $(PIP) --constraint .venv/constraints.txt --editable '.[train,dev]'
	@touch $@

# What `pip install meshwright` gives: no torch, no transformers.
.venv-base/.stamp: $(WANTED)
	@$(call make_venv,.venv-base)
	@echo ".venv-base: installing meshwright (editable), without extras, under constraints.txt"
	@.venv-base/bin/python $(PIP) --constraint constraints.txt --editable .
	@touch $@

ifneq ($(strip $(TORCH)),$(strip $(CHOSEN)))
.venv/.stamp: another-torch
endif
another-torch:
	@echo ".venv: removing it, to take another torch"
	@rm -rf .venv

# A virtual environment at $(1), unless one with a working Python is there.
define make_venv
$(1)/bin/python -c '' 2>/dev/null || { \
    $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
        echo "Meshwright needs Python 3.11 or newer, which '$(PYTHON)' is not: make PYTHON=python3.12 …" >&2; exit 1; }; \
    echo "$(1): making a virtual environment with $$($(PYTHON) --version)"; \
    $(PYTHON) -m venv --clear $(1) || { \
        echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu it needs: apt install python3-venv" >&2; exit 1; }; }
endef

clean: ## remove the environments, builds and caches
	@rm -rf .venv .venv-base build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
