# Everything a checkout needs, from nothing but Python 3.11 to 3.14 and make: `make help`.
# `make test` and `make demo` set up what they need by themselves, once.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# With it set, each of the hundreds of processes of a run of the tests would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
# all: the package with Airflow, Dagster and the newest Spark, the broker, and the tools.
LOCK ?= all
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up-$(LOCK)

# The universal lock holds every Python version and platform that the package supports.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-header --no-emit-index-url --no-emit-find-links --group dev

# Four tests at a time, also on two cores: they wait more than they work. Each worker has a broker of its own, and tests
# of one file stay together. A worker that dies ends the run: its successor would wait for tests without end. Up to three
# tests that fail are run once more, alone.
FOUR_AT_A_TIME := --numprocesses 4 --dist loadfile --max-worker-restart 0
PYTEST := $(BIN)/python -m tests.support.once_more $(FOUR_AT_A_TIME)

# Spark 4.1, for which the Kafka connector, Delta and Iceberg exist: an environment of its own.
SPARK41 := .venv-spark41
ON_SPARK41 := spark41 and not long
WHERE_SPARK41 := tests/spark tests/cli tests/docs

# Celery, where its tests find it and nothing else does.
CELERY := build/celery

# The oldest Airflow that is supported.
AIRFLOW31 := .venv-airflow31

# mutmut, and what it made.
MUTATION := build/mutation

# The reader and decoder in Rust, a separate distribution, where tests find it and nothing else does.
NATIVE := build/native
# release is what is published. The profile tests saves a check of a change the link-time optimization.
NATIVE_PROFILE := release
CARGO := CARGO_TARGET_DIR=$(CURDIR)/$(NATIVE)/target cargo

.PHONY: help setup check format test test-ci test-slow test-airflow test-all test-spark41 test-spark test-airflow31 test-celery native test-native check-native mutation nightly bench demo docs wheel audit lock jars clean

help: ## Print this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(STAMP) ## Make .venv with exactly the locked packages

$(BIN)/uv: requirements/uv.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 15) else "Python 3.11 to 3.14 is needed, found %d.%d; set PYTHON=..." % v)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@touch $@

$(STAMP): $(BIN)/uv requirements/$(LOCK).txt pyproject.toml
	@rm -f $(VENV)/.set-up-*
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements/uv.txt requirements/$(LOCK).txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

check: $(STAMP) ## Formatting, lint, types, and the import rules of the rooms
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP) ## Format the code, and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Spark's classes as its JVM wants them: each of the hundred Sparks of the tests starts in a third of the time.
SPARK_CLASSES = $(VENV)/spark-classes.jsa

$(SPARK_CLASSES): $(STAMP)
	@rm -f $@
	$(BIN)/python -m tests.support.spark_classes

# Tests of the native reader are skipped where it is not on the path. One run of both kinds starts brokers once.
SLOW_ONES := slow or spark or dagster_real
OTHERS := long or spark41 or airflow
test: $(if $(SLOW),$(SPARK_CLASSES),$(STAMP)) ## Most tests: those of a second or two that need no Spark (SLOW=yes: and those of `make test-slow`)
	$(PYTEST) -m "$(if $(SLOW),,(native or not ($(SLOW_ONES))) and) not ($(OTHERS))"

test-slow: $(SPARK_CLASSES) ## Tests of some seconds, those that need a Spark, and a whole Dagster
	$(PYTEST) -m "($(SLOW_ONES)) and not native and not ($(OTHERS))"

test-ci: docs test-spark41 test-airflow31 test-airflow ## Spark 4.1, Airflow 3.1, a whole Airflow, the documentation

test-airflow: $(SPARK_CLASSES) ## A whole Airflow, with scheduler and web server
	$(BIN)/python -m tests.support.once_more -m "airflow and not long" tests/host_airflow

test-all: test-slow test-ci ## Besides those, the long ones, one at a time, and the quick tests of Spark on Spark 4.1
	$(BIN)/python -m pytest -m "long and not spark41"
	$(MAKE) test-spark41 ON_SPARK41="(spark and not slow and not spark41) or (long and spark41)" WHERE_SPARK41=tests

test-spark41: ## On Spark 4.1: its Kafka connector, Delta and Iceberg
	$(MAKE) $(SPARK41)/spark-classes.jsa LOCK=spark41 VENV=$(SPARK41)
	$(SPARK41)/bin/python -m tests.support.once_more $(FOUR_AT_A_TIME) -m "$(ON_SPARK41)" $(WHERE_SPARK41)

