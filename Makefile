.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
LOOPS := .venv/.loops
OLDEST := .venv-oldest/.ready
# Any Python with a CUDA build of torch; what else the tests need goes into .venv-gpu beside it.
GPU_PYTHON ?= python3
GPU_PATH := PYTHONPATH=src:.venv-gpu
# Enough of the tests to see every API that the lowest versions must have.
OLDEST_TESTS := $(addprefix tests/schedules/test_,linear.py convex_and_nonconvex.py baselines_and_wrappers.py) \
  tests/estimate tests/streams src/driftrate/adapters \
  $(addprefix src/driftrate/,torch.py optax.py keras.py river.py sklearn.py) \
  tests/test_command_line.py tests/data $(addprefix tests/paper/test_,reproduce.py store.py) \
  $(addprefix tests/race/test_,race_cli.py sources.py store.py contestants.py)

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
	$(BIN)/pytest -n 2 --dist loadscope

check: $(READY) $(LOOPS) $(OLDEST) ## What has no time in test: slow ones, pages in a browser, oldest versions
	@command -v chromium >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
	  { apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core; } \
	  >/dev/null 2>&1 || echo 'Chromium cannot be installed here'
	$(BIN)/pytest -n 2 --dist loadscope -m slow tests
	$(BIN)/pytest -n 2 --dist loadgroup -m attack tests/attacks
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[kernels]'
	TRITON_INTERPRET=1 $(BIN)/pytest -m "slow or not slow" tests/simulation/test_fused.py \
	  tests/adapters/test_kernels.py tests/adapters/test_pursuit_ways.py tests/adapters/test_pursuit_fit.py
	: $${DRIFTRATE_BROWSER:=$$(command -v chromium >/dev/null && echo needed)}; \
	  DRIFTRATE_BROWSER=$$DRIFTRATE_BROWSER $(BIN)/pytest -rs -m browser tests/pages
	SCIPY_ARRAY_API=1 .venv-oldest/bin/pytest -n 2 --dist loadscope -W default $(OLDEST_TESTS)

$(LOOPS): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[loops]'
	@touch $@

$(OLDEST): pyproject.toml .ci/oldest.py
	$(PYTHON) -m venv .venv-oldest
	$(PYTHON) .ci/oldest.py > .venv-oldest/constraints.txt
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check \
	  -c .venv-oldest/constraints.txt -e '.[torch,jax,keras,river,sklearn,race]' \
	  'pytest>=8' 'pytest-xdist>=3.6' 'hypothesis>=6.100'
	@touch $@

package: $(READY) ## The wheel and the sdist in dist/, its own tests, and those of what is released
	rm -rf dist
	$(BIN)/python -m build --no-isolation -o dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/pytest -m 'slow or not slow' -rs tests/package tests/test_project.py
	folder=$$(mktemp -d) && tar -xzf dist/*.tar.gz -C $$folder --strip-components=1 && cd $$folder && \
	  PYTHONPATH=$$folder/src $(CURDIR)/$(BIN)/pytest -n 2 --dist loadscope && rm -r $$folder

gpu: ## The tests that need CUDA, with the torch of GPU_PYTHON (python3 if not said)
	@$(GPU_PATH) $(GPU_PYTHON) -c 'import pytest, array_api_compat' 2>/dev/null || \
	  $(GPU_PYTHON) -m pip install --quiet --target .venv-gpu pytest array-api-compat
	$(GPU_PATH) $(GPU_PYTHON) -m pytest --noconftest -rs -m gpu \
	  tests/adapters/test_on_gpu.py tests/adapters/test_pursuit_on_gpu.py \
	  tests/simulation/test_fused_on_gpu.py
	@if command -v compute-sanitizer >/dev/null; then \
	  PYTORCH_NO_CUDA_MEMORY_CACHING=1 $(GPU_PATH) compute-sanitizer --error-exitcode 9 \
	    $(GPU_PYTHON) -m pytest --noconftest -q -m gpu tests/adapters/test_pursuit_on_gpu.py \
	    -k 'readable or resized'; \
	else echo 'no compute-sanitizer here: the kernel was not watched'; fi

coverage: $(READY) ## The tests again, counting the lines they reach: three times as slow
	$(BIN)/pytest -n 2 --dist loadscope --cov --cov-report=term:skip-covered

# With --quiet mkdocs would not count warnings, and strict would let all pass.
docs: $(READY) ## Build the site into site/; any warning fails
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=src $(BIN)/mkdocs build --strict
	@echo 'open site/index.html'

reproduce: $(READY) ## Run the whole paper; the report is out/index.html
	$(BIN)/driftrate reproduce --out out

playground: $(READY) ## The page on which learners chase a target, out/playground/index.html
	$(BIN)/python -m driftrate.playground

bench: $(READY) ## The slow studies: speed and regret, as ratios in one run
	$(BIN)/python benchmarks/schedules.py
	$(BIN)/python benchmarks/simulate.py
	$(BIN)/python benchmarks/simulate.py --threads
	$(BIN)/python benchmarks/cytometry.py
	$(BIN)/python benchmarks/adapters.py
	$(BIN)/python benchmarks/adapters.py --small
	$(BIN)/python benchmarks/pursuit.py
	$(BIN)/python benchmarks/playground.py
	$(BIN)/python benchmarks/cost_model.py
	$(BIN)/python benchmarks/sharded.py
	$(BIN)/python benchmarks/cluster.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/estimators.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/zero_knowledge.py --every 16
	$(BIN)/python benchmarks/race.py --defaults-only
	$(BIN)/python benchmarks/networks.py --streams keystroke,airquality_co,bike_hourly --methods adam,cocob,Pursuit

.PHONY: help setup lint test check package gpu coverage docs reproduce playground bench
