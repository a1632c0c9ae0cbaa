// SPDX-License-Identifier: Apache-2.0
/* Emits argv[1] events as fast as LTTng-UST takes them; prints the seconds that took. */
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "hmb_tp.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv)
{
	unsigned long count = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000000;
	struct timespec begin, end;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (unsigned long i = 0; i < count; i++)
		lttng_ust_tracepoint(hmb, record, i * 8, 4096, (uint32_t)i);
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("%.6f\n",
	       (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9);
	return 0;
}
