# keras-strom: `make test` and `make demo` work on a fresh Debian or Ubuntu machine with Python 3.11,
# make and a C++ compiler; they set up what is missing in .venv and, as root, with apt.
# `make help` lists the targets. A .venv that is a symbolic link is used as it is, never changed.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

# The pins are tested with Python 3.11; another one is taken only where that is missing.
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3,\
            $(if $(shell command -v $(name)),$(name))) python3.11)
# Warnings of the C++ compiler are errors: OFF or ON (what .ci/run sets).
WERROR ?= OFF
JOBS ?= $(shell nproc)
PYTEST_ARGS ?=
# Files of tests that run at the same time; much of a test is waiting.
PYTEST_JOBS ?= 3
BENCH_ARGS ?=
RELEASE_ARGS ?=
SOAK_ARGS ?=

BIN := .venv/bin
STEP := .ci/step
CPP = $(shell git ls-files '*.cc' '*.h' '*.cu' '*.cuh')
SANITIZERS := address,undefined
NATIVE_TESTS := build/native
NATIVE_BENCH := build/bench/native
SANITIZED := build/sanitize
FUZZED := build/fuzz
# Seconds for each fuzz target, and clang's C++ compiler, which brings the fuzzer.
FUZZ_SECONDS ?= 60
FUZZ_CXX ?= clang++-16
THREAD_CHECKED := build/threads
AARCH64 := build/aarch64
space := $(subst ,, )

# Python started from here finds this tree's package and keeps TensorFlow's start-up notes away.
export PYTHON
export TF_CPP_MIN_LOG_LEVEL ?= 2
ifeq ($(WERROR),ON)
export CMAKE_ARGS := -DSTROM_WERROR=ON
endif
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-22s %s\n", $$1, $$2}' Makefile

# ------------------------------------------------------------------ set-up

ifeq ($(shell test -L .venv && echo link),link)
TOOLS_STAMP := build/stamps/tools
PACKAGE_STAMP := build/stamps/package
DOCS_STAMP := build/stamps/docs
INSTALL = @echo "==> .venv is a link: used as it is"; true
else
TOOLS_STAMP := .venv/.stamp-tools
PACKAGE_STAMP := .venv/.stamp-package
DOCS_STAMP := .venv/.stamp-docs
INSTALL = @$(STEP)
endif

.PHONY: setup
setup: $(PACKAGE_STAMP) native ## .venv with every pinned dependency, and the package in editable form
	@.ci/system-packages test data java

# Where the tree was moved, what was made in another place is made anew.
ifneq ($(shell .ci/moved),)
.PHONY: $(TOOLS_STAMP)
endif

# TensorFlow and the build tools come first, for the operators are built against it.
$(TOOLS_STAMP): constraints.txt
	@.ci/moved remove
	@.ci/system-packages python native
	@test -x $(BIN)/python || $(STEP) venv "making .venv with $(PYTHON)" $(PYTHON) -m venv .venv
	$(INSTALL) pip-tools "installing TensorFlow and the build tools (a few minutes the first time)" \
	  $(BIN)/python -m pip install -c constraints.txt tensorflow-cpu setuptools wheel cmake ninja
	@mkdir -p $(@D) && touch $@

# pip would build the libraries too, but only make shows why when that fails.
$(PACKAGE_STAMP): $(TOOLS_STAMP) setup.cfg setup.py pyproject.toml
	@$(MAKE) --no-print-directory native
	$(INSTALL) pip-package "installing keras-strom in editable form with what it needs" \
	  $(BIN)/python -m pip install -c constraints.txt --no-build-isolation \
	  -e '.[cpu,spark,dashboard,test,bench,examples,dev]'
	@mkdir -p $(@D) && touch $@

.PHONY: native
native: $(TOOLS_STAMP) ## libstrom.so and the TensorFlow operators, in keras_strom/_native
	@$(STEP) native "building the native libraries" \
	  $(BIN)/python setup.py -q build_native --inplace

