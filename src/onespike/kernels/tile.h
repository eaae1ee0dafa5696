/* A tile of rows and columns whose sums stay in registers, and which thread makes it. */
#ifndef ONESPIKE_TILE
#define ONESPIKE_TILE

#ifdef __AVX2__
#include <immintrin.h>
#endif

#ifdef _OPENMP
#include <omp.h>
#define THREAD omp_get_thread_num()
#else
#define THREAD 0
#endif

#define ROWS 6 /* with 16 columns the sums fill 12 of 16 vector registers */
#define COLUMNS 16
#define EACH_ROW(do) do(0) do(1) do(2) do(3) do(4) do(5)

#endif
