# Every developer command. Each one does its own set-up on a bare Debian or Ubuntu machine, once.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
# Whole simulations: not traced for coverage, which makes every test half as slow again.
SIMULATIONS := tests/unit/comparing tests/unit/experiments tests/unit/fidelity
# The build without CUDA, which is a tenth of the size.
TORCH := torch==2.13.0+cpu

# Tests start hundreds of commands, each of which would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# Installs Debian packages where we may: $(call install,PACKAGES,WHAT FOR)
install = if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	echo "installing $(1)"; export DEBIAN_FRONTEND=noninteractive; \
	apt-get -q -q update && apt-get -q -q install -y --no-install-recommends $(1) >/dev/null; \
	else echo "please install $(1): $(2)" >&2; false; fi

# Databases, heartbeats and pages of tests are written through to the disk thousands of times, which takes as long as the
# tests do. They are in memory where it has two gigabytes for them and starts scripts; tests of several users pass through.
define in_memory
folder=$$(mktemp -d /dev/shm/slurmsched.XXXXXX 2>/dev/null) && \
{ trap 'rm -rf "$$folder"' EXIT; trap 'exit 130' INT TERM; } && chmod 711 "$$folder" && \
printf '#!/bin/sh\n' >"$$folder/script" && chmod +x "$$folder/script" && "$$folder/script" 2>/dev/null && \
test "$$(df -Pk "$$folder" | awk 'END {print $$4}')" -ge 2097152 && export TMPDIR="$$folder";
endef

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1	\2/p' Makefile | expand -t 16

setup: $(READY) ## make .venv with everything that development needs

demo: $(RUNS) ## race two schedulers on a simulated cluster, live
	@$(BIN)/synsched demo

# The images of Debian's releases, most of which is downloads, are built beside the tests that need no Slurm.
test: setup lint types ## everything that must pass before a merge
	@nice docker-slurm/cluster images >$(RUNS).images 2>&1 & $(MAKE) unit cluster-tests

lint: $(READY) ## style
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "run '$(BIN)/ruff format .'"; false; }

types: $(READY) ## mypy, strict
	@$(BIN)/mypy

unit: $(READY) ## tests that need no Slurm
	@$(in_memory) $(BIN)/pytest tests/unit tests/properties -n auto --durations 40 --durations-min 5

coverage: $(READY) ## how much of the package the tests that need no Slurm run, simulations aside
	@rm -f .coverage .coverage.*
	@$(in_memory) $(BIN)/pytest tests/unit $(SIMULATIONS:%=--ignore=%) -n auto --cov --cov-config=setup.cfg --cov-report=
	@$(BIN)/python release/coverage_summary.py

# Five workers for two cores: most of the time a story waits. The image from source takes minutes: it is built beside the
# stories of other releases, and those that need it come last. What failed is run a second time, alone: five clusters on
# two cores keep each other waiting longer than any site does. Both runs are printed.
cluster-tests: $(READY) ## stories on real Slurm daemons in docker
	@if [ -n "$$SLURMSCHED_SLURM_SOURCE" ]; then \
	docker-slurm/cluster images --release source --yielding >$(RUNS).source 2>&1 & fi; \
	$(BIN)/pytest tests/slurm -n 5 -rP --durations 40 --durations-min 5; passed=$$?; wait; test $$passed = 1 || exit $$passed; \
	echo "stories failed beside others: each is run again, alone"; \
	$(BIN)/pytest tests/slurm --last-failed --last-failed-no-failures none --maxfail 1 -rP

MINUTES ?= 120
soak: $(READY) ## two hours (MINUTES=120) of jobs and faults on a real Slurm in docker: what grows and what is lost
	@SLURMSCHED_SOAK_MINUTES=$(MINUTES) $(BIN)/pytest tests/slurm/test_soak.py -n 0 -rP

docs: $(READY) ## write the generated pages anew
	@$(BIN)/synsched render settings.md > docs/settings.md.new && mv docs/settings.md.new docs/settings.md
	@$(BIN)/synsched render flags.md > docs/flags.md.new && mv docs/flags.md.new docs/flags.md
	@$(BIN)/synsched render metrics.md > docs/metrics.md.new && mv docs/metrics.md.new docs/metrics.md
	@$(BIN)/synsched render json.md > docs/json.md.new && mv docs/json.md.new docs/json.md
	@$(BIN)/python -m slurmsched.cli.reference > docs/commands.md.new && mv docs/commands.md.new docs/commands.md

lock: $(READY) ## choose the versions of requirements.lock anew, with their hashes
	@$(BIN)/uv pip compile setup.cfg --universal --python-version 3.11 --generate-hashes --upgrade --quiet \
	--custom-compile-command 'make lock' --output-file requirements.lock

dist: $(READY) ## sdist, wheel, bill of materials and digests of the last commit, in dist/
	@$(BIN)/python release/dist.py dist

packages: $(READY) ## what dist makes, a Debian package and an RPM of the last commit, in dist/
	@command -v dpkg-deb >/dev/null && command -v rpmbuild >/dev/null || { $(call install,dpkg rpm,they build the packages); }
	@$(BIN)/python release/packages.py dist

clean: ## remove what set-up and tests left
	@rm -rf $(VENV) .coverage build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help setup demo test lint types unit coverage cluster-tests soak docs lock dist packages clean

# The package and what it needs to run, installed from this checkout.
$(RUNS): setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11" >&2; false; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { $(call install,python3-venv,it makes .venv); }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing slurmsched into $(VENV)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

# What tests and checks need beside it. Without Lua the tests of the hook are skipped, loudly; without systemd's
# analysis, which needs no systemd that runs, those of the unit; without Prometheus those of alert rules and the
# dashboard; without Chromium those of pages in a browser; without mandoc and the shells those of manual pages and TAB.
$(READY): $(RUNS)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(BIN)/pip install --quiet --disable-pip-version-check '$(TORCH)' 2>/dev/null || \
	echo "$(TORCH) is not to be had here: the tests with it are skipped" >&2
	@command -v lua5.4 >/dev/null || { $(call install,lua5.4,without it hooks/job_submit.lua is not tested); } || true
	@command -v systemd-analyze >/dev/null || \
	{ $(call install,systemd,without systemd-analyze the unit is not tested); } || true
	@command -v promtool >/dev/null || \
	{ $(call install,prometheus,without it alert rules and the dashboard are not tested); } || true
	@command -v chromedriver >/dev/null || \
	{ $(call install,chromium chromium-driver fonts-dejavu-core,without them no page is tested in a browser); } || true
	@command -v mandoc >/dev/null && command -v groff >/dev/null || \
	{ $(call install,mandoc groff-base,without them the manual pages are not checked); } || true
	@command -v zsh >/dev/null && command -v fish >/dev/null && test -e /usr/share/bash-completion/bash_completion || \
	{ $(call install,bash-completion zsh fish,without them completion is not tested in shells); } || true
	@touch $@
