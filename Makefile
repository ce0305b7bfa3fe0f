# Every target sets up what it needs; `make demo` and `make test` work on a fresh machine with Python 3.11 or 3.12.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SGLANG_STAMP := .venv-sglang/.installed

.PHONY: browser demo demo-sglang test test-long chaos gpu-tables lint format bench proto clean

demo: $(STAMP)
	$(BIN)/trimtab demo

demo-sglang: $(STAMP) $(SGLANG_STAMP)
	$(BIN)/python tests/sglang/demo.py

test: $(STAMP) $(SGLANG_STAMP) browser
	$(BIN)/pytest

test-long: $(STAMP) $(SGLANG_STAMP)
	$(BIN)/pytest -m long

# Ten minutes on a real engine; CHAOS="--seconds 60 --seed 3" for another run.
chaos: $(STAMP) $(SGLANG_STAMP)
	$(BIN)/python tests/sglang/chaos.py $(CHAOS)

bench: $(STAMP)
	$(BIN)/pytest tests/bench -m bench --benchmark-enable --benchmark-sort=name -s

# README tables and a figure of what tests/gpu/bench.py measured; RESULTS names its result files or their folders.
gpu-tables: $(STAMP)
	$(if $(RESULTS),,$(error say which results: make gpu-tables RESULTS=FOLDER))
	$(BIN)/python tests/gpu/gpu_tables.py $(RESULTS) --into README.md --figure tests/gpu/efficiency.svg

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd proto && ../$(BIN)/buf lint

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(STAMP)
	$(BIN)/python tests/support/generate_proto.py proto

browser:
	tests/support/browser.sh

clean:
	rm -rf $(VENV) .venv-sglang build dist

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 12) else "Trimtab needs Python 3.11 or 3.12, this is %d.%d: make PYTHON=/path/to/python3.12" % v)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[replay]' --group dev
	touch $@

$(SGLANG_STAMP): pyproject.toml tests/sglang/requirements.txt tests/sglang/install.sh $(wildcard tests/sglang/shim/* tests/sglang/shim/*/*.py)
	PYTHON=$(PYTHON) tests/sglang/install.sh .venv-sglang
	touch $@
