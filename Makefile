# make run: compare five replay methods with uniform replay on the Blind Cliffwalk.
# make test: run the tests.
# make test-compiled: programs for a GPU and a TPU. make test-device: on a GPU or TPU.
# make lint: style and types.  make check: lint and the quickest tests of everything.
# make bench: time the replay beside flashbax.  make docs: build the site.
# make dist: build the library's wheel and source distribution.
# make setup: install everything into .venv. Every target installs the packages it needs first;
# that takes Python 3.11 or newer and nothing else.
#
# ACCELERATOR=cuda12, cuda13 or tpu, with any target, installs jax for it and is remembered;
# ACCELERATOR=cpu goes back. Tests run on the CPU in any case.

VENV := .venv
BIN := $(VENV)/bin
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11 python
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
OUT ?= runs/walk
BENCH_OUT ?= runs/benchmark
DOCS_OUT ?= build/docs

COMMA := ,
ACCELERATORS := cpu cuda12 cuda13 tpu
INSTALLED := $(shell cat $(VENV)/accelerator 2>/dev/null)
ACCELERATOR ?= $(or $(INSTALLED),cpu)
ifneq ($(words $(filter $(ACCELERATORS),$(ACCELERATOR))),1)
$(error ACCELERATOR is '$(ACCELERATOR)': use one of $(ACCELERATORS))
endif

# `make run` needs EXTRAS, every other target ALL.
EXTRAS := codebase
ALL := $(EXTRAS),test,lint,docs,gymnax,brax,xminigrid,gymnasium,mujoco,box2d,atari,papers,cluster,minari,search
PLUGINS_cuda12 := jax-cuda12-plugin jax-cuda12-pjrt
PLUGINS_cuda13 := jax-cuda13-plugin jax-cuda13-pjrt
PLUGINS_tpu := libtpu
# jax takes any plugin that it finds: those of other accelerators have to go.
OTHERS := $(foreach other,$(filter-out $(ACCELERATOR),$(ACCELERATORS)),$(PLUGINS_$(other)))

PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
LOG := $(VENV)/pip.log
define INSTALL
$(PIP) install -c constraints.txt -e '.[$(1)$(if $(PLUGINS_$(ACCELERATOR)),$(COMMA)$(ACCELERATOR))]' 2>$(LOG) || { \
	if grep -q 'No space left' $(LOG) || ! test -s $(LOG); then why="the disk is full: free 3 GB"; \
	elif grep -qi 'connection' $(LOG); then why="the package index cannot be reached: check the network"; \
	else why="pip could not install the packages: read $(LOG)"; fi; \
	echo "error: $$why, then run make again" >&2; exit 1; }
endef
PYTEST := JAX_PLATFORMS=cpu $(BIN)/python -m pytest
PARALLEL := -n auto --maxprocesses 4 --dist worksteal

.PHONY: setup run test test-slow test-compiled test-device wheels lint check bench dist docs notebooks clean changed

setup: $(VENV)/ready
	@echo "$(VENV) is ready, with jax for $(ACCELERATOR)"

# Random behaviour and few replays of each transition: learning depends on what is replayed.
SEED ?= 0
WALK := --agent dqn --env walk/10 --seeds 128 --steps 40_000 --learn-every 16 --n-step 1 \
	--batch-size 32 --agent.hidden 32 --agent.epsilon-start 1 --agent.epsilon-end 1 \
	--eval-every 1_000 --eval-episodes 1 --primary steps_to_threshold \
	--replays uniform per rank lap pser

run: $(VENV)/installed
	@echo "training DQN with five replay methods on the Blind Cliffwalk, 128 seeds each: up to four minutes"
	@$(BIN)/python -m experiments.compare $(WALK) --seed $(SEED) \
		--figures false --report false --out $(OUT) --overwrite

test: $(VENV)/ready
	@echo "running the tests: about twenty minutes, less the second time"
	@$(PYTEST) $(PARALLEL)

test-slow: $(VENV)/ready
	@echo "running the slow tests, one after the other"
	@$(PYTEST) -m slow

# XLA's compilers have an environment of their own, above that of the other targets: elsewhere JAX
# would try to use them.
COMPILERS := $(VENV)/compilers
COMPILED := $(COMPILERS)/bin/python
test-compiled: $(COMPILERS)/ready
	@echo "compiling replays for an H100 and a TPU v5e$(if $(QUICK),, of every method)"
	@XLA_FLAGS= JAX_PLATFORMS=cpu $(COMPILED) -m pytest $(PARALLEL) tests/compiled $(if $(QUICK),,-m '')

# On a machine with a GPU or TPU, in its own environment of Python: PYTHON=python3.
DEVICE_TESTS := tests/contract/test_samplers.py tests/contract/test_agent_replay.py
test-device:
	@echo "running the contract suites on the default device"
	@XLA_FLAGS= XLA_PYTHON_CLIENT_PREALLOCATE=false $(PYTHON) -m pytest $(DEVICE_TESTS)

