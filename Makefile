# Every target sets up what it needs: a .venv is made once and reused. Only Python 3.11+, git and make are required.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Where $(VENV) finds JAX, too.
WITH_JAX = $$PWD/src:$$(printf %s "$$PWD"/build/jax_alone/lib/python*/site-packages)
# Repeats a sweep.
SEEDED = $(if $(SEED),--seed $(SEED))

.DEFAULT_GOAL := help
.PHONY: help run test quick long gpu messages faults fuzz costly ranks check docs format bench variants matrix sweep metaloads renames saved \
	timmrules optimizers groups optax pickles payloads scanners pairs ties alarms mutants kinds pictures page wheel clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/run.stamp  ## Take the tour
	@$(BIN)/leafwise tour

test: $(VENV)/dev.stamp build/deepspeed/stamp build/jax_alone/stamp  ## Run the tests and every example in the docs (10 minutes)
	@$(PYTHON) -m tools.chromium
	@$(BIN)/python -m tools.tests

quick: $(VENV)/dev.stamp  ## Run the tests that take little time, between two edits (2 minutes)
	@$(BIN)/python -m tools.tests --quick

# Without $(VENV): on machines with a GPU, torch usually comes with the machine, and there may be no network.
gpu:  ## Run the tests and benchmarks that need a GPU, with the torch of PYTHON=
	@$(PYTHON) -m tools.gpu

# Each sweep draws another random sample, and records its result in docs/sweeps.json; SEED= repeats one.
long: $(VENV)/dev.stamp  ## Run the tests that have a longer version, at full length (minutes)
	@$(BIN)/python -m tools.long_tests $(SEEDED)

faults: $(VENV)/dev.stamp  ## Test saves against kills, full disks, flipped bits and crashes (minutes)
	@$(BIN)/python -m tools.long_tests faults $(SEEDED)

fuzz: $(VENV)/dev.stamp  ## Read damaged files of every format, with the C code sanitized (minutes)
	@$(BIN)/python -m tools.fuzz $(SEEDED)

costly: $(VENV)/dev.stamp  ## Search for small files that cost much memory or time (an hour)
	@$(BIN)/python -m tools.fuzz_costly $(SEEDED)

ranks: $(VENV)/dev.stamp  ## Kill, stop and delay ranks while they load or save together (minutes)
	@$(BIN)/python -m tools.rank_faults --most 30 $(SEEDED)