# The packages of the lock for Spark 4.1, but for its pyspark; tests with the mark spark41 need jars of that one alone.
test-spark: $(BIN)/uv ## The quick tests of Spark on any version of it: make test-spark VERSION=4.2.1
	@$(if $(VERSION),,$(error set VERSION, for example VERSION=4.2.1))
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python .venv-spark-$(VERSION)
	sed -nE 's/^([a-z0-9][^ ]*==[^\\]*)\\$$/\1/p' requirements/spark41.txt | sed -E 's/^(pyspark)==.*/\1==$(VERSION)/' \
		| $(BIN)/uv pip sync --quiet --python .venv-spark-$(VERSION)/bin/python -
	$(BIN)/uv pip install --quiet --python .venv-spark-$(VERSION)/bin/python --no-deps --editable .
	.venv-spark-$(VERSION)/bin/python -m tests.support.once_more $(FOUR_AT_A_TIME) -m "spark and not slow and not spark41 and not long"

test-airflow31: ## The tests of Airflow on Airflow 3.1, without those that start a Spark or a whole Airflow
	$(MAKE) setup LOCK=airflow31 VENV=$(AIRFLOW31)
	$(AIRFLOW31)/bin/python -m tests.support.once_more $(FOUR_AT_A_TIME) -m "not spark and not airflow and not long $(ON_AIRFLOW31)" tests/host_airflow

test-celery: $(STAMP) ## An Airflow with Celery's workers; needs redis-server
	rm -rf $(CELERY)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --target $(CELERY) --no-deps --require-hashes --requirement requirements/celery.txt
	PYTHONPATH=$(CURDIR)/$(CELERY) $(BIN)/python -m pytest tests/host_airflow/test_airflow_celery.py

# The locked crates without the address of their index, which cargo knows: it makes a lock first, for that line alone.
native/Cargo.lock: native/crates.lock native/Cargo.toml
	@rm -f $@
	cd native && cargo generate-lockfile --quiet
	source="$$(grep -m1 '^source = ' $@)"; awk -v source="$$source" '/^checksum = / { print source } { print }' native/crates.lock > $@