# make wheels: what a machine without network lacks beside its own jax: wheels for Python TARGET on Linux.
WHEELS ?= wheels
TARGET ?= 3.12
OFFLINE := codebase,test,gymnax,brax,bench
PLATFORMS := $(foreach version,39 35 34 31 28 27 24 17 5 1,manylinux_2_$(version)_x86_64)
wheels: $(VENV)/ready
	@echo "downloading wheels for Python $(TARGET) into $(WHEELS)"
	@mkdir -p $(WHEELS)
	@sed -n 's/ ; python_version >= .*//; / ; python_version </!p' constraints.txt >$(VENV)/newest.txt
	@$(PIP) download -d $(WHEELS) -c $(VENV)/newest.txt --only-binary :all: \
		--python-version $(TARGET) $(addprefix --platform ,$(PLATFORMS)) '.[$(OFFLINE)]'
	@echo "there: pip install --no-index --find-links $(WHEELS) 'setuptools>=77', then"
	@echo "pip install --no-index --find-links $(WHEELS) --no-build-isolation -e '.[$(OFFLINE)]'"

$(COMPILERS)/ready: $(VENV)/ready
	@echo "installing XLA's compilers for an H100 and a TPU v5e (1.2 GB) into $(COMPILERS)"
	@$(BIN)/python -m venv --without-pip --clear $(COMPILERS)
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		>$$($(COMPILED) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth
	@$(PIP) --python $(COMPILED) install -c constraints.txt -e '.[compile-gpu,compile-tpu]'
	@touch $@

lint: $(VENV)/ready
	@echo "checking style and types"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/basedpyright

# The quick tests: imports, core, the contract checks of an outside method, agents, commands.
CHECKED := tests/test_layers.py tests/jaxreplay/internal tests/jaxreplay/methods/parts \
	tests/jaxreplay/test_option.py tests/jaxreplay/test_loops.py \
	tests/jaxreplay/test_requirements.py tests/jaxreplay/test_returns.py \
	tests/jaxreplay/methods/test_windows.py tests/jaxreplay/methods/test_ere.py \
	tests/contract/test_configs.py tests/contract/test_outside.py \
	tests/agents/test_dqn.py tests/agents/test_gaussian.py \
	tests/experiments/cli tests/experiments/files tests/experiments/statistics tests/experiments/figures \
	tests/experiments/runs/test_registry.py tests/experiments/environments \
	tests/experiments/training/test_config.py tests/experiments/papers/test_cliffwalk_theory.py \
	tests/experiments/benchmarks/test_timing.py tests/test_distributions.py

check: lint
	@echo "running the quickest tests of everything: a minute or two"
	@$(PYTEST) $(PARALLEL) $(CHECKED)

bench: $(VENV)/bench
	@echo "timing the replay beside flashbax, into $(BENCH_OUT)"
	@$(BIN)/python -m experiments.benchmarks.replay --out $(BENCH_OUT)/replay.json \
		--contenders per flashbax uniform flashbax-uniform \
		--orders add-sample-update sample-update-add --turns 9

# The wheel is built from the source distribution, so that both are complete.
dist: $(VENV)/ready
	@echo "building wheel and source distribution, into dist"
	@$(BIN)/python -m build --no-isolation --outdir dist . >$(VENV)/build.log 2>&1 \
		|| { cat $(VENV)/build.log >&2; exit 1; }
	@ls dist

docs: $(VENV)/ready
	@echo "building the pages"
	@JAX_PLATFORMS=cpu $(BIN)/python -m sphinx -q -W --keep-going docs $(DOCS_OUT)
	@echo "pages: $(DOCS_OUT)/index.html"

# Execute the notebooks and keep their outputs; ONLY="08 10": those whose names begin so.
notebooks: $(VENV)/ready
	@echo "executing $(if $(ONLY),notebooks $(ONLY),all notebooks: about five minutes)"
	@JAX_PLATFORMS=cpu $(BIN)/python -m notebooks.execute $(ONLY)

# Another accelerator than the installed one installs again.
$(VENV)/installed: pyproject.toml constraints.txt $(if $(filter $(INSTALLED),$(ACCELERATOR)),,changed)
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found: install one, or use make PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is older than Python 3.11: use make PYTHON=/path/to/python" >&2; exit 2; }
	@echo "installing jax for $(ACCELERATOR) and the commands into $(VENV): a minute the first time$(if $(filter cuda%,$(ACCELERATOR)),$(COMMA) more for gigabytes of CUDA)"
	@rm -f $@
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) uninstall --yes $(OTHERS)
	@$(call INSTALL,$(EXTRAS))
	@echo $(ACCELERATOR) >$(VENV)/accelerator
	@touch $@

$(VENV)/ready: $(VENV)/installed
	@echo "installing tests, environments and documentation tools into $(VENV): a minute the first time"
	@$(call INSTALL,$(ALL))
	@touch $@

$(VENV)/bench: $(VENV)/ready
	@echo "adding the peers to $(VENV)"
	@$(PIP) install -c constraints.txt -e '.[bench]'
	@touch $@

clean:
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .jax_cache .ruff_cache
	@echo "removed $(VENV), builds and caches; runs/ stays"
