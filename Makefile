# make run: see what replay does on the Blind Cliffwalk, then compare methods on CartPole.
# make test: run the tests.
# make lint: style and types.  make check: lint and the quickest tests of everything.
# make bench: time the replay beside peers.
# All set up .venv first; they need Python 3.11 or newer and nothing else.

VENV := .venv
BIN := $(VENV)/bin
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11 python
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
OUT ?= runs/quickstart
BENCH_OUT ?= runs/benchmark

PYTEST := JAX_PLATFORMS=cpu $(BIN)/python -m pytest
PARALLEL := -n auto --maxprocesses 4 --dist worksteal

.PHONY: run test test-slow lint check bench notebooks clean

# Random behaviour and few replays of each transition: what is learned depends on what is replayed.
WALK := --agent dqn --env walk/10 --seeds 16 --steps 40_000 --learn-every 16 --n-step 1 \
	--batch-size 32 --agent.hidden 32 --agent.epsilon-start 1 --agent.epsilon-end 1 \
	--eval-every 1_000 --eval-episodes 1 --primary steps_to_threshold

run: $(VENV)/ready
	$(BIN)/python -m experiments.compare $(WALK) --replays uniform per rank lap pser \
		--out $(OUT)/walk --overwrite
	$(BIN)/python -m experiments.compare --agent dqn --replays uniform per lap \
		--env gymnax/CartPole-v1 --seeds 5 --control false --out $(OUT)/cartpole --overwrite

test: $(VENV)/ready
	$(PYTEST) $(PARALLEL)

test-slow: $(VENV)/ready
	$(PYTEST) -m slow

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

# Of everything, what is quick: rooms, core, one law suite of an outside method, agents, commands.
CHECKED := tests/test_rooms.py tests/jaxreplay/internal tests/jaxreplay/methods/parts \
	tests/jaxreplay/test_option.py tests/jaxreplay/test_donation.py \
	tests/jaxreplay/test_requirements.py tests/jaxreplay/test_returns.py \
	tests/jaxreplay/methods/test_windows.py tests/jaxreplay/methods/test_ere.py \
	tests/contract/test_configs.py tests/contract/test_outside.py \
	tests/agents/test_dqn.py tests/agents/test_munchausen.py tests/agents/test_gaussian.py \
	tests/experiments/cli tests/experiments/analysis tests/experiments/runs/test_checkpoint.py \
	tests/experiments/runs/test_registry.py tests/experiments/environments \
	tests/experiments/training/test_evaluation.py tests/experiments/papers/test_cliffwalk_theory.py \
	tests/experiments/benchmarks/test_commits.py

check: lint
	$(PYTEST) $(PARALLEL) $(CHECKED)

bench: $(VENV)/bench
	$(BIN)/python -m experiments.benchmarks.replay --capacities 10_000 1_048_576 --batch-sizes 256 \
		--out $(BENCH_OUT)/replay.json --figure $(BENCH_OUT)/replay.png

# Execute the notebooks and keep their outputs.
notebooks: $(VENV)/ready
	JAX_PLATFORMS=cpu $(BIN)/jupyter execute --inplace notebooks/*.ipynb

$(VENV)/ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found: install one, or say make PYTHON=/path/to/python" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint,gymnasium,mujoco,box2d,atari,papers,minari]'
	@touch $@

$(VENV)/bench: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .hypothesis .jax_cache .ruff_cache
