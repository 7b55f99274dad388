# Every target does its own set-up in .venv; a clean clone needs only Python 3.11 or newer with pip.

# Each candidate is run, not just looked up: a version manager's shim may exist and still refuse.
PYTHON ?= $(shell for candidate in python3.13 python3.12 python3.11 python3 python; do \
	$$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
		&& { echo $$candidate; break; }; done)

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SECONDS_OF_SOAK ?= 600
PYTEST_ARGS ?=

SYSTEM_SERVER := $(BIN)/python -c 'from headwater.embedded import find_installations as find; \
	print(next((i for i in find() if i.origin != "wheel"), ""))'

.PHONY: help install demo test test-embedded test-system check format soak clean

help: ## Show this list (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## Make .venv with everything development needs

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Headwater needs Python 3.11 or newer; set PYTHON=/path/to/python3" >&2; exit 1; }
	@# Debian's python3 may lack ensurepip; its pip can still fill an environment made without it.
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { rm -rf $(VENV); $(PYTHON) -m venv $(VENV) >/dev/null; } || { \
		rm -rf $(VENV) && $(PYTHON) -m venv --without-pip $(VENV) \
		&& $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP) ## Show stream tables at work on a private PostgreSQL
	$(BIN)/headwater demo

test: test-embedded test-system ## Run the suite on the embedded server, then on the system's

test-embedded: $(STAMP) ## Run the suite on the embedded server
	@echo "== testing on the embedded PostgreSQL"
	HEADWATER_TEST_SERVER=embedded $(BIN)/python -m pytest $(PYTEST_ARGS)

test-system: $(STAMP) ## Run the suite on the system's server, if there is one
	@set -e; found=$$($(SYSTEM_SERVER)); \
	if [ -z "$$found" ]; then echo "== no PostgreSQL on this system: tested on the embedded one only"; exit 0; fi; \
	echo "== testing on $$found"; \
	HEADWATER_TEST_SERVER=system $(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(STAMP) ## Lint, formatting, types, layers
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet tests/unit/test_layers.py

format: $(STAMP) ## Reformat the code and fix what ruff can
	$(BIN)/ruff check --fix src tests
	$(BIN)/ruff format src tests

soak: $(STAMP) ## Run the property tests for SECONDS_OF_SOAK (600)
	HYPOTHESIS_PROFILE=soak HEADWATER_SOAK_SECONDS=$(SECONDS_OF_SOAK) \
		$(BIN)/python -m pytest --timeout=0 tests/oracle $(PYTEST_ARGS)

clean: ## Remove .venv and all caches
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
