# `make demo` and `make test` work on a fresh machine with Python 3.11+; both install what is missing.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := dev,geo,onnx,pretrained,ray
STAMP := $(VENV)/.installed
SEEDS := 3
SPLITS := suburb
# Empty means that Python stores what it has compiled, which an environment may forbid, as containers do. The many
# processes of the tests would otherwise compile torch and all that it imports anew, which takes each of them seconds.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-isa test-wheel test-lowest lint types unit docs format install clean

install: $(STAMP)
	@echo "ldstyle is in $(BIN): run \`source $(BIN)/activate\`, then \`ldstyle --help\`."

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ldstyle needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Set PYTHON=/path/to/python3.11."; exit 1; }
	@[ -x $(BIN)/python ] || { echo "==> creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@[ -x $(BIN)/uv ] || { echo "==> putting uv into $(VENV)"; $(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^uv==' constraints.txt)" 2>/dev/null; }
	@echo "==> installing ldstyle[$(EXTRAS)] (about 6 GB the first time, seconds with a warm cache)"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e ".[$(EXTRAS)]"
	@touch $@

demo: $(STAMP)
	@echo "==> training ERM, EFDMix and LD-EFDMix on synthetic scenes, $(SEEDS) seeds each (SPLITS=all leaves out each domain in turn)"
	@$(BIN)/ldstyle bench run --data synthetic --methods erm efdmix ld-efdmix --preset demo --splits $(SPLITS) --seeds $(SEEDS) --results demo/results --cache demo/cache
	@echo "==> making the report"
	@$(BIN)/ldstyle report demo/results --out demo/report --trust-record
	@echo "Next, with your own images: a folder with images and a labels.csv (columns path, domain, and one per label), then"
	@echo "  $(BIN)/ldstyle data check --data DIR"
	@echo "  $(BIN)/ldstyle bench run --data DIR --methods erm efdmix ld-efdmix --preset small --seeds 3 --results results"
	@echo "docs/quickstart.md has all of it. Stop and resume the demo at any time with \`make demo\`."

test: lint types unit

lint: $(STAMP)
	@echo "==> lint and format"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP)
	@echo "==> types"
	@$(BIN)/mypy

# worksteal gives each worker one contiguous part of the tests and later a piece off another's end, so fixtures of a
# module or folder are built once but for the few modules that such a cut divides; loadfile would alternate between
# files and train the runs that a folder shares in both workers.
unit: $(STAMP)
	@echo "==> tests"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-isa: $(STAMP)
	@PYTHON=$(BIN)/python .ci/test-isa

# The wheel in an environment of its own, outside the repository: first the core, then everything.
test-wheel: $(STAMP)
	@PYTHON=$(BIN)/python .ci/test-wheel

# The lowest versions that pyproject.toml admits, for what `import ldstyle` and `attach` promise.
test-lowest: $(STAMP)
	@PYTHON=$(BIN)/python .ci/test-lowest

docs: $(STAMP)
	@echo "==> documentation (runs the notebooks: a few minutes)"
	@LDSTYLE_NOTEBOOKS=run NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html; to search in it: $(BIN)/python -m http.server --directory site"

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
