# Every target sets up what it needs: a .venv in this folder, once. Needs only make and Python 3.11 to 3.13 with venv.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EXTRAS := tensorflow-cpu,demo,dev,onnx
SUITABLE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

# Two processes, each with whole files: importing TensorFlow and tracing use one core.
IN_PARALLEL := -n 2 --dist loadfile

.PHONY: demo test test-full tables reliability compatibility bench-train bench-store bench-inspect lint help
.DEFAULT_GOAL := help

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' Makefile | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

demo: $(READY)  ## train digits on 4 devices, be killed, go on with 1, compare, predict
	@$(BIN)/anyrig demo

test: $(READY)  ## run the tests, matrices sampled by a printed seed
	@$(BIN)/python -m pytest -q $(IN_PARALLEL)

test-full: $(READY)  ## run the tests with the whole of every matrix
	@$(BIN)/python -m pytest -q $(IN_PARALLEL) --full

tables: $(READY)  ## measure the tables of docs/ anew (hours); PARTS="go-on", or see tests/multi/zoo_tables.py
	@$(BIN)/python tests/multi/zoo_tables.py $(PARTS)

reliability: $(READY)  ## break everything at every call (half an hour) and write docs/reliability.md anew
	@$(BIN)/python tests/crash/reliability.py $(PARTS)

compatibility: $(READY)  ## open every file of the corpus (some minutes) and write docs/compatibility.md anew
	@$(BIN)/python tests/corpus/compatibility.py $(PARTS)

bench-train: $(READY)  ## rows per second against Keras's fit, side by side; some minutes
	@$(BIN)/python bench/train.py
	@$(BIN)/python bench/page.py

bench-store: $(READY)  ## saving and loading against Keras, TensorFlow, PyTorch, Orbax and the disk; many minutes
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]' -c constraints.txt
	@$(BIN)/python bench/store.py
	@$(BIN)/python bench/page.py

bench-inspect: $(READY)  ## listing a checkpoint of 2 GiB against TensorFlow; two minutes
	@$(BIN)/python bench/listing.py
	@$(BIN)/python bench/page.py

lint: $(READY)  ## check style, types and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

$(READY): pyproject.toml constraints.txt
	@if ! $(BIN)/python -c '$(SUITABLE)' 2>/dev/null; then \
	  for python in python3.12 python3.13 python3.11 python3 python; do \
	    if $$python -c '$(SUITABLE)' 2>/dev/null; then break; fi; python=; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo "anyrig needs Python 3.11, 3.12 or 3.13 with venv; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; \
	  fi; \
	  echo "making $(VENV) with $$($$python --version)"; \
	  $$python -m venv --clear $(VENV); \
	fi
	@echo "installing anyrig and what it needs into $(VENV) (once; some minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]' -c constraints.txt
	@touch $@
