/* SPDX-License-Identifier: Apache-2.0 */
/* api.h for C: the includes that it must not have itself, and constants. */
#ifndef HMB_CORE_H
#define HMB_CORE_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include <linux/hmb_trace.h>

#include "api.h"

#define HMB_EVENT_MAGIC 0x56454D48u /* "HMEV" in memory order */

#define HMB_MIN(a, b) ((a) < (b) ? (a) : (b))
#define HMB_MAX(a, b) ((a) > (b) ? (a) : (b))

static inline uint64_t hmb_align8(uint64_t n)
{
	return (n + 7) & ~(uint64_t)7;
}

_Static_assert(sizeof(struct hmb_event) == 96, "the journal's event header is 96 bytes");

#endif
