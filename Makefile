# `make demo` and `make test` set up all they need inside this checkout; a second call starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# program:Debian package
SYSTEM := strace:strace tmux:tmux slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client munged:munge chromium:chromium
PYTEST := $(BIN)/pytest -n 2 --dist worksteal

.PHONY: demo test test-full test-long coverage check format docs docs-json pictures bench same-bits size system setup clean
.DEFAULT_GOAL := test

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("tasuki needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --no-cache-dir --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/tasuki demo .work/demo

# The real parts that tests use. Root on Debian or Ubuntu; elsewhere the tests that need them skip.
system:
	@PATH="$$PATH:/usr/sbin:/sbin"; missing=""; \
	for p in $(SYSTEM); do command -v $${p%%:*} >/dev/null || missing="$$missing $${p#*:}"; done; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	  echo "missing:$$missing (the tests that need them skip; install them by hand)"; \
	else apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; fi

check: $(READY)
	$(BIN)/ruff check src tests bench examples tools
	$(BIN)/ruff format --check src tests bench examples tools
	$(BIN)/mypy
	$(BIN)/lint-imports

test: system $(READY)
	$(PYTEST) -m "not long"

test-full: system $(READY)
	$(PYTEST)

# What `make test` leaves out.
test-long: system $(READY)
	$(PYTEST) -m long

# Which lines of each package the quick tests run, child processes included.
coverage: system $(READY)
	@rm -rf .work/coverage && mkdir -p .work/coverage
	-COVERAGE_FILE=$(CURDIR)/.work/coverage/data $(BIN)/coverage run -m pytest -q -n 2 --dist worksteal -m "not long"
	@$(BIN)/python tools/coverage_table.py .work/coverage

# Pages made from code, then the site in .work/site; a broken link or a missing page is an error.
docs: $(READY)
	$(BIN)/python -m tools.docs

# What the JSON of every verb looks like, recorded anew from real runs: some minutes, Slurm included.
docs-json: system $(READY)
	$(BIN)/python -m tools.docs.record
	$(BIN)/python -m tools.docs

# The README's pictures, from a real demo in a real terminal and browser: two minutes.
pictures: system $(READY)
	$(BIN)/python -m tools.docs.pictures

bench: $(READY)
	@test -n "$(NAME)" || { echo "usage: make bench NAME=… [SMOKE=1]  with one of: $$(ls bench/*.py | xargs -n1 basename | grep -v '^_' | sed 's/.py//' | tr '\n' ' ')"; exit 2; }
	$(BIN)/python bench/$(NAME).py $(if $(SMOKE),--smoke)

# Lines and modules per package.
size:
	@$(PYTHON) tools/size.py

# Train the examples with the revision BASE and with the working tree, and compare weights and metrics.
same-bits: $(READY)
	@test -n "$(BASE)" || { echo "usage: make same-bits BASE=…  with a git revision; CASES=\"…\" runs only these of examples/cases.toml"; exit 2; }
	@$(BIN)/python tools/same_bits.py $(BASE) $(if $(CASES),--cases $(CASES))

format: $(READY)
	$(BIN)/ruff check --fix src tests bench examples tools
	$(BIN)/ruff format src tests bench examples tools

clean:
	rm -rf $(VENV) .work bench/results