# With nvcc `native` has built it too; here are its tests, on the device and in the emulation.
.PHONY: cuda
cuda: setup test-native ## libstrom_cuda.so and its tests; needs nvcc, and a device for most tests
	@command -v nvcc >/dev/null || { echo "==> there is no nvcc on the PATH"; exit 1; }
	@$(BIN)/python -m pytest -q -rs tests/codec/test_cuda.py
	@$(BIN)/python -m pytest -q -rs tests/codec/test_codec_contract.py -k 'cuda or ops'

.PHONY: wheel
wheel: setup ## dist/*.whl for this platform
	@rm -f dist/keras_strom-*-linux_*.whl
	@$(STEP) wheel "building the wheel" $(BIN)/python -m pip wheel --no-build-isolation \
	  --no-deps --wheel-dir dist .
	@ls -1 dist/*.whl

# In environments of their own, not in .venv; what they fetch stays in build/release/downloads.
.PHONY: release
release: ## dist/: a wheel for every supported TensorFlow and Python, the sdist and their list of parts (RELEASE_ARGS=--once)
	@.ci/system-packages python native
	@$(PYTHON) .ci/release/build.py $(RELEASE_ARGS)

.PHONY: test-release
test-release: ## the wheel of `make release` with each Python and TensorFlow that can be had (hours; RELEASE_ARGS="--only 3.11-2.21")
	@$(PYTHON) .ci/release/pairs.py $(RELEASE_ARGS)

.PHONY: test-newest
test-newest: ## the strategy's quick tests with the newest TensorFlow and Keras that pip offers (10 minutes)
	@.ci/system-packages python native
	@$(PYTHON) .ci/release/pairs.py --newest $(RELEASE_ARGS)

# ------------------------------------------------------------------ tests

.PHONY: test
test: setup test-native test-sanitized test-python ## every test, native ones also under sanitizers

.PHONY: test-native
test-native: setup ## the native tests, optimised
	@$(STEP) test-native-configure "configuring the native tests" $(BIN)/cmake -S custom_ops \
	  -B $(NATIVE_TESTS) -DSTROM_TESTS=ON -DSTROM_BENCH=ON
	@$(STEP) test-native-build "building the native tests" \
	  $(BIN)/cmake --build $(NATIVE_TESTS) --parallel $(JOBS)
	@echo "==> native tests"
	@$(BIN)/ctest --test-dir $(NATIVE_TESTS) --output-on-failure --parallel $(JOBS)

.PHONY: test-sanitized
test-sanitized: setup ## the native tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(STEP) test-sanitized-configure "configuring the sanitized native tests" $(BIN)/cmake \
	  -S custom_ops -B $(SANITIZED) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	  -DSTROM_TESTS=ON -DSTROM_BENCH=ON -DSTROM_SANITIZE=$(SANITIZERS) -DSTROM_WERROR=$(WERROR)
	@$(STEP) test-sanitized-build "building the sanitized native tests" \
	  $(BIN)/cmake --build $(SANITIZED) --target strom_tests --parallel $(JOBS)
	@echo "==> native tests under $(SANITIZERS) sanitizers"
	@UBSAN_OPTIONS=print_stacktrace=1 $(BIN)/ctest --test-dir $(SANITIZED) --output-on-failure \
	  --parallel $(JOBS)

# Of the native tests only those that start threads, or reach code that does, are worth the time;
# where memory runs out, tasks run one after the other.
THREADED := $(filter-out %/out_of_memory_test.cc,\
  $(shell grep -lE '"((net|capi)/|own_threads)|<thread>' tests/native/*/*_test.cc))
.PHONY: test-threads
ifeq ($(THREADED),)
test-threads:
	@echo "==> ThreadSanitizer: no native test has threads"
