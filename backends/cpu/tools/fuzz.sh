#!/usr/bin/env bash
# Fuzz the mask bounds of the sanitized CPU kernels against the float64 oracle.
#   backends/cpu/tools/fuzz.sh [seconds, 600 by default] [first seed]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
python=${PYTHON:-python}
work=${ASAN_DIR:-"$root/build/asan"}
source "$root/backends/cpu/tools/sanitized.sh"
cd "$root"
sanitized backends/cpu/tools/fuzz_masks.py --seconds "${1:-600}" --seed "${2:-0}"
