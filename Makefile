# `make` lists the targets. All that is needed is Python 3.11 or newer, and make.

PYTHON ?= python3
AGAINST ?= source
ARGS ?=
SEEDS ?= 2000
SEED ?=
SOAK_S ?= 300
SOAK_SEED ?= 0
SOAK_TESTS := tests/cluster/test_soak.py tests/contract/test_duckdb_file.py

VENV := .venv
WHEEL_VENV := .venv-wheel
PEERS_VENV := .venv-peers
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PINS := pyproject.toml constraints.txt
FOLDERS := actors agents api benchmarks cluster recovery storage
SOURCES := $(shell find $(FOLDERS) -name __pycache__ -prune -o -print)

ifeq ($(AGAINST),wheel)
TEST_PYTHON := $(WHEEL_VENV)/bin/python
TEST_READY := $(WHEEL_VENV)/.wheel
else
TEST_PYTHON := $(VENV)/bin/python
TEST_READY := $(VENV)/.dev
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test simulate soak bench-peers coverage lint format types wheel docs clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  PYTHON=python3.12       the interpreter that a new environment is made with'
	@echo '  ARGS="-k fence -x"      arguments for pytest, in place of the check that each requirement has a test'
	@echo '  SEEDS=20000 SEED=7      how many seeds to simulate, or which one'
	@echo '  AGAINST=wheel           run the tests on the installed wheel, not on the source tree'
	@echo '  SOAK_S=300 SOAK_SEED=0  how long `make soak` kills, and the seed that fixes what it kills and when'

demo: $(VENV)/.runtime ## Install Laneway into .venv and run its demonstration
	$(VENV)/bin/laneway demo

test: $(TEST_READY) ## Run all tests in two processes, and see that each requirement has one
	$(TEST_PYTHON) -m pytest $(or $(ARGS),--traced=all -n 2 --dist loadgroup)

simulate: $(TEST_READY) ## Run many seeds of the simulation, or one and tell what happens in it
	PYTHONHASHSEED=0 $(TEST_PYTHON) tests/simulation/run.py $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

soak: $(TEST_READY) ## Kill actors, store and supervisor for SOAK_S seconds; move a ledger a million times
	SOAK_S=$(SOAK_S) SOAK_SEED=$(SOAK_SEED) $(TEST_PYTHON) -m pytest -m soak -s $(SOAK_TESTS) $(ARGS)

bench-peers: $(VENV)/.runtime $(PEERS_VENV)/.peers $(PEERS_VENV)/.restate ## Measure Laneway beside its peers: DBOS, LangGraph, Restate
	PYTHONPATH=benchmarks $(PEERS_VENV)/bin/python -P -m peers.run --laneway $(VENV)/bin/python $(ARGS)

coverage: $(VENV)/.dev ## Run all tests and report branch coverage
	$(VENV)/bin/python -m pytest --cov --cov-report=term $(ARGS)

lint: $(VENV)/.dev ## Check style, format, and who may import whom
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@$(MAKE) --no-print-directory $(WHEEL_VENV)/.wheel
	$(WHEEL_VENV)/bin/lint-imports --no-logo --no-cache

format: $(VENV)/.dev ## Repair style and format
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

types: $(WHEEL_VENV)/.wheel ## Check the types of the installed wheel
	rm -rf build/types
	mkdir -p build/types
	cd build/types && cp -R "$$(../../$(WHEEL_VENV)/bin/python -c 'import laneway; print(*laneway.__path__)')" laneway
	$(WHEEL_VENV)/bin/basedpyright --pythonpath $(WHEEL_VENV)/bin/python

wheel: dist/.built ## Build the source distribution and, from it, the wheel

docs: $(VENV)/.dev ## Generate the generated documents again
	$(VENV)/bin/python -m laneway.storage.diagram > docs/state-diagram.md

clean: ## Remove environments, builds and caches
	rm -rf $(VENV) $(WHEEL_VENV) $(PEERS_VENV) build dist laneway.egg-info .coverage .coverage.* htmlcov
	rm -rf .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find $(FOLDERS) tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# An environment is made once. What is installed in it is stamped, and installed again when a pin changes.
%/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'Laneway needs Python 3.11 or newer: make PYTHON=python3.12 ...' >&2; exit 1; }
	rm -rf $*
	$(PYTHON) -m venv $* || { rm -rf $*; exit 1; }
	@touch $@

$(VENV)/.runtime: $(VENV)/.created $(PINS)
	$(VENV)/bin/python $(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.created $(PINS)
	$(VENV)/bin/python $(PIP_INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.runtime

$(PEERS_VENV)/.peers: $(PEERS_VENV)/.created benchmarks/peers/requirements.txt
	$(PEERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/peers/requirements.txt
	@touch $@

# Without npm, or where the server is not offered, the others are measured: the run says who is left out.
$(PEERS_VENV)/.restate: $(PEERS_VENV)/.created benchmarks/peers/package.json
	mkdir -p $(PEERS_VENV)/node
	cp benchmarks/peers/package.json $(PEERS_VENV)/node/
	@if command -v npm > /dev/null; then \
		npm install --prefix $(PEERS_VENV)/node --ignore-scripts --no-package-lock --no-audit --no-fund --silent && touch $@; \
	fi || echo 'npm could not install the server of Restate' >&2

$(WHEEL_VENV)/.wheel: $(WHEEL_VENV)/.created constraints.txt dist/.built
	$(WHEEL_VENV)/bin/python -m pip uninstall --quiet --yes laneway 2> /dev/null
	$(WHEEL_VENV)/bin/python $(PIP_INSTALL) "$$(echo dist/laneway-*.whl)[dev]"
	@touch $@

dist/.built: $(VENV)/.dev $(PINS) README.md LICENSE $(SOURCES)
	rm -rf dist
	$(VENV)/bin/python -m build --outdir dist . > build.log 2>&1 || { cat build.log >&2; rm -f build.log; exit 1; }
	@rm -f build.log
	@touch $@
	@ls dist
