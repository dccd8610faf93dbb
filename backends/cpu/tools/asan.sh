#!/usr/bin/env bash
# Build the CPU kernels with AddressSanitizer and UndefinedBehaviorSanitizer apart from the source tree and run their
# tests. SIGILL-free on any x86-64: instruction sets that the processor lacks are built, listed and not run.
#   backends/cpu/tools/asan.sh [extra pytest arguments]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
python=${PYTHON:-python}
work=${ASAN_DIR:-"$root/build/asan"}
source "$root/backends/cpu/tools/sanitized.sh"
cd "$root"
sanitized -m pytest -q -x -p no:cacheprovider tests/backends/cpu "$@"
