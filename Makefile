# Every target sets itself up: a virtual environment in .venv with the versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --disable-pip-version-check -c constraints.txt
DEMO := .venv/.demo
READY := .venv/.ready
COMPARED := .venv/.compared
# TORCH=cpu: the CPU builds of torch and torchvision, in the versions of constraints.txt, from TORCH_INDEX or pip's own index.
TORCH ?=
TORCH_INDEX ?=
CPU_BUILDS := $(shell sed -n -e 's/^torch==.*/&+cpu/p' -e 's/^torchvision==.*/&+cpu/p' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help demo test matrix bench check docs package format clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 16

demo: $(DEMO) ## convert the bundled network, print its accuracy and energy, write a report
	$(BIN)/onespike demo

test: check ## everything that must hold: check, then all tests and doctests
	$(BIN)/pytest -n 2 --dist worksteal

matrix: $(READY) ## what computes, for other processors, with 1, 2 and 3 threads, and without a compiler
	BIN=$(BIN) sh tests/matrix.sh

bench: $(COMPARED) ## time and memory beside the original network (BENCH=--quick for a short run)
	$(BIN)/python benchmarks/speed.py $(BENCH)

check: $(READY) ## format, lint, types and import contracts
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY) ## write the tables of README, build the documentation into site/; a warning is an error
	$(BIN)/python docs/results.py --write
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

package: ## build the wheel and the source distribution into dist/
	$(PYTHON) -m venv .venv-package && .venv-package/bin/pip install --disable-pip-version-check --quiet 'setuptools>=77'
	mkdir -p dist
	.venv-package/bin/python -c "import setuptools.build_meta as b; print(b.build_sdist('dist'), b.build_wheel('dist'))"
	rm -rf .venv-package

format: $(READY) ## write the format and the lint fixes that are safe
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean: ## remove the environment and everything that was built
	rm -rf .venv build dist site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(DEMO): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "onespike needs Python 3.11 or later. Name one with: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(PIP) setuptools setuptools-scm # builds onespike, and packages that have a source distribution alone
ifeq ($(TORCH),cpu)
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(CPU_BUILDS) || \
		{ echo "No CPU builds of these versions. Name an index that has them with TORCH_INDEX=..., or leave TORCH out." >&2; exit 1; }
endif
	$(PIP) --no-build-isolation -e '.[demo]'
	touch $@

$(READY): $(DEMO)
	$(PIP) --no-build-isolation -e '.[all,test,docs]'
	touch $@

$(COMPARED): $(READY)
	$(PIP) --no-build-isolation -e '.[bench]'
	touch $@
