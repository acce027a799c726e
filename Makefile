.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

help: ## Show the commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(READY) ## Make .venv with the pinned versions

lint: $(READY) ## Format check, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: lint ## Lint, type-check and test everything
	$(BIN)/pytest -n 2 --dist loadgroup

coverage: $(READY) ## The tests again, counting the lines they reach: three times as slow
	$(BIN)/pytest -n 2 --dist loadgroup --cov --cov-report=term:skip-covered

reproduce: $(READY) ## Run the whole paper; the report is out/index.html
	$(BIN)/driftrate reproduce --out out

bench: $(READY) ## The slow studies: speed and regret, as ratios in one run
	$(BIN)/python benchmarks/schedules.py
	$(BIN)/python benchmarks/simulate.py
	$(BIN)/python benchmarks/cytometry.py
	$(BIN)/python benchmarks/adapters.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/estimators.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/zero_knowledge.py --every 16
	$(BIN)/python benchmarks/race.py --defaults-only

.PHONY: help setup lint test coverage reproduce bench
