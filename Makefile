# SPDX-License-Identifier: Apache-2.0
# Everything sets itself up: a .venv beside this file, the C libraries built in place.
# Type `make help`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
EXTRAS ?=
PYTEST_ARGS ?=
FUZZ_SECONDS ?= 60
comma := ,
C_DIRS := $(addprefix libhmbtrace,/ /api /capture /dump /pccx /fnv) producer_sim/engine producer_sim/firmware daemon/collector
C_FILES := $(wildcard $(addsuffix /*.[ch],$(C_DIRS)) libhmbtrace/*.map) include/uapi/linux/hmb_trace.h setup.py
# Each set of extras is installed once; its stamp remembers that.
have = $(patsubst %,$(VENV)/.have-%,$(subst $(comma), ,$(1)))

# One pip at a time in one .venv, whatever -j says.
.NOTPARALLEL:
.PHONY: help build demo test soak lint format bench bench-peers fuzz docs deb clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: $(VENV)/.built $(call have,$(EXTRAS)) ## .venv with the programs in it (EXTRAS=dev,all for everything)

$(VENV)/.created:
	@PYTHON=$(PYTHON) scripts/check_tools.sh
	@test -e $(VENV)/.installed || $(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.installed: pyproject.toml setup.py | $(VENV)/.created
	$(PIP) install 'setuptools>=66' wheel 'cffi>=1.15'
	$(PIP) install --no-build-isolation -e .
	@touch $@

$(VENV)/.have-%: pyproject.toml $(VENV)/.installed
	@$(BIN)/python scripts/requirements.py $* >$@.txt
	$(PIP) install -r $@.txt
	@touch $@

$(VENV)/.built: $(VENV)/.installed $(C_FILES)
	PYTHONWARNINGS=ignore $(BIN)/python setup.py -q build_ext --inplace
	@touch $@

demo: build ## simulator + daemon + .pccx + report, in under two minutes
	$(BIN)/python scripts/demo.py

test: build $(call have,test) ## every test that this machine can run; says what it skipped, and why
	$(BIN)/pytest $(PYTEST_ARGS)

soak: build $(call have,test) ## the long torture
	$(BIN)/pytest -m soak --timeout 7200 $(PYTEST_ARGS)

lint: build $(call have,dev) ## style, types, licences
	@scripts/lint.sh

format: build $(call have,dev) ## let ruff and clang-format rewrite
	$(BIN)/ruff check --fix-only -q .
	$(BIN)/ruff format -q .
	clang-format -i $$(git ls-files '*.[ch]')

bench: build $(call have,analysis) ## ratios against the raw limits of this machine, measured in the same run
	$(BIN)/python benchmarks/run.py $(BENCH_ARGS)

bench-peers: build $(call have,analysis) ## the same load through LTTng and others, where they are installed
	$(BIN)/python benchmarks/peers.py

fuzz: ## libFuzzer on the collector and other C that reads what it did not write (FUZZ_SECONDS=n)
	$(MAKE) -C tests/native fuzz FUZZ_SECONDS=$(FUZZ_SECONDS)

docs: build ## man pages and the HTML documentation, into build/docs
	$(BIN)/python scripts/build_docs.py

deb: build ## a Debian package of the programs, into dist/
	scripts/build_deb.sh

clean:
	rm -rf $(VENV) build dist *.egg-info
	find . \( -name '*.so' -o -name '_lib*_abi.py' \) -not -path './.git/*' -delete
	$(MAKE) -C tests/native clean

# The kernel module and the virtual machine that tests it (make test-vm).
-include tests/vm/vm.mk
