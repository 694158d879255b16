# Two commands from a clean clone: `make run` and `make test`. Everything else helps with development.
# Works with any POSIX make and sh; needs Python 3.11 or newer.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# Twice the cores of a small machine: many tests wait for real time to pass. `tests/support/turns.py` says which of them do what, and
# in what order.
WORKERS ?= 4

# One torch thread per job: two beside other busy processes are slower than one (docs/decisions/0002-pins.md).
export OMP_NUM_THREADS ?= 1
# ultralytics: stay quiet, local and off the network.
export YOLO_OFFLINE = 1
export YOLO_AUTOINSTALL = 0
export YOLO_VERBOSE = 0

.PHONY: run fleet-demo install uninstall test check format docs install-env clean help

help:
	@echo "make run       start the box on the built-in demo and print the address of its status page"
	@echo "make fleet-demo  a controller, three boxes and Ray on this machine: shares, a migration, a takeover, a pooled training"
	@echo "make install   install the box as a service of this machine, or upgrade it (sudo); make uninstall takes it away"
	@echo "make test      check and run all tests that need no special hardware"
	@echo "make check     lint, formatting, types, import arrows"
	@echo "make format    put the code into its format"
	@echo "make docs      write docs/configuration.md from the schema"
	@echo "make clean     remove the environment and all caches"

run: $(STAMP)
	@$(VENV)/bin/driftbox run

fleet-demo: $(STAMP)
	@$(PY) scripts/fleet_demo.py

install:
	@PYTHON="$(PYTHON)" sh scripts/service.sh install

uninstall:
	@sh scripts/service.sh uninstall

test: check
	$(PY) scripts/run_tests.py -n $(WORKERS) --dist loadfile --no-loadscope-reorder

check: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: $(STAMP)
	$(PY) -m configs.describe docs/configuration.md

install-env: $(STAMP)

$(STAMP): pyproject.toml scripts/install_env.sh
	@PYTHON="$(PYTHON)" sh scripts/install_env.sh $(VENV)
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info
