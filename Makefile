# SPDX-License-Identifier: Apache-2.0
# Everything sets itself up: a .venv beside this file, the C libraries built in place.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS ?= dev
C_FILES := $(wildcard libhmbtrace/*.[ch] producer_sim/engine/*.[ch] producer_sim/firmware/*.[ch]) \
	include/uapi/linux/hmb_trace.h setup.py

.PHONY: build test lint clean

build: $(VENV)/.built

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e '.[$(EXTRAS)]'
	touch $@

$(VENV)/.built: $(VENV)/.installed $(C_FILES)
	$(BIN)/pip install -q setuptools
	$(BIN)/python setup.py -q build_ext --inplace --force
	touch $@

test: build
	$(BIN)/pytest

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build *.egg-info
