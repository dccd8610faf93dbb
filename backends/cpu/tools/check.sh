#!/usr/bin/env bash
# Prove the CPU kernels on this processor: build in place, list the instruction sets, run the tests for each.
#   backends/cpu/tools/check.sh [extra pytest arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
python=${PYTHON:-python}
FMCORE_CPU_REQUIRE_BUILD=1 "$python" setup.py -q build_ext --inplace
"$python" -c "from fmcore_cpu import _native; print(_native.kernels().isa_list(), 'in force:', _native.isa())"
"$python" -m pytest -q -p no:cacheprovider tests/backends/cpu "$@"
