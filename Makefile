# Every target does its own set-up in .venv; a clean clone needs only Python 3.11 or newer with pip.

# Each candidate is run, not just looked up: a version manager's shim may exist and still refuse.
PYTHON ?= $(shell for candidate in python3.13 python3.12 python3.11 python3 python; do \
	$$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
		&& { echo $$candidate; break; }; done)

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SECONDS_OF_SOAK ?= 600
EVERY ?= 1
SECONDS ?= 3600
ENGINE ?= postgres
PYTEST_ARGS ?=

# What of the differential tests runs on Spark each time; `make conformance` runs all.
ON_SPARK := tests/conformance tests/oracle $(addprefix tests/integration/test_,traps.py errors_in_deltas.py ddl.py dag.py)

# What depends on the server's version.
ON_EACH_SERVER := tests/integration tests/oracle tests/migration tests/crash tests/spark/test_engine_selection.py tests/spark/test_transport.py

# What runs programs as users do, and waits for them more than it computes.
AS_PROGRAMS := tests/service tests/acceptance

# Where the tests are that are marked smoke; none of them starts Spark.
WITH_SMOKE := tests/integration tests/migration tests/service tests/acceptance

# Two targets at a time, for each leaves a core idle most of the time; one after the other on the screen, and all of them.
TWO_AT_A_TIME := $(MAKE) --no-print-directory --keep-going -j2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

SYSTEM_SERVER := $(BIN)/python -c 'from headwater.embedded import find_installations as find; \
	print(next((i for i in find() if i.origin != "wheel"), ""))'

.PHONY: help install demo quick test test-quick test-embedded test-service test-spark test-system test-long conformance check format soak soak-concurrency crash clean

help: ## Show this list (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

test: $(STAMP) ## Run the suite on the embedded server, Spark, the system's server
	@$(TWO_AT_A_TIME) test-embedded test-service test-spark test-system

quick: $(STAMP) ## Check, run the unit tests and a few tests of each part: a minute or so
	@$(TWO_AT_A_TIME) check test-quick

test-quick: $(STAMP) ## Run the unit tests and a few tests of each part, without Spark
	@echo "== testing quickly on the embedded PostgreSQL"
	$(BIN)/python -m pytest --quiet tests/unit $(PYTEST_ARGS)
	HEADWATER_TEST_SERVER=embedded $(BIN)/python -m pytest --quiet -m smoke $(WITH_SMOKE) $(PYTEST_ARGS)

test-embedded: $(STAMP) ## Run the suite on the embedded server, but what test-service runs
	@echo "== testing on the embedded PostgreSQL"
	HEADWATER_TEST_SERVER=embedded $(BIN)/python -m pytest $(addprefix --ignore=,$(AS_PROGRAMS)) $(PYTEST_ARGS)

test-service: $(STAMP) ## Run the tests of the programs: the service, the commands, the demo
	@echo "== testing the programs on the embedded PostgreSQL"
	HEADWATER_TEST_SERVER=embedded $(BIN)/python -m pytest $(AS_PROGRAMS) $(PYTEST_ARGS)

test-spark: $(STAMP) ## Run the main differential tests on Spark
	@echo "== testing on Spark"
	HEADWATER_TEST_SERVER=embedded $(BIN)/python -m pytest --engine spark $(ON_SPARK) $(PYTEST_ARGS)

test-long: $(STAMP) ## Run the tests of Spark that take minutes
	HEADWATER_TEST_SERVER=embedded $(BIN)/python -m pytest --long -m slow tests/spark $(PYTEST_ARGS)

conformance: $(STAMP) ## Run every differential test on both engines
	HEADWATER_TEST_SERVER=embedded $(BIN)/python -m pytest --engine both -m differential $(PYTEST_ARGS)

test-system: $(STAMP) ## Run what depends on the server on the system's, if there is one
	@set -e; found=$$($(SYSTEM_SERVER)); \
	if [ -z "$$found" ]; then echo "== no PostgreSQL on this system: tested on the embedded one only"; exit 0; fi; \
	echo "== testing on $$found"; \
	HEADWATER_TEST_SERVER=system $(BIN)/python -m pytest $(ON_EACH_SERVER) $(PYTEST_ARGS)

check: $(STAMP) ## Lint, formatting, types, layers
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet tests/unit/test_layers.py

format: $(STAMP) ## Reformat the code and fix what ruff can
	$(BIN)/ruff check --fix src tests
	$(BIN)/ruff format src tests

soak: $(STAMP) ## Run the property tests for SECONDS_OF_SOAK (600) on ENGINE (postgres)
	HYPOTHESIS_PROFILE=soak HEADWATER_SOAK_SECONDS=$(SECONDS_OF_SOAK) $(BIN)/python -m pytest --timeout=0 \
		--engine $(ENGINE) tests/oracle tests/conformance/test_readings.py $(PYTEST_ARGS)

soak-concurrency: $(STAMP) ## Write and refresh at once for SECONDS (3600), print what grows
	HEADWATER_LOAD_SECONDS=$(SECONDS) $(BIN)/python -m pytest -s --timeout=0 tests/oracle/test_concurrency.py $(PYTEST_ARGS)

crash: $(STAMP) ## Kill and cut off every verb at every EVERY-th (1) statement it sends
	HEADWATER_EVERY=$(EVERY) $(BIN)/python -m pytest -s --timeout=0 tests/crash $(PYTEST_ARGS)

clean: ## Remove .venv and all caches
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
