# Every target sets itself up: a virtual environment in .venv with the versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
COMPARED := .venv/.compared

.DEFAULT_GOAL := help
.PHONY: help demo test bench check docs format clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 16

demo: $(READY) ## convert the bundled network, print its accuracy and energy, write the figures
	$(BIN)/onespike demo

test: check ## everything that must hold: check, then all tests and doctests
	$(BIN)/pytest -n 2

bench: $(COMPARED) ## time and memory beside the original network (BENCH=--quick for a short run)
	$(BIN)/python benchmarks/speed.py $(BENCH)

check: $(READY) ## format, lint, types and import contracts
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY) ## build the documentation into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(READY) ## write the format and the lint fixes that are safe
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean: ## remove the environment and everything that was built
	rm -rf .venv build dist site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "onespike needs Python 3.11 or later. Name one with: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt setuptools
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[all,test,docs]'
	touch $@

$(COMPARED): $(READY)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[bench]'
	touch $@