else
test-threads: setup ## native tests with threads under ThreadSanitizer (part of .ci/run)
	@$(STEP) test-threads-configure "configuring the native tests for ThreadSanitizer" \
	  $(BIN)/cmake -S custom_ops -B $(THREAD_CHECKED) -G Ninja \
	  -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DSTROM_TESTS=ON -DSTROM_SANITIZE=thread \
	  -DSTROM_WERROR=$(WERROR) '-DSTROM_TEST_FILTER=$(subst $(space),|,$(notdir $(THREADED)))$$'
	@$(STEP) test-threads-build "building the native tests for ThreadSanitizer" \
	  $(BIN)/cmake --build $(THREAD_CHECKED) --target strom_tests --parallel $(JOBS)
	@echo "==> native tests under ThreadSanitizer"
	@$(BIN)/ctest --test-dir $(THREAD_CHECKED) --output-on-failure --parallel $(JOBS)
endif

# For another kind of processor than this one, in qemu's emulation. Left out are the room `sim` and the
# mutants: hours of simulated time in the same portable code, which `make test-native` runs; and
# same_host_processes_test, which starts its own program again, as only a kernel for Arm can; and three
# that take minutes in emulation.
AARCH64_ROOMS := base|capi|codec|cuda|joint|master|net|replication|step|transport|worker
.PHONY: test-aarch64
test-aarch64: $(TOOLS_STAMP) ## libstrom.so for 64-bit Arm, and the native tests in emulation (not part of `make test`)
	@.ci/system-packages aarch64
	@$(STEP) aarch64-packages "fetching headers and libraries for arm64" .ci/aarch64/packages \
	  $(AARCH64)/libraries libssl-dev libgtest-dev libgmock-dev
	@$(STEP) test-aarch64-configure "configuring the native tests for aarch64" $(BIN)/cmake \
	  -S custom_ops -B $(AARCH64)/native -G Ninja \
	  -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DSTROM_TESTS=ON -DSTROM_WERROR=ON \
	  -DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/custom_ops/cmake/aarch64.cmake \
	  '-DSTROM_TEST_FILTER=/($(AARCH64_ROOMS))/[^/]*_test[.]cc$$|_fuzz[.]cc$$'
	@$(STEP) test-aarch64-build "building libstrom.so and the native tests for aarch64" \
	  $(BIN)/cmake --build $(AARCH64)/native --target strom strom_tests --parallel $(JOBS)
	@echo "==> native tests for aarch64, emulated by $$(qemu-aarch64 --version | head -n 1): no Arm" \
	  "processor takes part, and speed says nothing"
	@$(BIN)/ctest --test-dir $(AARCH64)/native --output-on-failure --parallel $(JOBS) \
	  --exclude-regex '^(same_host_processes|out_of_memory|grants|long_line)_test$$'

.PHONY: test-bazel
test-bazel: ## the native side and all of its tests with Bazel (.ci/run has Bazel build all parts and test one of each)
	@.ci/system-packages bazel
	@.ci/bazel/test --noshow_progress

