#!/bin/sh
# The tests of what computes, as other machines would run them: older instructions, more threads, no compiler.
# This machine's own instructions with one thread are in `make test`.
set -eu
export OMP_WAIT_POLICY=passive # threads that wait leave the core to the others

# Without the slow ones that start processes with settings of their own.
core() {
    echo "== $1"
    shift
    env "$@" "$BIN/pytest" -q -n 2 tests/core tests/neurons tests/kernels -k "not test_without_a_compiler"
}

for threads in 1 2 3; do
    core "no AVX, $threads threads" OMP_NUM_THREADS=$threads ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41
    core "AVX2, $threads threads" OMP_NUM_THREADS=$threads ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
    [ "$threads" = 1 ] || core "this machine's instructions, $threads threads" OMP_NUM_THREADS=$threads
done
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
bin=$(cd "$BIN" && pwd)
core "no compiler" OMP_NUM_THREADS=1 PATH="$bin" CC= XDG_CACHE_HOME="$empty"
