# The verbs of this repository.  Each creates the virtual environment that it needs.

PYTHON ?= python3
SYSTEM := chromium java postgresql  # optional system packages for the tests, by their names in scripts/system.sh
ARGS   := # more arguments for pytest, as in: make test ARGS="-k moments -x"

export PYTHON
venv  := .venv/bin/python
ready := .venv/.ready

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test quick sweep check docs bench reproduce dist wheels audit matrix fuzz mutate extensions clean

help:  ## List the verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(ready)  ## Evaluate a policy on the bundled log (needs nothing but Python)
	@.venv/bin/poolwise demo

quick: $(ready)-test  ## Run the fast tests, in about a minute: nothing slow, no other programs
	@$(venv) -m pytest -n 2 --dist worksteal -m "not slow and not system" tests src reproduction $(ARGS)

test: $(ready)-test $(ready)-docs  ## Run all tests and every example of the documentation
	@bash scripts/system.sh $(SYSTEM)
	@$(venv) -m pytest -n 2 --dist loadfile --durations=25 $(ARGS)

sweep: $(ready)-test  ## Ask combinations of all features, and compare every number with its truth (twenty minutes)
	@bash scripts/system.sh java postgresql
	@$(venv) -m tests.sweep

check: $(ready)-test $(ready)-lint  ## Lint, check the format, the types and the licences
	@$(venv) -m ruff check
	@$(venv) -m ruff format --check
	@$(venv) -m mypy src tests reproduction $(wildcard benchmarks)
	@$(venv) scripts/licences.py papers skops sklearn trees

docs: $(ready)-docs  ## Build the documentation into build/docs
	@$(venv) scripts/make_pictures.py
	@$(venv) -m mkdocs build --strict --site-dir build/docs

bench: $(ready)-test  ## Measure speed, memory and accuracy against rivals
	@$(venv) benchmarks/run.py

reproduce: $(ready)-reproduce  ## Recompute every table and figure of the paper
	@$(venv) -m reproduction all

dist: $(ready)-dist  ## Build the source archive and the wheel, the same bytes each time
	@$(venv) scripts/changelog.py
	@rm -rf dist
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 315532800) \
		$(venv) -m build --no-isolation

wheels: $(ready)-dist  ## Build the wheels of all platforms
	@for platform in $$($(venv) hatch_build.py --list); do \
		POOLWISE_PLATFORM=$$platform $(venv) -m build --no-isolation --wheel || exit 1; done

audit:  ## Look for known vulnerabilities of the versions that we test with (needs network)
	@bash scripts/audit.sh

matrix:  ## Build twice, and test on every Python with lowest and newest versions (slow)
	@bash scripts/matrix.sh

fuzz: $(ready)-test $(ready)-fuzz  ## Fuzz the reader, the command line and the moments file, ten minutes each
	@for target in reader arguments moments; do $(venv) fuzz/$$target.py 600 || exit 1; done

mutate:  ## Make small changes to the code and count those that a test detects (slow)
	@bash scripts/mutate.sh

extensions:  ## Read Delta, Iceberg and S3 with the DuckDB that has extensions on the index
	@bash scripts/extensions.sh

clean:  ## Remove the files of the other verbs, except .venv
	@rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find src tests reproduction $(wildcard benchmarks) -name __pycache__ -prune -exec rm -rf {} +

# A stamp in .venv records a complete installation, so that removing the folder
# starts anew.
$(ready): pyproject.toml constraints.txt hatch_build.py scripts/setup.sh $(wildcard src/poolwise/engines/native/kernel.[ch])
	@bash scripts/setup.sh
	@touch $@

$(ready)-%: $(ready)
	@bash scripts/setup.sh $*
	@touch $@
