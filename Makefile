# `make` lists the targets. `make bench` and `make test` do their own set-up; a second call installs nothing.
.DEFAULT_GOAL := help
VENV ?= .venv
PYTHON ?= python3
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
BIN := $(VENV)/bin
STAMP := $(VENV)/.fedprompt-checkout
QUIET := $(shell test -t 2 || echo --quiet)

export MLFLOW_DISABLE_TELEMETRY := true

# An environment given by VENV=... may hold another checkout: the stamp says which one is installed.
ifneq ($(shell cat "$(STAMP)" 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

.PHONY: help setup bench bench-clip test test-fast test-browser test-slurm coverage soak ui perf perf-peers lint typecheck docs excerpts clean

# It has its own target.
APART := --ignore=tests/soak

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'
	@echo "  VENV=DIR reuses an environment (default .venv), WORKERS=N sets the processes of bench and test."

setup: $(STAMP)  ## .venv with everything, versions from constraints.txt

# Is this Python new enough? Asked before anything is downloaded, and of an environment that is there already.
ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))

$(STAMP): pyproject.toml constraints.txt
	@if test -f "$(VENV)/pyvenv.cfg" && ! "$(BIN)/python" -c "$(ENOUGH)" 2>/dev/null; then \
	  echo "$(VENV) has no working Python of 3.11 or newer; it is created again"; rm -f "$(BIN)/python"; fi
	@test -x "$(BIN)/python" || $(PYTHON) -c "$(ENOUGH)" || { \
	  echo "Python 3.11 or newer is needed, but $(PYTHON) is $$($(PYTHON) --version 2>&1 || echo not there);" \
	    "name another: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.11" >&2; exit 1; }
	@test -x "$(BIN)/python" || $(PYTHON) -m venv --clear "$(VENV)"
	@if test -s "$@" && test "$$(cat "$@")" != "$(CURDIR)"; then \
	  echo "$(VENV) ran the checkout $$(cat "$@"); from now on it runs this one ($(CURDIR)), until make is called there"; fi
	@echo "installing into $(VENV) (a few minutes and about 6 GB the first time)"
	@"$(BIN)/python" -m pip install $(QUIET) --disable-pip-version-check -c constraints.txt -e '.[dev,clip,ray,slurm,postgres]'
	@printf '%s' "$(CURDIR)" > "$@"
	@echo "done; call $(BIN)/fedprompt, or plain fedprompt after: source $(BIN)/activate"

bench: setup  ## train the embedded suite, record it, write tables
	"$(BIN)/fedprompt" bench embedded --workers $(WORKERS)

bench-clip: setup  ## the same for text methods: the embedded CLIP suite
	"$(BIN)/fedprompt" bench embedded-clip --workers $(WORKERS)

test: setup lint typecheck  ## all tests, after lint and typecheck
	OMP_NUM_THREADS=1 "$(BIN)/python" -m pytest tests -n $(WORKERS) $(APART)

test-fast: setup  ## the tests that take less than a few seconds each
	OMP_NUM_THREADS=1 "$(BIN)/python" -m pytest tests -n $(WORKERS) $(APART) -m "not slow"

coverage: setup  ## all tests, and the lines that none of them runs
	OMP_NUM_THREADS=1 "$(BIN)/python" -m pytest tests -n $(WORKERS) $(APART) --cov

# Debian's packages; elsewhere put a chromium and its chromedriver on the path.
SUDO := $(shell test "$$(id -u)" = 0 || echo sudo)
test-browser: setup  ## the report's page and the MLflow UI in a real browser (installs chromium)
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	  { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq chromium chromium-driver; }
	@"$(BIN)/python" -m pip install $(QUIET) --disable-pip-version-check -c constraints.txt -e '.[browser]'
	"$(BIN)/python" -m pytest tests/browser -v

test-slurm: setup  ## the executor slurm on a real Slurm of one node (installs slurm-wlm and munge; needs root)
	@command -v slurmctld >/dev/null && command -v munged >/dev/null || \
	  { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq slurm-wlm munge; }
	OMP_NUM_THREADS=1 $(SUDO) "$(BIN)/python" -m pytest tests/harness/running/executors/test_slurm.py -v

soak: setup  ## kills, random input, a full disk, two benches on one folder; at most 20 minutes
	OMP_NUM_THREADS=1 timeout -s INT -k 1m 20m "$(BIN)/python" -m pytest tests/soak -p no:cacheprovider

PORT ?= 5000
ui: setup  ## MLflow in the browser, on 127.0.0.1:PORT (default 5000)
	"$(BIN)/fedprompt" ui --port $(PORT)

perf: setup  ## speed as ratios next to their aims, from one run, and micro-benchmarks
	OMP_NUM_THREADS=1 "$(BIN)/python" benchmarks/perf.py
	OMP_NUM_THREADS=1 "$(BIN)/python" -m pytest benchmarks --benchmark-columns=median,iqr,rounds --benchmark-sort=name

# Their pins must not reach our environment: they get their own, which sees our packages after its own.
PEERS := build/peers
perf-peers: setup  ## FedVPT-D compared with Flower's simulation and pfl-research (installs both in build/peers)
	@test -x "$(PEERS)/bin/python" || "$(BIN)/python" -m venv "$(PEERS)"
	@"$(PEERS)/bin/python" -m pip install $(QUIET) --disable-pip-version-check psutil 'flwr[simulation]' || echo "Flower cannot be installed here"
	@"$(BIN)/python" -c "import site, sys; print(f'import site; site.addsitedir({site.getsitepackages()[0]!r})')" > \
	  "$$("$(PEERS)/bin/python" -c 'import site; print(site.getsitepackages()[0])')/zz_fedprompt.pth"
	@"$(PEERS)/bin/python" -m pip install $(QUIET) --disable-pip-version-check pfl || echo "pfl-research cannot be installed here"
	OMP_NUM_THREADS=1 "$(PEERS)/bin/python" benchmarks/peers.py

lint: setup  ## ruff, and the import contract
	"$(BIN)/python" -m ruff check .
	"$(BIN)/python" -m ruff format --check .
	"$(BIN)/lint-imports" --no-logo --no-cache

typecheck: setup  ## mypy --strict
	"$(BIN)/python" tools/typecheck.py

# mkdocs does not follow setuptools' package-dir: it reads the folders through links with their import names.
docs: setup  ## the documentation as a site in build/site; warnings are errors
	@"$(BIN)/python" -m pip install $(QUIET) --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@rm -rf build/links && mkdir -p build/links/fedprompt
	@for name in core backbones datasets methods harness; do ln -sfn "$(CURDIR)/$$name" build/links/fedprompt/$$name; done
	NO_MKDOCS_2_WARNING=1 "$(BIN)/python" -m mkdocs build --strict --quiet
	"$(BIN)/python" tools/published.py pages build/site/reference

excerpts: setup  ## reports in results/reference, and tables of README and docs/results.md, in present words
	@"$(BIN)/python" tools/published.py texts
	@"$(BIN)/python" tools/excerpt.py README.md docs/results.md

clean:  ## remove what make made, but no results
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .coverage
