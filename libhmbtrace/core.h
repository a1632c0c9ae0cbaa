/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface of libhmbtrace for C.  No preprocessor line may stand in api/: cffi reads the
 * very text that C compiles (api_text.c), so their includes are here, and their order.
 *
 * Every function that can fail returns a negative errno.  Cursors, positions and sizes are
 * bytes; times are nanoseconds.
 */
#ifndef HMB_CORE_H
#define HMB_CORE_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include <linux/hmb_trace.h>

/* clang-format off: each needs the ones before it */
#include "api/layout.h"
#include "api/ring.h"
#include "api/journal.h"
#include "api/collect.h"
#include "api/spool.h"
#include "api/collector.h"
#include "api/dump.h"
#include "api/render.h"
#include "api/fnv.h"
#include "api/pairing.h"
#include "api/pccx.h"
/* clang-format on */

#define HMB_EVENT_MAGIC 0x56454D48u /* "HMEV" in memory order */

#define HMB_MIN(a, b) ((a) < (b) ? (a) : (b))
#define HMB_MAX(a, b) ((a) > (b) ? (a) : (b))

static inline uint64_t hmb_align8(uint64_t n)
{
	return (n + 7) & ~(uint64_t)7;
}

_Static_assert(sizeof(struct hmb_event) == 96, "the journal's event header is 96 bytes");

#endif
