// SPDX-License-Identifier: Apache-2.0
/* From records to arrays of one payload field, and to other dumps. */
#include <string.h>

#include "core.h"
#include "record.h"

/* Widths known at compile time become single loads and stores. */
#define GATHER(width)                                                                        \
	do {                                                                                 \
		for (uint64_t i = 0; i < n; i++)                                             \
			memcpy(out + i * (width), data + (offsets[i] - base + at), (width)); \
	} while (0)

void hmb_gather(const uint8_t *data, uint64_t base, const uint64_t *offsets, uint64_t n,
		uint32_t at, uint32_t width, uint8_t *out)
{
	switch (width) {
	case 1:
		GATHER(1);
		break;
	case 2:
		GATHER(2);
		break;
	case 4:
		GATHER(4);
		break;
	case 8:
		GATHER(8);
		break;
	default:
		GATHER((uint64_t)width);
	}
}

static uint64_t record_size(const uint8_t *record)
{
	struct hmb_record_hdr hdr;

	memcpy(&hdr, record, sizeof(hdr)); /* a .pccx payload begins anywhere */
	return hmb_dumped_span(&hdr);
}

uint64_t hmb_copy_records(const uint8_t *data, uint64_t base, const uint64_t *offsets, uint64_t n,
			  uint8_t *out)
{
	uint64_t used = 0;

	for (uint64_t i = 0; i < n; i++) {
		const uint8_t *record = data + (offsets[i] - base);
		uint64_t size = record_size(record);

		memcpy(out + used, record, size);
		used += size;
	}
	return used;
}

void hmb_gather_payloads(const uint8_t *data, uint64_t base, const uint64_t *offsets,
			 const uint16_t *lengths, uint64_t n, uint8_t *out, int32_t *ends)
{
	uint64_t used = 0;

	for (uint64_t i = 0; i < n; i++) {
		memcpy(out + used, data + (offsets[i] - base) + HMB_RECORD_HDR_SIZE, lengths[i]);
		used += lengths[i];
		ends[i] = (int32_t)used;
	}
}