check: $(VENV)/dev.stamp  ## Check lint, words, formatting, types, the page's build, and the site's links
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m tools.plain_english
	@$(BIN)/clang-format --dry-run -Werror src/leafwise/kernels/c/*.[ch] tools/*.c
	@$(BIN)/mypy
	@$(BIN)/mypy tests/typed_examples.py
	@$(BIN)/python -m tools.page_build
	@$(MAKE) --no-print-directory docs

# Strict: a link or an anchor that leads nowhere, or a page that is not in the navigation, is an error. (With --quiet, it is not.)
docs: $(VENV)/dev.stamp  ## Build the documentation site into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

messages: $(VENV)/dev.stamp  ## Run the tests, and print every message they raise, to read
	@mkdir -p build && { $(BIN)/python -m pytest -q > build/messages.log || tail build/messages.log; } && cat build/messages.txt

format: $(VENV)/dev.stamp  ## Format the code, and fix lint where possible
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i src/leafwise/kernels/c/*.[ch] tools/*.c

bench: $(VENV)/dev.stamp build/jax_alone/stamp  ## Run every benchmark against its peers, and print one table
	@PYTHONPATH="$(WITH_JAX)" $(BIN)/python benchmarks/run.py

variants: $(VENV)/dev.stamp  ## Test docs and numbers with older CPU features, one thread, the C locale
	@$(BIN)/python -m tools.matrix --short

matrix: $(VENV)/dev.stamp  ## Run the tests as on other machines (hours)
	@$(BIN)/python -m tools.matrix

sweep: metaloads renames saved timmrules optimizers ties  ## Run the next six targets (an hour or two)

metaloads: $(VENV)/dev.stamp  ## Load every architecture of transformers into a meta model
	@$(BIN)/python -m tools.meta_loads $(SEEDED)

renames: $(VENV)/dev.stamp  ## Match the stored names of every architecture of transformers
	@$(BIN)/python -m tools.auto_renames $(SEEDED)

saved: $(VENV)/dev.stamp  ## Load every architecture of transformers as it saves it
	@$(BIN)/python -m tools.saved_transformers $(SEEDED)

timmrules: $(VENV)/dev.stamp  ## Compare layer_decay and no_decay with timm's rules (minutes)
	@$(BIN)/python -m tools.timm_rules

optimizers: $(VENV)/dev.stamp  ## Resume runs with every optimizer of torch, timm, pytorch_optimizer
	@$(BIN)/python -m tools.optimizers $(SEEDED)

groups: $(VENV)/dev.stamp  ## Load optimizer state into other groups, orders and kinds (minutes)
	@$(BIN)/python -m tools.optimizer_groups $(SEEDED)

optax: $(VENV)/dev.stamp build/jax_alone/stamp  ## Exchange states of optax with Orbax in both directions (minutes)
	@PYTHONPATH=src:. build/jax_alone/bin/python -m tools.optax_orbax $(SEEDED)

pickles: $(VENV)/dev.stamp  ## Read random pickles, and compare objects that differ (minutes)
	@$(BIN)/python -m tools.random_pickles $(SEEDED)
	@$(BIN)/python -m tools.random_pairs $(SEEDED)

payloads: $(VENV)/dev.stamp  ## Check files that run code when they are loaded, and harmless ones (minutes)
	@$(BIN)/python -m tools.scan_corpus $(SEEDED)

scanners: $(VENV)/dev.stamp build/scanners/stamp  ## Compare check with other scanners on files that run code (half an hour)
	@$(BIN)/python -m tools.compare_scanners $(SEEDED)

pairs: $(VENV)/dev.stamp build/jax_alone/stamp  ## Carry weights between random pairs of PyTorch and JAX models (minutes)
	@PYTHONPATH="$(WITH_JAX)" $(BIN)/python -m tools.framework_pairs $(SEEDED)

ties: $(VENV)/dev.stamp  ## Check that ties of transformers' models survive (minutes)
	@$(BIN)/python -m tools.tied_transformers $(SEEDED)

alarms: $(VENV)/dev.stamp  ## Count false alarms of check, and the planted faults it finds (minutes)
	@$(BIN)/python -m tools.alarms $(SEEDED)

mutants: $(VENV)/dev.stamp  ## Change the code in silent ways, and check that tests notice (minutes)
	@$(BIN)/python -m tools.mutants

kinds: build/kinds/stamp  ## Open 36 kinds of checkpoints, written by the tools that people use (minutes)
	@PYTHONPATH=src build/kinds/bin/python -m tools.checkpoint_kinds $(SEEDED)

pictures: $(VENV)/dev.stamp  ## Draw the pictures of the docs again; needs Chromium
	@$(BIN)/python tools/docs_pictures.py
	@LEAFWISE_PICTURES=1 $(BIN)/python -m pytest -q tests/web/test_views.py -k pictures

# Its build is committed, so that users need no Node; `make check` compares it. The lock file pins the packages; `npm ci` would refuse it,
# because it names only those for Linux.
page:  ## Build the page of the viewer from page/; needs Node 20.19
	@cd page && npm install --silent --no-save --ignore-scripts && npm run --silent build

wheel: $(VENV)/dev.stamp  ## Build sdists and wheels, and check the wheel of leafwise in an empty environment
	@rm -rf dist build/wheel && for package in . packages/leafwise-gluon; do $(BIN)/python -m build --outdir dist $$package > /dev/null; done
	@$(PYTHON) -m venv build/wheel
	@build/wheel/bin/python -m pip --disable-pip-version-check --quiet install dist/leafwise-*.whl
	@$(BIN)/python tools/prove_wheel.py build/wheel/bin
	@ls dist

clean:  ## Remove everything that was built, including the environment
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache

# constraints.txt pins the versions, so that installing the package does not upgrade torch.
$(VENV)/run.stamp: pyproject.toml setup.py constraints.txt $(wildcard src/leafwise/kernels/c/*.[ch])
	@test -d $(VENV) || { echo "Setting up $(VENV) (once) ..."; $(PYTHON) -m venv $(VENV); }
	@$(PIP) install --constraint constraints.txt --editable '.[torch,web]'
	@touch $@

# timm is installed without its dependencies: torchvision has no build for this torch, and breaks importing transformers.
$(VENV)/dev.stamp: $(VENV)/run.stamp packages/leafwise-gluon/pyproject.toml
	@$(PIP) install --upgrade 'pip>=25.1'
	@$(PIP) install --constraint constraints.txt --group dev --group ecosystem
	@$(PIP) install --constraint constraints.txt --no-deps timm
	@$(PIP) install --constraint constraints.txt --editable packages/leafwise-gluon
	@touch $@

# DeepSpeed is in an environment of its own, which also sees the packages of $(VENV): other libraries behave differently where it is
# installed. It comes without what it asks for, and compiles nothing.
DEEPSPEED_PIP := build/deepspeed/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt
build/deepspeed/stamp: $(VENV)/dev.stamp
	@rm -rf build/deepspeed && $(BIN)/python -m venv build/deepspeed
	@readlink -f $(VENV)/lib/python*/site-packages > build/dev.pth && mv build/dev.pth build/deepspeed/lib/python*/site-packages
	@$(DEEPSPEED_PIP) einops hjson msgpack ninja py-cpuinfo 'setuptools<80' wheel
	@DS_BUILD_OPS=0 $(DEEPSPEED_PIP) --no-deps --no-build-isolation deepspeed==0.19.8
	@touch $@

