# make demo    extend SmolLM2-135M from 8k to 16k tokens: loss by position and hidden passkeys, before and after
# make test    the default test suite (CPU only)
# make versions    make test with the oldest versions that pyproject.toml allows, then with the newest: 14 GB of packages in
#              .venv/oldest and .venv/newest, and an hour; VERSIONS=newest does one of them
# make check   format, lint, types, which room imports which
# make faults  every fault campaign in full (an hour or more; killed, it goes on): docs/results/faults.md
# make scale   losses and gradients of every layout of processes against one process, in full: docs/results/scale.md
# make engines what other engines compute of exported folders, against the table (an hour; 2 GB at a time): docs/results/export_readers.md
# make results the page of all results from what is stored: docs/results/README.md
# make docs    the book of docs/ as a site, in build/site; a folder of its own holds what that needs, .venv/docs
# make compile-kernels    compile the Triton kernels without a GPU; TRITON=3.6.0 does it with another version of Triton
# make help    these lines
# make setup   what the others do first: .venv with the pinned packages and this package; skipped when it is there
# make clean   remove caches and build leftovers; `make distclean` removes .venv as well
#
# PYTHON=python3.12 chooses another interpreter for .venv; ARGS="--max_steps 5" passes arguments on to the demo or pytest,
# WORKERS=8 runs that many tests side by side.

