# Two commands are enough: `make setup`, then `make demo`, `make up` or `make test`.
# Python 3.11 or later and a package index are all that is needed.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.braidlog-setup
ARGS ?=

# Tests start hundreds of processes: without files of bytecode each of them compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo up test test-slow conformance lint format docs bench sim mutants lock kcat chromium screenshots clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\n  VENV=path   the virtual environment (default .venv)\n'
	@printf '  ARGS="..."  passed on to demo, up, test and bench, e.g. make demo ARGS=--quick\n'

setup: $(STAMP) ## create the virtual environment and install exact versions into it

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(v < (3, 11) and "Braidlog needs Python 3.11 or later, and %s is %d.%d. Try make setup PYTHON=python3.12" % (sys.executable, *v))'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@$(BIN)/python -c 'import braidlog.records.arrow, braidlog.compaction.key_collector, braidlog.compaction.rewriter'  # compiles their loops, once
	@$(MAKE) --no-print-directory kcat chromium
	@touch $@
	@echo "Ready. Next: make demo, make up, or $(BIN)/braid --help"

# kcat is one more real client to test with. Tests that need it are skipped where it cannot be had.
kcat:
	@if ! command -v kcat >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		DEBIAN_FRONTEND=noninteractive timeout 120 apt-get install -y -qq kcat </dev/null >/dev/null 2>&1 || true; \
	fi

# The console is tested in a browser, where one can be had.
chromium:
	@if ! command -v chromium >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -y -qq --no-install-recommends chromium </dev/null >/dev/null 2>&1 || true; \
	fi

screenshots: setup ## take the pictures of the console that the pages show (needs chromium)
	$(BIN)/python -m tests.console.screenshots

demo: setup ## a minute's tour with real processes, a crash in the middle and the bill at the end
	$(BIN)/braid demo $(ARGS)

up: setup ## run a whole Braidlog in one process on 127.0.0.1:9092, data in ./data
	$(BIN)/braid up $(ARGS)

test: setup ## the quick tests
	$(BIN)/python -m pytest $(ARGS)

test-slow: setup ## the tests that take longer
	$(BIN)/python -m pytest -m slow $(ARGS)

conformance: setup ## the conformance suite against three brokers of Apache Kafka, taken from Maven Central
	$(BIN)/python -m tests.kafka.apache $(ARGS)

lint: setup ## style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## put the sources into the one format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup ## write the pages that come from the code: commands, configuration and metrics
	$(BIN)/python -m tests.docs.generate

bench: setup ## measure throughput, latency and cost on this machine
	$(BIN)/python bench/log.py $(ARGS)

sim: setup ## clusters in virtual time with everything going wrong, 100 seeds of it
	$(BIN)/braid sim --runs 100 $(ARGS)

mutants: setup ## plant known mistakes and count the seeds that the simulator needs to catch each
	$(BIN)/braid mutants $(ARGS)

lock: ## resolve the dependencies anew and write requirements.lock (needs uv)
	@echo '# Exact versions of everything that running, testing and checking Braidlog needs. Written by `make lock`.' > requirements.lock.new
	uv pip compile pyproject.toml --extra spark --extra postgresql --group test --group quality --group plots --universal --python-version 3.11 --upgrade \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links --quiet >> requirements.lock.new
	mv requirements.lock.new requirements.lock

clean: ## remove caches and the virtual environment, never data
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis .pytest_cache build dist
