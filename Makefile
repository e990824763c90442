# `make run` and `make test` need Python 3.11 or newer and nothing else: they install into .venv what they use.
PYTHON ?= python3
BIN := .venv/bin
THREADS ?= 2
RUN ?= runs/digits
TOOLS := .venv/release/bin
CORE := .venv/core
INTO_CORE := $(TOOLS)/python -m pip --disable-pip-version-check --python $(CORE)/bin/python
TORCH_CPU ?= $(wildcard $(PIP_FIND_LINKS)/torch-*+cpu-*.whl)  # wheels for Linux, for make hashes

.PHONY: run test quick fuzz check browser docs bench hashes release clean help

help:  ## say what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

run: .venv/installed  ## train on handwritten digits, evaluate, draw samples, write a report
	$(BIN)/infocnf train $(if $(wildcard $(RUN)/config.toml),--resume,digits) --out $(RUN)
	$(BIN)/infocnf evaluate $(RUN) --outliers
	$(BIN)/infocnf sample $(RUN)
	$(BIN)/infocnf report $(RUN)
	@echo "samples: $(RUN)/samples.png"
	@echo "report:  $(RUN)/report.html (open it in a browser)"

test: check  ## check, then run all tests
	$(BIN)/python -m pytest -n $(THREADS)

quick: .venv/installed  ## the tests that take no more than seconds
	$(BIN)/python -m pytest -n $(THREADS) -m 'not slow'

fuzz: .venv/installed  ## the fuzzers with FUZZ times as many calls, all new, and a kill at every write
	FUZZ=$(or $(FUZZ),20) $(BIN)/python -m pytest -n $(THREADS) tests/fuzz tests/training/test_kills.py

check: .venv/installed  ## format, lint, types, layers and doctests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py --doctest-modules infocnf --ignore=infocnf/app/page.py  # Gradio is an extra

browser: .venv/browser  ## try the page in a real browser (needs Chromium: apt install chromium)
	$(BIN)/python -m pytest browser

docs: .venv/docs  ## build the documentation into site/
	$(BIN)/mkdocs build --strict

bench: .venv/bench  ## measure against torchdiffeq, torchode, zuko and diffrax (an hour)
	$(BIN)/python -m benchmarks --out docs

hashes: .venv/release/installed  ## pin the core by version and hash: requirements-hashed.txt
	$(TOOLS)/python release/hashes.py $(TORCH_CPU)

release: .venv/release/installed  ## make dist/: packages, requirements, bill of materials, licences, sums
	rm -rf dist $(CORE)
	$(TOOLS)/python -m build --no-isolation --outdir dist .
	$(PYTHON) -m venv --without-pip $(CORE)  # with nothing but the core
	$(INTO_CORE) install --quiet --require-hashes --only-binary :all: -c constraints.txt -r requirements-hashed.txt
	$(INTO_CORE) install --quiet --no-deps --no-index --find-links dist infocnf
	$(INTO_CORE) check
	$(CORE)/bin/infocnf --version
	sed "s/^dynamic = .*/version = \"$$($(CORE)/bin/infocnf --version | cut -d' ' -f2)\"/" pyproject.toml > $(CORE)/pyproject.toml
	$(TOOLS)/cyclonedx-py environment --pyproject $(CORE)/pyproject.toml --mc-type library --output-reproducible -o dist/sbom.cdx.json $(CORE)/bin/python
	$(TOOLS)/pip-licenses --python $(CORE)/bin/python --with-system --order name --output-file dist/licences.txt
	cp requirements-hashed.txt dist
	cd dist && sha256sum * > SHA256SUMS && cat SHA256SUMS

clean:  ## remove what was installed and made
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache outputs  # runs are yours: kept
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

.venv/browser: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo]' playwright
	touch $@

.venv/docs: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

.venv/bench: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

.venv/release/installed: Makefile
	test -x $(TOOLS)/python || $(PYTHON) -m venv .venv/release
	$(TOOLS)/python -m pip install --quiet --disable-pip-version-check \
		build==1.6.1 cyclonedx-bom==7.5.0 hatchling==1.33.0 pip-licenses==5.5.5 uv==0.13.8
	touch $@
