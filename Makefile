# make demo      everything set up, the example application running, work being done
# make test      the tests (short form of every promise), in about seven minutes on two cores
# make test-changed  those that the changes of this branch can break (DISTANCE=1 for those that import a changed file)
# make test-all  the long forms as well, test-versions and test-django
# make test-versions   unit and Redis tests with the lowest and the newest dependencies, and on each Python there is
# make test-django   the tests of contrib/django on Django 6.0 and 6.1 (DJANGO=6.1 for one), and Django's own of its backends
# make chaos     kills, freezes, stops and hostile input at full size; every job is accounted for
# make bench     kiqcluster beside its peers, and what each figure has to reach (BENCH="noop --rounds 1" for a part)
# make check     format, lint, types, layers
# make docs      docs/ as a site, in build/docs; a warning is an error (THEME=basic finds the same faults in half the time)
# make release   VERSION=X.Y.Z: sdist and wheel, checked and tested; uploads nothing (without VERSION: a rehearsal)
#
# Needs python3 (3.11 or newer), python3-venv and make; no root, no Docker, no running server.

PYTHON ?= python3
VENV   ?= .venv
# PROCESSES=12 of both pools (tests/ci/pools.py); BESIDE="docs" for other targets that run at the same time.
CI      = $(BIN)/python -m tests.ci $(if $(PROCESSES),--processes $(PROCESSES)) $(foreach each,$(BESIDE),--beside "$(MAKE) --no-print-directory $(each)")
BIN    := $(VENV)/bin
PIP     = $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Walks that have a full size of their own, and other tests.
WALKS   = $(shell grep -l 'scale import.*sized' tests/properties/test_*.py)
LARGE  := tests/process/test_limits.py::test_parked_jobs_cost_redis_nothing_while_they_wait tests/process/test_import_export.py

# Tests start some thousand Python processes: each would compile the whole package where this is set.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-changed test-all test-versions test-django chaos bench check docs release format clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.demo
	$(BIN)/python -m examples.demo

test: $(if $(TESTS),$(VENV)/.dev,$(VENV)/.compiled)
	$(CI) $(TESTS)

test-changed: $(VENV)/.dev
	$(CI) --changed $(DISTANCE)

# The projects that the guides of migration begin with need the libraries that are measured beside us.
test-all: $(VENV)/.dev $(VENV)/.bench
	KIQ_FORKSERVER=0 $(BIN)/python -m pytest -p tests.ci.long_forms $(TESTS)
	$(if $(TESTS),,$(BIN)/python -m tests.versions && $(BIN)/python -m tests.django_versions)

test-versions: $(VENV)/.dev
	$(BIN)/python -m tests.versions

test-django: $(VENV)/.dev
	$(BIN)/python -m tests.django_versions $(DJANGO)

chaos: $(VENV)/.dev
	KIQ_CHAOS=full $(BIN)/python -m pytest $(or $(TESTS),tests/chaos $(WALKS) $(LARGE))

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(or $(BENCH),--json benchmarks/results/latest.json)

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(VENV)/.docs
	$(BIN)/sphinx-build --fail-on-warning --keep-going --fresh-env --quiet $(if $(THEME),--define html_theme=$(THEME)) docs build/docs
	@echo "the site is in build/docs/index.html"

release: $(VENV)/.release
	$(BIN)/python -m tools.release $(VERSION)

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .kiqcluster .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist build

# Set-up.  Each stamp is newer than pyproject.toml once its extras and groups are installed.

$(VENV)/.demo: pyproject.toml | $(BIN)/pip
	$(PIP) --editable '.[embedded,top,web]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.pip
	$(PIP) --editable '.[embedded,top]' --group dev
	@touch $@

# The tests as pytest compiles them: else each of the processes would compile all of them for itself.
$(VENV)/.compiled: $(VENV)/.dev $(shell find tests -name '*.py')
	-@$(BIN)/python -m pytest --collect-only -qq >/dev/null
	@touch $@

# arq and SAQ need an older redis-py than the others.
$(VENV)/.bench: pyproject.toml | $(VENV)/.pip
	$(PIP) --editable '.[embedded,encryption,web]' --group bench
	$(PYTHON) -m venv $(VENV)/older
	$(VENV)/older/bin/python -m pip install --quiet --disable-pip-version-check 'arq>=0.26' 'saq[redis]>=0.26' typing-extensions
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.pip
	$(PIP) --editable . --group docs
	@touch $@

$(VENV)/.release: pyproject.toml | $(VENV)/.pip
	$(PIP) --editable . --group release
	@touch $@

# Debian 12 makes environments with pip 23.0; --group came with 25.1.
$(VENV)/.pip: | $(BIN)/pip
	$(PIP) --upgrade 'pip>=25.1'
	@touch $@

$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: apt-get install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11: make PYTHON=python3.11 (or newer)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "the venv module is missing: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
