# Everything lives in .venv and build/. A fresh machine needs Python >= 3.11 and make.
PYTHON3 ?= python3
PY := .venv/bin/python
STAMP := .venv/.installed
# A pipe fails with its first program.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
export ZIG_GLOBAL_CACHE_DIR := $(CURDIR)/build/.zig
export ZIG_LOCAL_CACHE_DIR := $(CURDIR)/build/.zig

.PHONY: all venv build products debug demo test e2e e2e-cluster e2e-gpu images bench lint format clean
all: build

venv: $(STAMP)

$(STAMP): pyproject.toml libsync/__init__.py
	@echo "== virtual environment: .venv (packages from the registry; a few minutes the first time)"
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed, this is " + sys.version)'
	$(PYTHON3) -m venv .venv
	@$(PY) -m pip install --disable-pip-version-check -e '.[dev]' | \
		awk '/^(Collecting|Downloading) / { print "  " $$1, $$2; fflush() } /^(Installing collected|Successfully installed)/ { print "  " $$1, $$2 }'
	@touch $@

CSRC = $(MAKE) --no-print-directory -j$$(nproc) -C csrc PYTHON=$(CURDIR)/$(PY)

build: $(STAMP)
	@echo "== library, simulated GPU, probe and test programs, into build/"
	@$(CSRC) all tests

# Without the test programs.
products: $(STAMP)
	@echo "== library, simulated GPU and probe, into build/"
	@$(CSRC) all

debug: $(STAMP)
	@echo "== with sanitizers, into build/debug/, and run: a few minutes"
	@$(CSRC) run-debug

demo: products
	@$(PY) -m e2e.onebox.demo $(if $(KEEP),--keep)

test: build
	@$(PY) -m pytest tests

# Waiting is most of it: on two cores three workers share it, a folder each.
e2e: build
	@echo "== Kubernetes, helm and Debian's packages: from the cache, or (10 minutes the first time) made"
	@$(PY) -m e2e.cluster build
	@$(PY) -m pytest e2e -n 3

# On the cluster that KUBECONFIG names, with KAI Scheduler and the chart installed; says what it leaves out and why.
e2e-cluster: build
	@$(PY) -m pytest e2e/cluster --foreign

# On this machine's card, without a cluster.
e2e-gpu: build
	@$(PY) -m pytest e2e/gpu --gpu

images: build
	@$(PY) -m e2e.images

bench: build
	@echo "== libvgpu.so, beside the bare driver"
	@$(PY) -m tests.bench
	@echo "== webhook, beside a no-op of the same stack"
	@$(PY) -m tests.webhook.bench
	@echo "== monitor"
	@$(PY) -m tests.monitor.bench

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports
	.venv/bin/clang-format --dry-run --Werror $$(git ls-files 'csrc/*.c' 'csrc/*.h')
	@echo "== clang-tidy, over the library's sources"
	@$(CSRC) analyze

format: $(STAMP)
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .
	.venv/bin/clang-format -i $$(git ls-files 'csrc/*.c' 'csrc/*.h')

clean:
	rm -rf build .venv *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
