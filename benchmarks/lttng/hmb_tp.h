/* SPDX-License-Identifier: Apache-2.0 */
/* One event of the size of our small records: 16 bytes of payload. */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER hmb
#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "./hmb_tp.h"
#if !defined(HMB_TP_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define HMB_TP_H
#include <lttng/tracepoint.h>
#include <stdint.h>

LTTNG_UST_TRACEPOINT_EVENT(
	hmb, record, LTTNG_UST_TP_ARGS(uint64_t, lba, uint32_t, length, uint32_t, tag),
	LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(uint64_t, lba, lba)
				    lttng_ust_field_integer(uint32_t, length, length)
					    lttng_ust_field_integer(uint32_t, tag, tag)))
#endif
#include <lttng/tracepoint-event.h>