FUZZ_TARGETS := $(patsubst custom_ops/fuzz/%_fuzz.cc,%,$(wildcard custom_ops/fuzz/*_fuzz.cc))
.PHONY: fuzz
fuzz: setup ## every fuzz target and test for FUZZ_SECONDS; new inputs go to build/fuzz/corpus
	@.ci/system-packages fuzz
	@$(STEP) fuzz-configure "configuring the fuzz targets" $(BIN)/cmake -S custom_ops \
	  -B $(FUZZED) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DSTROM_FUZZ=ON \
	  -DCMAKE_CXX_COMPILER=$(FUZZ_CXX) -DSTROM_SANITIZE=$(SANITIZERS) -DSTROM_WERROR=$(WERROR)
	@$(STEP) fuzz-build "building the fuzz targets" $(BIN)/cmake --build $(FUZZED) \
	  --parallel $(JOBS) --target $(FUZZ_TARGETS:%=%_fuzz)
	@for target in $(FUZZ_TARGETS); do \
	  echo "==> fuzzing: $$target, $(FUZZ_SECONDS) s"; \
	  mkdir -p $(FUZZED)/corpus/$$target; \
	  $(FUZZED)/$${target}_fuzz -max_total_time=$(FUZZ_SECONDS) -timeout=20 -max_len=8192 \
	    -verbosity=0 -print_final_stats=1 -artifact_prefix=$(FUZZED)/$$target- \
	    $(FUZZED)/corpus/$$target tests/native/testdata/fuzz/$$target; \
	done
	@echo "==> fuzzing: each test of Python that is marked so, $(FUZZ_SECONDS) s"
	@$(BIN)/python -m pytest -v -m fuzz --timeout=0 --fuzz-seconds=$(FUZZ_SECONDS) \
	  $$(grep -rl --include='test_*.py' 'mark\.fuzz' tests)

PYTEST := $(BIN)/python -m pytest -q -rfEs -n $(PYTEST_JOBS)
# Whole files, as tests of a file share what they have started.
BY_FILE := --dist loadscope --no-loadscope-reorder

# Of the Java and the pyspark that are here: what Spark reads of its jars when it starts.
.PHONY: spark-classes
spark-classes: setup
	@$(STEP) spark-classes "archiving Spark's classes, with which the tests start it sooner" \
	  $(BIN)/python -m tests.support.quick_java

.PHONY: test-python
test-python: setup spark-classes ## the Python tests; PYTEST_ARGS="-k name" chooses
	@if ((EUID == 0)); then .ci/system-packages browser lines ssh; fi
	@echo "==> Python tests"
	@$(PYTEST) $(BY_FILE) --durations=5 $(PYTEST_ARGS)

# After `make setup`, for which it does not look.
.PHONY: test-quick
test-quick: native ## the Python tests without Spark and without jobs of several processes (2 minutes)
	@echo "==> quick Python tests"
	@$(PYTEST) --dist worksteal -m quick $(PYTEST_ARGS)

.PHONY: test-models
test-models: setup ## large models of keras.applications on two workers (minutes)
	@echo "==> large models"
	@$(BIN)/python -m pytest -q -m slow

# KERAS_SOURCE=FOLDER: Keras's source, of the installed version, for its own tests.
.PHONY: test-net
test-net: setup spark-classes ## 21 scripts as Keras's users write them, in four ways; Keras's own tests (KERAS_SOURCE=) (half an hour)
	@.ci/system-packages data java
	@echo "==> scripts as Keras's users write them"
	@$(PYTEST) $(BY_FILE) -m '' $(PYTEST_ARGS) tests/strategy/test_keras_examples.py \
	  tests/strategy/test_small_data.py \
	  tests/strategy/test_keras_own_tests.py \
	  tests/spark/test_keras_examples_on_spark.py

.PHONY: test-tfx
test-tfx: setup ## the TFX component in pipelines of TFX's SDK and, given Python 3.10, of TFX (minutes)
	@.ci/system-packages java
	@.ci/tfx/test

# Its Python sees .venv's packages behind the checkers.
.PHONY: test-images
test-images: wheel ## images, archives and cluster scripts, in a slim Debian and on a bare Spark cluster (15 minutes; root)
	@.ci/system-packages java
	@if ((EUID == 0)); then .ci/system-packages images; fi
	@$(STEP) images "setting up what checks images" .ci/environment build/images/tools .ci/images.txt
	@build/images/tools/bin/python -m pytest -v -rs -m images $(PYTEST_ARGS) tests/deploy

.PHONY: soak
soak: setup ## real processes on bad networks, some stopped and killed; the simulator (12 minutes; root)
	@.ci/system-packages lines
	@$(STEP) test-native-configure "configuring the native tests" $(BIN)/cmake -S custom_ops \
	  -B $(NATIVE_TESTS) -DSTROM_TESTS=ON -DSTROM_BENCH=ON
	@$(STEP) soak-build "building what soaks" \
	  $(BIN)/cmake --build $(NATIVE_TESTS) --target relay_node simulator --parallel $(JOBS)
	@$(BIN)/python -m benchmarks.soak $(SOAK_ARGS)

.PHONY: chaos
chaos: setup ## training while a worker is killed every 20 seconds, and in peace; CHAOS_ARGS=--spark (25 minutes), --quick, --executors
	@$(BIN)/python -m benchmarks.chaos $(CHAOS_ARGS)

# ------------------------------------------------------------------ what to see

.PHONY: demo
demo: $(PACKAGE_STAMP) native ## two Spark executors train a CNN on Fashion-MNIST, and one alone; build/demo.png (4 minutes)
	@.ci/system-packages data java
	@$(BIN)/python examples/demo.py

# ------------------------------------------------------------------ pages

$(DOCS_STAMP): $(PACKAGE_STAMP)
	$(INSTALL) pip-docs "installing what makes the pages" \
	  $(BIN)/python -m pip install -c constraints.txt $$(.ci/extra docs)
	@mkdir -p $(@D) && touch $@

.PHONY: docs
docs: $(DOCS_STAMP) ## the pages of docs/ as a site, build/docs; a warning or a broken link is an error
	@.ci/docs

.PHONY: docs-pictures
docs-pictures: setup ## the pictures of the live page in docs/figures, made by its tests in Chromium
	@.ci/system-packages browser
	@$(BIN)/python -m pytest -q tests/dashboard/test_page_in_chromium.py -k pictures \
	  --pictures docs/figures

# ------------------------------------------------------------------ benchmarks

BENCHES := bench-codec bench-mpca bench-parity bench-reader bench-relay bench-step bench-wan
.PHONY: bench $(BENCHES)
bench: $(BENCHES) ## every benchmark; results in build/bench

# The native part of a benchmark, $(NATIVE_BENCH)/PROGRAM.
.PHONY: bench-configure
bench-configure: setup
	@$(STEP) bench-configure "configuring the native benchmarks" $(BIN)/cmake -S custom_ops \
	  -B $(NATIVE_BENCH) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DSTROM_BENCH=ON \
	  -DSTROM_WERROR=$(WERROR)

bench-codec: bench-configure ## encoding, coding, applying, message sizes, and targets (2 minutes)
	@$(STEP) bench-build "building the native benchmarks" \
	  $(BIN)/cmake --build $(NATIVE_BENCH) --target codec_bench --parallel $(JOBS)
	@$(BIN)/python -m benchmarks.codec $(BENCH_ARGS)

bench-relay: bench-configure ## the relay against TCP and TLS, and targets (6 minutes; root)
	@if ((EUID == 0)); then .ci/system-packages lines; fi
	@$(STEP) bench-build "building the native benchmarks" \
	  $(BIN)/cmake --build $(NATIVE_BENCH) --target relay_peer relay_node --parallel $(JOBS)
	@$(BIN)/python -m benchmarks.relay $(BENCH_ARGS)

bench-wan: bench-configure ## the relay on long lines against TCP CUBIC and BBR, and targets (20 minutes; --quick; root)
	@if ((EUID == 0)); then .ci/system-packages lines quic; fi
	@$(STEP) bench-build "building the native benchmarks" \
	  $(BIN)/cmake --build $(NATIVE_BENCH) --target relay_peer wan_line --parallel $(JOBS)
	@$(BIN)/python -m benchmarks.wan $(BENCH_ARGS)

.PHONY: bench-scale
bench-scale: bench-configure ## what a link costs with up to 4096 workers, in virtual time (10 minutes; --quick)
	@$(STEP) bench-build "building the native benchmarks" \
	  $(BIN)/cmake --build $(NATIVE_BENCH) --target scale relay_node --parallel $(JOBS)
	@$(BIN)/python -m benchmarks.scale $(BENCH_ARGS)

.PHONY: bench-sites
bench-sites: bench-configure ## the demo's CNN trained by two sites with a long line between them (10 minutes; --quick; root)
	@if ((EUID == 0)); then .ci/system-packages lines data; fi
	@$(STEP) bench-build "building the native benchmarks" \
	  $(BIN)/cmake --build $(NATIVE_BENCH) --target wan_line --parallel $(JOBS)
	@$(BIN)/python -m benchmarks.sites $(BENCH_ARGS)

bench-mpca: setup ## MPCA SGD beside SparkNet, EASGD and others, in virtual time (20 minutes; --quick); FULL=1: bench-mpca-real, too
	@.ci/system-packages data
	@$(BIN)/python -m benchmarks.mpca $(BENCH_ARGS)
	@[[ "$${FULL:-}" != 1 ]] || $(MAKE) --no-print-directory bench-mpca-real BENCH_ARGS=

.PHONY: bench-mpca-real
bench-mpca-real: setup ## the same methods as real jobs of 8 workers, on lines of their own (16 minutes); root
	@.ci/system-packages data lines
	@$(BIN)/python -m benchmarks.mpca_real $(BENCH_ARGS)

.PHONY: bench-methods
bench-methods: setup ## every method on one task, K = 4 and 8, on two lines (an hour; --resume); root
	@.ci/system-packages data lines
	@$(BIN)/python -m benchmarks.methods $(BENCH_ARGS)

bench-reader: setup ## how fast a worker reads exported rows (1 minute)
	@$(BIN)/python -m benchmarks.reader $(BENCH_ARGS)

bench-parity: setup ## accuracy against dense training and none, with the defaults (hours; --resume)
	@$(BIN)/python -m benchmarks.parity $(BENCH_ARGS)

bench-step: setup ## what a training step costs over plain Keras (10 minutes)
	@$(BIN)/python -m benchmarks.step $(BENCH_ARGS)

# Not part of `bench`: it wants a machine that does nothing else.
.PHONY: bench-dashboard
bench-dashboard: setup ## what a step costs more while the live page is open (6 minutes)
	@$(BIN)/python -m benchmarks.dashboard $(BENCH_ARGS)

# Not part of `bench`: it builds Horovod, where that works, for the comparison alone.
.PHONY: bench-horovod
bench-horovod: setup ## Horovod on Spark against keras-strom (15 minutes; lines need root; builds Horovod)
	@.ci/system-packages data java
	@if ((EUID == 0)); then .ci/system-packages lines; fi
	@.ci/horovod/set-up || (($$? == 3))
	@$(BIN)/python -m benchmarks.horovod $(BENCH_ARGS)

# Nor are these: elephas is installed for the first alone, the second takes hours.
.PHONY: bench-start
bench-start: setup ## seconds until workers on Spark train, and five fits beside elephas (6 minutes; installs elephas)
	@$(STEP) elephas "setting up elephas" .ci/environment build/elephas .ci/elephas.txt \
	  || echo "==> elephas cannot be installed here; the benchmark does without it"
	@$(BIN)/python -m benchmarks.start $(BENCH_ARGS)

.PHONY: bench-exact
bench-exact: setup ## exact mode beside Horovod at 1 Gbit/s (30 minutes; --quick; root; builds Horovod)
	@.ci/system-packages data
	@if ((EUID == 0)); then .ci/system-packages lines; .ci/horovod/set-up || (($$? == 3)); fi
	@$(BIN)/python -m benchmarks.exact $(BENCH_ARGS)

# It can be run in pieces: BENCH_ARGS="--resume --only wide k2".
.PHONY: bench-time-to-accuracy
bench-time-to-accuracy: setup ## accuracy by seconds, beside Horovod (hours; --quick: minutes; root; builds Horovod)
	@.ci/system-packages data
	@if ((EUID == 0)); then .ci/system-packages lines; .ci/horovod/set-up || (($$? == 3)); fi
	@$(BIN)/python -m benchmarks.time_to_accuracy $(BENCH_ARGS)

# ------------------------------------------------------------------ checks

.PHONY: lint
lint: $(PACKAGE_STAMP) ## ruff, mypy and clang-format; changes nothing
	@.ci/lint

.PHONY: format
format: $(PACKAGE_STAMP) ## formats every source in place
	@$(BIN)/ruff check --fix --exit-zero -q .
	@$(BIN)/ruff format -q .
	@$(BIN)/clang-format -i $(CPP)

.PHONY: clean
clean: ## removes what was built, but not .venv
	@rm -rf build dist keras_strom.egg-info keras_strom/_native/*.so keras_strom/_native/build.json
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
