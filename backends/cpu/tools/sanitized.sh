# Sourced by asan.sh and fuzz.sh: builds into $work, and defines `sanitized`, which runs python on that build.
lib="$work/lib/fmcore_cpu"
mkdir -p "$work/site"
# Minutes of compiling, so only when a source is newer than the last build.
built=$(find "$lib" -name '_kernels*.so' 2>/dev/null | head -1 || true)
if [ -z "$built" ] || [ -n "$(find "$root/backends/cpu/csrc" "$root/backends/cpu/build_kernels.py" -newer "$built")" ]; then
    (cd "$root" && FMCORE_CPU_SANITIZE=1 FMCORE_CPU_REQUIRE_BUILD=1 "$python" setup.py -q build_ext \
        --build-lib "$work/lib" --build-temp "$work/temp" >"$work/build.log" 2>&1) || { cat "$work/build.log"; exit 1; }
fi
# The sanitized module takes the plain one's name before anything asks for it.
cat >"$work/site/sitecustomize.py" <<PYTHON
import glob, importlib.util, sys
spec = importlib.util.spec_from_file_location("fmcore_cpu._kernels", glob.glob("$lib/_kernels*.so")[0])
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
PYTHON
sanitized() {
    # Python leaks by design, so leaks are not looked for; libstdc++ comes first so that exceptions are intercepted.
    env PYTHONPATH="$work/site" OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}" \
        LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so) $(gcc -print-file-name=libstdc++.so.6)" \
        ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
        "$python" "$@"
}
