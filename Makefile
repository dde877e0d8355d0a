# Everything sets itself up: a .venv is made once and reused. Nothing but Python 3.11+, git and make is needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help run test faults fuzz check docs format bench variants matrix sweep metaloads renames timmrules optimizers ties alarms \
	wheel clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/run.stamp  ## Set up what the tour needs, and take it
	@$(BIN)/leafwise tour

test: $(VENV)/dev.stamp  ## Run the tests, and every example in the docs
	@LEAFWISE_PINNED=1 $(BIN)/python -m pytest -q --durations=10 --durations-min=5

faults: $(VENV)/dev.stamp  ## Kill, fill, flip and crash saves at length (minutes)
	@LEAFWISE_FAULTS=long $(BIN)/python -m pytest -q tests/checkpoint/test_faults.py tests/checkpoint/test_damage.py

fuzz: $(VENV)/dev.stamp  ## Damage files of every format, and try the C code with sanitizers (minutes)
	@$(BIN)/python -m tools.fuzz

check: $(VENV)/dev.stamp  ## Lint, format, types, and the links of the site
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run -Werror src/leafwise/kernels/*.[ch] tools/*.c
	@$(BIN)/mypy
	@$(MAKE) --no-print-directory docs

# Strict: a link or an anchor that leads nowhere, or a page that is not in the navigation, is an error. (With --quiet, it is not.)
docs: $(VENV)/dev.stamp  ## Build the documentation site into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: $(VENV)/dev.stamp  ## Put the code in order
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i src/leafwise/kernels/*.[ch] tools/*.c

bench: $(VENV)/dev.stamp  ## Measure everything beside its peers, and print one table
	@$(BIN)/python benchmarks/run.py

variants: $(VENV)/dev.stamp  ## Docs and numeric tests: other CPU capabilities, one thread, C locale
	@$(BIN)/python -m tools.matrix --short

matrix: $(VENV)/dev.stamp  ## The tests on machines unlike this one, for docs/platforms.md (hours)
	@$(BIN)/python -m tools.matrix --write

ties: $(VENV)/dev.stamp  ## Every tied architecture of transformers through what loses ties
	@$(BIN)/python tools/tied_transformers.py

sweep: metaloads renames timmrules optimizers  ## All of transformers, timm, pytorch_optimizer (an hour)

metaloads: $(VENV)/dev.stamp  ## Load every architecture of transformers onto meta (minutes)
	@$(BIN)/python -m tools.meta_loads

renames: $(VENV)/dev.stamp  ## Load all transformers by the names they are stored with (minutes)
	@$(BIN)/python -m tools.auto_renames

timmrules: $(VENV)/dev.stamp  ## Compare the ready-made rules with timm's (minutes)
	@$(BIN)/python -m tools.timm_rules

optimizers: $(VENV)/dev.stamp  ## Resume with every optimizer of PyTorch, timm, pytorch_optimizer
	@$(BIN)/python -m tools.optimizers

alarms: $(VENV)/dev.stamp  ## Count false alarms of check, and planted faults it finds (minutes)
	@$(BIN)/python -m tools.alarms

wheel: $(VENV)/dev.stamp  ## Build sdist and wheel, and prove the wheel in an empty environment
	@rm -rf dist build/wheel && $(BIN)/python -m build --outdir dist . > /dev/null
	@$(PYTHON) -m venv build/wheel
	@build/wheel/bin/python -m pip --disable-pip-version-check --quiet install dist/*.whl
	@$(BIN)/python tools/prove_wheel.py build/wheel/bin
	@ls dist

clean:  ## Remove what was built, the environment included
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache

# The package goes in without its dependencies first being widened: constraints.txt keeps torch where it is.
$(VENV)/run.stamp: pyproject.toml setup.py constraints.txt $(wildcard src/leafwise/kernels/*.[ch])
	@test -d $(VENV) || { echo "Setting up $(VENV) (once) ..."; $(PYTHON) -m venv $(VENV); }
	@$(PIP) install --constraint constraints.txt --editable '.[torch]'
	@touch $@

# timm without what it asks for: torchvision has no build for this torch, and next to it transformers cannot be imported.
$(VENV)/dev.stamp: $(VENV)/run.stamp
	@$(PIP) install --upgrade 'pip>=25.1'
	@$(PIP) install --constraint constraints.txt --group dev --group ecosystem
	@$(PIP) install --constraint constraints.txt --no-deps timm
	@touch $@
