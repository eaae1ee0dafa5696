#!/bin/sh
# The tests of what computes, as other machines would run them: older instructions, more threads, no compiler.
# This machine's own instructions with one thread are in `make test`.
set -eu
export OMP_WAIT_POLICY=passive # threads that wait leave the core to the others

# A name, the tests by their markers, and the settings of one cell.
cell() {
    name=$1 chosen=$2 started=$(date +%s)
    shift 2
    echo "== $name"
    env "$@" "$BIN/pytest" -q -n 2 --dist worksteal -m "$chosen" tests/core tests/neurons tests/kernels --ignore tests/neurons/test_triton_fire.py
    echo "== $name: $(($(date +%s) - started)) s"
}

for threads in 1 2 3; do
    chosen="not processes"
    [ "$threads" = 1 ] || chosen="not processes and not compiles"
    cell "no AVX, $threads threads" "$chosen" OMP_NUM_THREADS=$threads ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41
    cell "AVX2, $threads threads" "$chosen" OMP_NUM_THREADS=$threads ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
    [ "$threads" = 1 ] || cell "this machine's instructions, $threads threads" "$chosen" OMP_NUM_THREADS=$threads
done
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
bin=$(cd "$BIN" && pwd)
cell "no compiler" "not processes and not compiles" OMP_NUM_THREADS=1 PATH="$bin" CC= CXX= XDG_CACHE_HOME="$empty"
