# A menu; the build itself is CMake's (CMakeLists.txt, CMakePresets.json).
T ?= 60
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)

release: ## the program, at build/apus
	@[ -f build/build.ninja ] || cmake --preset release
	@cmake --build build --target apus -j $(JOBS)

test: ## all unit tests, release build
	@cmake --preset release && cmake --build build -j $(JOBS)
	@ctest --test-dir build --output-on-failure -j $(JOBS)

asan tsan: ## all unit tests under a sanitizer
	@cmake --preset $@ && cmake --build build-$@ -j $(JOBS)
	@ctest --test-dir build-$@ --output-on-failure -j $(JOBS)

fuzz: ## each fuzz target for T=60 seconds (needs clang)
	@cmake --preset fuzz && cmake --build build-fuzz -j $(JOBS) --target $(basename $(notdir $(wildcard tests/fuzz/fuzz_*.c)))
	@set -e; for target in $(basename $(notdir $(wildcard tests/fuzz/fuzz_*.c))); do \
	    name=$${target#fuzz_}; found=build-fuzz/corpus/$$name; mkdir -p $$found; echo "== $$target for $(T) s"; \
	    build-fuzz/$$target -max_total_time=$(T) -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 -verbosity=0 \
	        -artifact_prefix=$$found- $$found tests/fuzz/corpus/$$name; \
	done

lint: ## layers, banned functions, format; shows the longest files and functions
	@tools/lint.sh

format: ## rewrite all sources in the project's format
	@tools/lint.sh format

bench: release ## speed of MODEL=… beside the machine's memory limit
	@build/apus bench $(MODEL)

clean: ## remove every build folder
	rm -rf build build-debug build-asan build-tsan build-fuzz build-aarch64 build-cuda

help: ## this list
	@awk -F ':.*## ' '/^[a-z ]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: release test asan tsan fuzz lint format bench clean help
