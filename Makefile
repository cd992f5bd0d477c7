# dreamgym: set up, try, test. `make help` lists the targets.

PYTHON ?= python3
BUDGET ?= default
EXTRAS ?=
PROFILE ?= explore
BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help .venv quickstart test test-all check format bench

help:  ## this list
	@grep -hE '^[a-z.-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 14
	@echo "Variables: PYTHON=$(PYTHON)  BUDGET=$(BUDGET) (small, default, full or gpu)  EXTRAS=$(EXTRAS) (for test-all; all when empty)  PROFILE=$(PROFILE) (of hypothesis in test-all: explore or same)"

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

quickstart: $(INSTALLED)  ## the whole method on this machine; BUDGET=small for a minute's taste
	$(BIN)/dreamgym quickstart --budget $(BUDGET)

test: $(INSTALLED)  ## the fast tests: no network, no GPU
	$(BIN)/python -m pytest

# One by one, so that an extra that does not install here costs its own tests only. `dev` is there; `bench` is for `make bench`; verl pins an
# older transformers and wants an environment of its own.
test-all: $(INSTALLED)  ## install every extra that installs here and run all tests, the slow ones too (compiles for minutes)
	@for tool in g++ make cmake; do \
		command -v $$tool >/dev/null || echo "test-all: no $$tool here, and the extra 'alfworld' compiles with it. On Debian or Ubuntu: sudo apt install $$tool" >&2; \
	done
	@extras="$(EXTRAS)"; test -n "$$extras" || extras=$$($(BIN)/python -c "import tomllib; print(*sorted(set(tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']) - {'dev', 'bench', 'verl'}))"); \
	for extra in $$extras; do \
		$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[$$extra]" || echo "test-all: the extra '$$extra' does not install here (see above); its tests are skipped" >&2; \
	done
	$(BIN)/python -m pytest -m "" -rs --hypothesis-profile=$(PROFILE)

check: $(INSTALLED)  ## all that a reviewer would ask: format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

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
		case $$program in */_*|*/'*'.py) continue;; esac; \
		echo "== $$program"; $(BIN)/python $$program --json; \
	done
