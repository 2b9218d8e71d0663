# All targets share one environment: `make train`, `make test`, `make docs`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKDIR ?= runs/tiny
DATA ?= data
SEED ?= 0
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: train speedrun test test-all lint format docs notebooks clean

train: $(VENV)/.run  ## Pretrain a small BERT on the English inside Python itself.
	$(BIN)/bert_jax train --config tiny --workdir $(WORKDIR)

speedrun: $(VENV)/.run  ## Repeat the record: download, train (1 to 3 hours), score.
	$(BIN)/python experiments/data/download.py $(DATA)
	$(BIN)/bert_jax train --config speedrun:$(DATA) --workdir runs/speedrun-$(SEED) \
		--seed=$(SEED) && times
	$(BIN)/bert_jax score --checkpoint runs/speedrun-$(SEED) \
		--pairs $(DATA)/blimp/data --pairs_range 500:1000

test: $(VENV)/.test  ## Run the short tests.
	$(BIN)/python -m pytest

test-all: $(VENV)/.test $(VENV)/.docs  ## Run all tests, also of kills, notebooks, pages and the site.
	$(BIN)/python -m pytest --long

lint: $(VENV)/.test  ## Check format and style.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check --no-cache .

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.docs  ## Write the site to build/docs. Warnings are errors.
	$(BIN)/python -m sphinx -W --keep-going -q -E -b html docs build/docs
	@echo build/docs/index.html

notebooks: $(VENV)/.notebooks  ## Run the notebooks, or NAMES, and save them with outputs.
	$(BIN)/python notebooks/make.py $(NAMES)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: requirements.txt constraints.txt pyproject.toml setup.py | $(VENV)/bin/python
	$(PIP) -e .
	touch $@

$(VENV)/.test: $(VENV)/.run
	$(PIP) -e .[test]
	touch $@

$(VENV)/.docs: $(VENV)/.run
	$(PIP) -e .[docs]
	touch $@

$(VENV)/.notebooks: $(VENV)/.run
	$(PIP) -e .[notebooks,tpu]
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
