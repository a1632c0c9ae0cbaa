// SPDX-License-Identifier: Apache-2.0
/*
 * Ends a process inside the core, from outside: preloaded, it fills the library's test points.
 * HMB_TRACE_TEST_KILL=collector-STEP[:N] is SIGKILL at that step of the N-th commit.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "testpoint.h"

static const char *const names[] = {
	[HMB_TESTPOINT_BEFORE_COPY] = "before-copy",
	[HMB_TESTPOINT_BEFORE_COMMIT] = "before-commit",
	[HMB_TESTPOINT_INSIDE_COMMIT] = "inside-commit",
	[HMB_TESTPOINT_AFTER_COMMIT] = "after-commit",
	[HMB_TESTPOINT_AFTER_TAIL] = "after-tail",
};

static enum hmb_testpoint kill_at;
static long kill_after;

__attribute__((constructor)) static void read_environment(void)
{
	const char *value = getenv("HMB_TRACE_TEST_KILL"), *count;
	size_t length;

	if (!value || strncmp(value, "collector-", 10) != 0)
		return;
	value += 10;
	length = strcspn(value, ":");
	count = value + length;
	kill_after = *count ? strtol(count + 1, NULL, 10) : 1;
	for (size_t i = 1; i < sizeof(names) / sizeof(names[0]); i++)
		if (strlen(names[i]) == length && strncmp(names[i], value, length) == 0)
			kill_at = (enum hmb_testpoint)i;
}

void hmb_testpoint(enum hmb_testpoint point)
{
	if (point == kill_at && kill_after == 1)
		raise(SIGKILL);
	if (point == HMB_TESTPOINT_AFTER_TAIL && kill_after > 1)
		kill_after--;
}
