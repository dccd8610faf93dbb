# Two commands do all that most people need, each from an empty clone:
#   make conform   set everything up, choose a backend, run real ops, run the conformance suite, say where the report is
#   make test      set everything up and pass the tests

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := .make/installed
FRACTION ?= 1/8
REPORT ?= conformance-report

# An interpreter that has torch already (a vendor's build, say) is built upon, never overwritten.
HAS_TORCH := $(shell $(PYTHON) -c "import importlib.util as u; print(1 if u.find_spec('torch') else 0)" 2>/dev/null)
ifeq ($(HAS_TORCH),1)
  VENV_FLAGS := --system-site-packages
  CONSTRAINTS :=
  EXTRAS := report,test,dev
else
  CONSTRAINTS := -c constraints/cpu.txt
  EXTRAS := torch,report,test,dev
endif

.PHONY: conform test lint types format wheel compile-all compile-3.3 asan fuzz bench clean

$(STAMP): pyproject.toml setup.py constraints/cpu.txt $(wildcard backends/cpu/csrc/*)
	@echo "== setting up $(VENV) (share: 3 minutes of .ci/run)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV_FLAGS) $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip 'setuptools>=77' wheel 'pybind11>=2.12'
ifneq ($(HAS_TORCH),1)
	@$(BIN)/python -m pip install --quiet $(CONSTRAINTS) torch triton
endif
	@$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --no-build-isolation --editable '.[$(EXTRAS)]'
	@mkdir -p .make && touch $@

conform: $(STAMP)
	@echo "== conformance, fraction $(FRACTION) (share: 4 minutes of .ci/run)"
	@$(BIN)/python examples/first_steps.py
	@$(BIN)/fmcore conform run --level L4 --fraction $(FRACTION) --out $(REPORT) --html $(REPORT)/report.html

test: $(STAMP)
	@echo "== tests (share: 10 minutes of .ci/run)"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(STAMP)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(STAMP)
	@$(BIN)/mypy

format: $(STAMP)
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

wheel: $(STAMP)
	@$(BIN)/python -m build --no-isolation --outdir dist .

compile-all: $(STAMP)
	@$(BIN)/python backends/triton/tools/compile_all.py

# Vendors' forks of Triton lag: the kernels keep to the language of 3.3, fetched beside the installed one.
compile-3.3: $(STAMP) .make/triton-3.3/triton
	@PYTHONPATH="$(abspath .make/triton-3.3)" $(BIN)/python backends/triton/tools/compile_all.py --quick --dtypes bf16 --targets sm_90,gfx90a

.make/triton-3.3/triton:
	@$(BIN)/python -m pip install --quiet --target .make/triton-3.3 --no-deps 'triton==3.3.*'

asan: $(STAMP)
	@PATH="$(abspath $(BIN)):$$PATH" bash backends/cpu/tools/asan.sh

fuzz: $(STAMP)
	@PATH="$(abspath $(BIN)):$$PATH" bash backends/cpu/tools/fuzz.sh

bench: $(STAMP)
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/dispatch.py

clean:
	@rm -rf $(VENV) .make build dist *.egg-info $(REPORT)
