/* SPDX-License-Identifier: Apache-2.0 */
/* What the C tests share: checks that say where, and a small producer of rings. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "expect.h"

#define CHECK_EQUAL(found, expected)                                                        \
	do {                                                                                \
		uint64_t found_ = (uint64_t)(found), expected_ = (uint64_t)(expected);      \
		if (found_ != expected_) {                                                  \
			fprintf(stderr, "%s:%d: %s: found %llu, expected %llu\n", __FILE__, \
				__LINE__, #found, (unsigned long long)found_,               \
				(unsigned long long)expected_);                             \
			abort();                                                            \
		}                                                                           \
	} while (0)

/* A ring region of exactly the right size, so that a byte beyond it is an error. */
static inline void *check_region(uint32_t ring_size, uint64_t cursor)
{
	uint64_t size = HMB_RECORD_AREA_OFF + (uint64_t)ring_size;
	struct hmb_ring_hdr *hdr = calloc(1, size);

	CHECK(hdr != NULL);
	hdr->magic = HMB_RING_MAGIC;
	hdr->version = HMB_TRACE_ABI_VERSION;
	hdr->ring_size = ring_size;
	hdr->record_area_off = HMB_RECORD_AREA_OFF;
	hdr->head = hdr->tail = cursor;
	return hdr;
}

static inline struct hmb_ring check_attach(void *region)
{
	uint32_t ring_size = ((struct hmb_ring_hdr *)region)->ring_size;
	struct hmb_refusal refusal;
	struct hmb_ring ring;

	CHECK_EQUAL(
		hmb_ring_attach(&ring, region, HMB_RECORD_AREA_OFF + (uint64_t)ring_size, &refusal),
		0);
	return ring;
}

static inline struct hmb_record_hdr check_header(uint32_t seq, uint64_t ts_ns, uint16_t payload_len)
{
	return (struct hmb_record_hdr){
		.magic = HMB_RECORD_MAGIC, .seq = seq, .ts_ns = ts_ns, .payload_len = payload_len
	};
}

#endif
