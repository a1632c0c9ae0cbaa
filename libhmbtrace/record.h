/* SPDX-License-Identifier: Apache-2.0 */
/* How long a record is and which flags it may have (SPEC R4, R10): the same for rings and dumps. */
#ifndef HMB_RECORD_H
#define HMB_RECORD_H

#include "core.h"

#define HMB_KNOWN_RECORD_FLAGS (HMB_REC_FLAG_WRAP_MARKER | HMB_REC_FLAG_TRUNCATED)

/* Bit 0 decides before the length is looked at (R4). */
static inline int hmb_is_marker(const struct hmb_record_hdr *hdr)
{
	return hdr->flags & HMB_REC_FLAG_WRAP_MARKER;
}

/* Of a record that is none of the markers: header, payload and padding. */
static inline uint64_t hmb_record_span(const struct hmb_record_hdr *hdr)
{
	return HMB_RECORD_HDR_SIZE + hmb_align8(hdr->payload_len);
}

/* Bytes in a dump, where a marker is its header alone. */
static inline uint64_t hmb_dumped_span(const struct hmb_record_hdr *hdr)
{
	return hmb_is_marker(hdr) ? HMB_RECORD_HDR_SIZE : hmb_record_span(hdr);
}

#endif