# JAX is in an environment of its own, without PyTorch: each must work without the other. The tests that carry weights between them run
# in $(VENV), which then sees the packages of this environment, too.
JAX_PIP := build/jax_alone/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt
build/jax_alone/stamp: $(VENV)/dev.stamp
	@rm -rf build/jax_alone && $(BIN)/python -m venv build/jax_alone
	@$(JAX_PIP) equinox==0.13.8 flax==0.12.8 hypothesis jax==0.10.2 ml_dtypes optax==0.2.8 orbax-checkpoint==0.12.8 pandas \
		pytest pytest-xdist safetensors tensorstore==0.1.86 xxhash
	@touch $@

# The tools whose checkpoints `make kinds` opens are in an environment of their own, which also sees the packages of $(VENV). They are
# installed without what they ask for, which includes other versions of torch; the first list has what they import.
KINDS_PIP := build/kinds/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt
build/kinds/stamp: $(VENV)/dev.stamp
	@rm -rf build/kinds && $(BIN)/python -m venv build/kinds
	@readlink -f $(VENV)/lib/python*/site-packages > build/dev.pth && mv build/dev.pth build/kinds/lib/python*/site-packages
	@$(KINDS_PIP) addict einops hjson matplotlib msgpack ninja opencv-python-headless py-cpuinfo 'setuptools<80' termcolor wheel yapf
	@MMCV_WITH_OPS=0 DS_BUILD_OPS=0 $(KINDS_PIP) --no-deps --no-build-isolation deepspeed==0.19.8 mmcv==1.7.2 \
		mmengine==0.10.7 ultralytics==8.4.190 ultralytics-thop
	@touch $@

# The scanners that `make scanners` compares are in an environment of their own, without what they ask for to read URLs and other formats,
# and without torch, where modelaudit would read its source, for many seconds for a file. modelscan reads .npy with an older NumPy only.
SCANNERS_PIP := build/scanners/bin/python -m pip --disable-pip-version-check --quiet install
build/scanners/stamp: $(VENV)/dev.stamp
	@rm -rf build/scanners && $(PYTHON) -m venv build/scanners
	@$(SCANNERS_PIP) --constraint constraints.txt click cyclonedx-python-lib defusedxml fsspec huggingface_hub msgpack numpy platformdirs \
		protobuf pydantic python-dotenv pyyaml requests scipy 'tomlkit<0.14' yaspin
	@$(SCANNERS_PIP) --no-deps fickling==0.1.12 modelaudit==0.2.54 modelaudit-picklescan==0.1.12 modelscan==0.8.8 picklescan==1.0.5
	@$(SCANNERS_PIP) --target build/scanners/older_numpy numpy==2.2.6 2> /dev/null
	@touch $@
