# `make run` and `make test` need Python 3.11 or newer and nothing else: they install into .venv what they use.
PYTHON ?= python3
BIN := .venv/bin
THREADS ?= 2
RUN ?= runs/digits

.PHONY: run test quick check browser docs bench clean help

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