PYTHON ?= python3
ARGS ?=
WORKERS ?= 3
BIN := $(CURDIR)/.venv/bin
REQUIREMENTS := requirements.txt requirements-demo.txt
# Set-up is done once for each content of these files, whatever their dates (a checkout rewrites dates).
STAMP := .venv/.ready-$(shell cat $(REQUIREMENTS) pyproject.toml | cksum | tr ' ' '-')
SCRIPTS := launchers tools evaluation benchmarks
CODE := $(patsubst %/,%,$(sort $(dir $(wildcard tape_ds/__init__.py $(addsuffix /*.py,$(SCRIPTS))))))
PIP = $(BIN)/python -m pip install --disable-pip-version-check
# The kernels are compiled with the Triton of requirements.txt and with others, each in a folder of its own. There is no
# Triton but on Linux.
PINNED_TRITON := $(shell sed -n 's/^triton==\([0-9.]*\).*/\1/p' requirements.txt)
NEWEST_TRITON := $(firstword $(shell sed -n 's/^triton==//p' requirements-triton.txt))
TRITON ?= $(PINNED_TRITON)
triton = $(patsubst %,$(CURDIR)/.venv/triton-%,$(filter-out $(PINNED_TRITON),$(1)))
on_linux = $(if $(filter Linux,$(shell uname -s)),$(1))

export TOKENIZERS_PARALLELISM := false
export ARGS
# A suite starts hundreds of processes: none of them should compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test versions check faults scale engines compile-kernels results docs format setup clean distclean

help:
	@sed '/^$$/q; s/^# \{0,1\}//' Makefile

# Two processes where there is no GPU, else one for each GPU: as many as divide the demo's batch of 8. A free port lets two
# demos share a machine.
demo: $(STAMP)
	@gpus=$$($(BIN)/python -c 'import torch; print(torch.cuda.device_count())') || exit 1; \
	port=$$($(BIN)/python -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])') || exit 1; \
	case "$$gpus" in \
	    0) export DS_ACCELERATOR=cpu; processes="--num_accelerators 2" ;; \
	    1|2|4|8) processes="" ;; \
	    3) processes="--num_accelerators 2" ;; \
	    5|6|7) processes="--num_accelerators 4" ;; \
	    *) processes="--num_accelerators 8" ;; \
	esac; \
	PATH="$(BIN):$$PATH" $(BIN)/python -m deepspeed.launcher.runner $$processes --master_port $$port --log_level error \
	    launchers/extend_llama.py $(ARGS) && \
	echo "what such figures say, beside a control: docs/results/extend_smollm2_16k.md"

# Each part says how long it took. A file's tests stay with one worker, where fixtures start processes; files are begun in
# the order of tests/conftest.py (xdist's own begins with the files of the most tests, which are quick). Where four
# processes work together, one test runs at a time. A part that holds none of the tests ARGS asks for (pytest's exit
# code 5) is no failure. A seeded part of the faults is in the daily suite.
test: $(STAMP) $(call on_linux,$(call triton,$(NEWEST_TRITON)))
	@$(suite)
	@$(scale)

suite = $(call part,suite,tests --ignore=tests/distributed -m "not slow and not gpu and not network" -n $(WORKERS) --dist loadfile --no-loadscope-reorder)
scale = $(call part,scale,tests/distributed)

define part
begin=$$(date +%s); echo "=== tests: $(1)"; \
PATH="$(BIN):$$PATH" $(BIN)/python -m pytest -q $(2) $(ARGS); code=$$?; \
echo "=== tests: $(1) took $$(($$(date +%s) - begin)) s"; \
if [ $$code -eq 5 ] && [ -n "$$ARGS" ]; then code=0; fi; \
if [ $$code -ne 0 ]; then exit $$code; fi
endef

VERSIONS ?= oldest newest
versions: $(VERSIONS:%=versions-%)

versions-%: BIN = $(CURDIR)/.venv/$*/bin
versions-%: .venv/%/.ready
	@$(suite)
	@$(scale)

# The oldest are the lower bounds of pyproject.toml; remove .venv/newest to try what has come out since.
.venv/%/.ready: pyproject.toml requirements-demo.txt
	rm -rf .venv/$*
	$(PYTHON) -m venv .venv/$*
	$(if $(filter oldest,$*),sed -n 's/^ *"\([a-zA-Z0-9_-]*\)>=\([0-9.]*\)".*/\1==\2/p' pyproject.toml,:) > .venv/$*/bounds.txt
	$(PIP) --quiet -c .venv/$*/bounds.txt -e ".[dev,wandb]"
	$(PIP) --quiet --no-deps -r requirements-demo.txt
	@touch $@
.PRECIOUS: .venv/%/.ready

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports --no-logo

# What was survived is kept in .cache/faults and not tried again; remove that folder to begin anew.
faults: $(STAMP)
	PATH="$(BIN):$$PATH" $(BIN)/python -m tests.faults $(ARGS)

# What was found is kept in .cache/scale and not computed again; remove that folder to begin anew.
scale: $(STAMP)
	PATH="$(BIN):$$PATH" DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 $(BIN)/python -m tests.distributed $(ARGS)

# Each engine in an environment of its own below .cache/engines, which is removed after its run.
engines: $(STAMP)
	PATH="$(BIN):$$PATH" DS_ACCELERATOR=cpu $(BIN)/python -m tools.engines $(ARGS)

compile-kernels: $(STAMP) $(call triton,$(TRITON))
	env -u TRITON_INTERPRET PYTHONPATH="$(call triton,$(TRITON))" $(BIN)/python -m tools.compile_kernels $(ARGS)

results: $(STAMP)
	$(BIN)/python -m tools.experiment --page

# Its packages stay out of what everything else runs on.
DOCS := $(CURDIR)/.venv/docs
DOCS_STAMP := $(DOCS)/.ready-$(shell sed -n '/^docs = /p' pyproject.toml | cksum | tr ' ' '-')

docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict --clean $(ARGS)

$(DOCS_STAMP): | $(STAMP)
	rm -rf $(DOCS)
	$(BIN)/python -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --disable-pip-version-check --quiet $$($(BIN)/python -c 'import tomllib; \
	    print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: $(STAMP)

# torch comes first and alone: the packages after it then find it and do not pull a build of their own. A torch that is
# in .venv already (a CPU build, say) is kept as long as its version is the pinned one.
$(STAMP):
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "tape_ds needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo not there)."; \
	    echo "Name another one: make PYTHON=python3.12 $(or $(MAKECMDGOALS),setup)"; exit 1; } >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { rm -rf .venv; \
	    echo "'$(PYTHON) -m venv' failed (on Debian and Ubuntu: apt install python3-venv)." >&2; exit 1; }
	@echo "Setting up .venv: some minutes the first time"
	$(PIP) --quiet "$$(grep '^torch==' requirements.txt)"
	$(PIP) --quiet -r requirements.txt
	$(PIP) --quiet --no-deps -r requirements-demo.txt
	$(PIP) --quiet --no-build-isolation -e ".[dev]"
	@rm -f .venv/.ready-*
	@touch $@

# Under its name only when it is whole.
$(CURDIR)/.venv/triton-%: | $(STAMP)
	rm -rf $@ $@.part
	$(PIP) --quiet --no-deps --target $@.part triton==$*
	mv $@.part $@

clean:
	rm -rf .cache .pytest_cache .ruff_cache .mypy_cache build dist *.egg-info
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	rm -rf .venv