native: $(STAMP) native/Cargo.lock ## Build the native reader and decoder for the tests; needs cargo
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes --requirement requirements/native.txt
	rm -rf $(NATIVE)/wheels $(NATIVE)/site
	cd native && CARGO_TARGET_DIR=$(CURDIR)/$(NATIVE)/target $(CURDIR)/$(BIN)/maturin build --quiet --profile $(NATIVE_PROFILE) --locked \
		--out $(CURDIR)/$(NATIVE)/wheels
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --target $(NATIVE)/site $(NATIVE)/wheels/*.whl

test-native: native ## The tests of the native reader and decoder in Python
	PYTHONPATH=$(NATIVE)/site $(PYTEST) -m "native and not long" tests/native tests/decoding tests/kafka tests/fuzz
	PYTHONPATH=$(NATIVE)/site $(PYTEST) -m "not native and not slow and not long" tests/decoding

check-native: native/Cargo.lock ## Formatting, lint and the tests of the native reader in Rust
	cd native && $(CARGO) fmt --check
	cd native && $(CARGO) clippy --quiet --profile tests --locked --all-targets --features python -- -D warnings
	cd native && $(CARGO) test --quiet --profile tests --locked

mutation: $(STAMP) ## How many changes of the code that decides are found by tests without a broker (SAMPLE=600; 0: all)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --target $(MUTATION)/site --no-deps --require-hashes --requirement requirements/mutation.txt
	$(BIN)/python -m tests.support.mutation --sample $(or $(SAMPLE),600)

# Of each border, other inputs every night.
FUZZED = FUZZED_INPUTS=1000000 FUZZED_SEED=$$(date +%s)

nightly: $(SPARK_CLASSES) ## Everything, on Spark 4.1 too, with very many random examples
	HYPOTHESIS_PROFILE=nightly $(FUZZED) DAMAGED_RESPONSES=10000000 RANDOM_SCHEMAS=100000 $(MAKE) check-native test-native
	HYPOTHESIS_PROFILE=nightly $(FUZZED) SIMULATED_HISTORIES=200000 $(PYTEST) -m "not spark41 and not long and not airflow"
	HYPOTHESIS_PROFILE=nightly SOAK_ROUNDS=2000 PYTHONPATH=$(NATIVE)/site $(BIN)/python -m pytest -m "(long or airflow) and not spark41"
	HYPOTHESIS_PROFILE=nightly $(MAKE) test-spark41 ON_SPARK41="spark or spark41" WHERE_SPARK41=tests
	$(MAKE) test-celery

# On top of the packages for Spark 4.1, the readers that are compared with; all that they need is there.
bench: ## Measure the package against the plain Kafka connector, and write docs/benchmarks (BENCH=--help)
	$(MAKE) setup LOCK=spark41 VENV=$(SPARK41)
	$(SPARK41)/bin/uv pip install --quiet --python $(SPARK41)/bin/python --no-deps --require-hashes --requirement requirements/bench.txt
	$(SPARK41)/bin/python -m benchmarks $(BENCH)
	$(MAKE) setup
	$(BIN)/python -m benchmarks.imports

demo: $(STAMP) ## See it work: a real broker, a real Spark, one window
	$(BIN)/python -m kafka_ordered_ops.cli demo

docs: $(STAMP) ## Build the documentation into build/docs; a warning is an error
	@if [ -f docs/conf.py ]; then $(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs; \
	else echo "docs: no docs/conf.py yet"; fi

# What is published: built twice, with the time of the commit, and equal to the byte. Beside it, a list of all that its
# extras need, in the versions that were tested.
RELEASE := build/release
$(RELEASE)/.tools: $(BIN)/uv requirements/release.txt
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(RELEASE)/tools
	$(BIN)/uv pip sync --quiet --python $(RELEASE)/tools/bin/python --require-hashes requirements/release.txt
	@touch $@

wheel: $(RELEASE)/.tools ## Build the wheel and the source archive into dist, twice and alike, with a CycloneDX list of what they need
	rm -rf dist $(RELEASE)/again
	for folder in dist $(RELEASE)/again; do SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/uv build --quiet \
		--build-constraints requirements/release.txt --require-hashes --out-dir $$folder; done
	for file in dist/*.whl dist/*.tar.gz; do cmp $$file $(RELEASE)/again/$${file#dist/}; done
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--no-emit-index-url --no-emit-find-links --extra all --constraint requirements/all.txt --excludes requirements/excluded.txt pyproject.toml -o $(RELEASE)/needed.txt
	$(RELEASE)/tools/bin/cyclonedx-py requirements --no-validate --pyproject pyproject.toml --output-reproducible -o dist/sbom.cdx.json $(RELEASE)/needed.txt

audit: wheel ## Look all that the wheel needs up in the database of known vulnerabilities
	$(RELEASE)/tools/bin/pip-audit --strict --progress-spinner off --disable-pip --require-hashes --requirement $(RELEASE)/needed.txt

lock: $(BIN)/uv ## Resolve the newest allowed versions again
	echo 'uv' | $(BIN)/uv pip compile --quiet --universal --generate-hashes --upgrade --no-header --no-annotate \
		--no-emit-index-url --no-emit-find-links - -o requirements/uv.txt
	$(COMPILE) --upgrade --extra all --group browser --group prometheus --excludes requirements/excluded.txt pyproject.toml requirements/airflow.in \
		requirements/dagster.in -o requirements/all.txt
	$(COMPILE) --upgrade --extra demo --extra hdfs --extra lineage --extra object-stores --extra relay --constraint requirements/spark41.in pyproject.toml -o requirements/spark41.txt
	$(COMPILE) --upgrade --extra airflow --extra embedded --extra object-stores --extra spark --constraint requirements/airflow31.in \
		pyproject.toml -o requirements/airflow31.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade --no-header --no-annotate \
		--no-emit-index-url --no-emit-find-links requirements/release.in -o requirements/release.txt
	for name in bench celery mutation native; do $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-deps --generate-hashes --upgrade \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links requirements/$$name.in -o requirements/$$name.txt; done
	cd native && cargo update --quiet && grep -v '^source = ' Cargo.lock > crates.lock

jars: $(STAMP) ## Resolve the embedded broker's jars again, and write the list of their hashes
	$(BIN)/python -m kafka_ordered_ops.embedded.relock

clean: ## Remove what the other targets made
	rm -rf $(VENV) $(SPARK41) $(AIRFLOW31) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis native/Cargo.lock
	find kafka_ordered_ops tests -name __pycache__ -type d -prune -exec rm -rf {} +
