# `make train` and `make test` start from a bare clone: they need make and a Python 3.11, 3.12 or 3.13 with venv.

VENV ?= .venv
BIN := $(VENV)/bin
SUITES_VENV ?= .venv-suites
# Processes that pytest runs in; `make test WORKERS=0` runs in one, for a debugger.
WORKERS ?= auto

# A name on the path can be a shim that does not run, or a Python that cannot make environments: the first that can.
CAN_USE := -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
ifndef PYTHON
PYTHON := $(shell for python in python3.11 python3.12 python3.13 python3; do \
	$$python $(CAN_USE) 2>/dev/null && break; done; echo $$python)
endif

.PHONY: train test thorough suites lint types wheel docs pythons clean
.DELETE_ON_ERROR:

train: $(VENV)/.installed
	$(BIN)/rollax train ppo_cartpole --seeds 8

# Compiling is most of the quick tests: it takes half as long without optimisation, and two thirds of that without XLA's
# newer way of fusing loops (left out where XLA has no such switch). The agents of the learning tests run for long enough
# to want optimised code.
QUICKLY = XLA_FLAGS="$(XLA_FLAGS) --xla_backend_optimization_level=0 $$(XLA_FLAGS=$(NO_EMITTERS) JAX_PLATFORMS=cpu \
	$(BIN)/python -c 'import jax; jax.devices()' 2>/dev/null && echo $(NO_EMITTERS))"
NO_EMITTERS := --xla_cpu_use_fusion_emitters=false

test: lint types
	$(QUICKLY) $(BIN)/pytest -n $(WORKERS) --dist worksteal -m quick
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "learning and not thorough and not suite"

# The other variants of what those tests have one of, and what takes minutes.
thorough: $(VENV)/.installed-test
	$(QUICKLY) $(BIN)/pytest -n $(WORKERS) --dist worksteal -m "thorough and not learning and not suite"
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "thorough and learning and not suite"

# The adapters and their pictures with every environment suite installed, in an environment of its own: some 3 GB.
suites: $(SUITES_VENV)/.installed-suites
	XLA_FLAGS="$(XLA_FLAGS) --xla_backend_optimization_level=0" \
	$(SUITES_VENV)/bin/pytest -n $(WORKERS) --dist worksteal tests/envs/test_adapters.py tests/envs/test_drawing.py

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Checkers do not follow the mapping of folders that an editable install is, so types are checked on the wheel, installed
# in an environment that sees the dependencies of the main one (but not its editable install: nested .pth files are not
# read).
types: wheel
	rm -rf build/types
	$(BIN)/python -m venv --without-pip build/types
	site=$$(build/types/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	$(BIN)/python -m pip install --quiet --no-deps --no-index --target "$$site" dist/*.whl && \
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$site/dependencies.pth"
	$(BIN)/mypy --python-executable build/types/bin/python -p rollax

# setuptools never empties build/, and would pack the modules that have since been deleted or moved.
wheel: $(VENV)/.installed-test
	rm -rf build dist
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

# The site of docs/ with the reference, in build/site; what reads docstrings cannot follow an editable mapping either.
docs: wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(BIN)/python -m pip install --quiet --no-deps --no-index --target build/docs dist/*.whl
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The wheel on the other Pythons that this machine has, on the path or in pyenv: it installs, its types hold, and it takes
# a training step. Their JAX is another one too.
pythons: wheel
	@for version in 3.12 3.13; do \
	for python in python$$version $$(pyenv root 2>/dev/null)/versions/$$version*/bin/python; do \
	$$python $(CAN_USE) 2>/dev/null || continue; \
	echo "the wheel on $$($$python --version)"; \
	$$python -m venv --clear build/$$version && \
	build/$$version/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl && \
	$(BIN)/mypy --python-executable build/$$version/bin/python -p rollax && \
	build/$$version/bin/rollax train ppo_cartpole --quiet --out build/$$version/run \
	--set train.total_env_steps=512 evaluation.episodes=4 || exit 1; \
	break; \
	done; done

clean:
	rm -rf $(VENV) $(SUITES_VENV) .cache build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Stamps, written last, so that an interrupted install is done again.
$(VENV)/.created $(SUITES_VENV)/.created:
	@$(PYTHON) $(CAN_USE) 2>/dev/null || { \
	echo "Rollax needs Python 3.11, 3.12 or 3.13 with its venv module, and '$(PYTHON)' is not one: set PYTHON=..." >&2; \
	exit 1; }
	$(PYTHON) -m venv --clear $(@D)
	touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.created
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.installed-test: pyproject.toml | $(VENV)/.created
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $(VENV)/.installed $@

$(SUITES_VENV)/.installed-suites: pyproject.toml | $(SUITES_VENV)/.created
	$(SUITES_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test,envs]'
	touch $@
