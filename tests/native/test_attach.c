// SPDX-License-Identifier: Apache-2.0
/* R1: what is refused, in which order, with which words; and nothing is written. */
#include "check.h"

static void expect(const struct hmb_ring_hdr *hdr, uint64_t size, enum hmb_field field,
		   uint64_t found, uint64_t expected)
{
	struct hmb_refusal refusal;
	struct hmb_ring ring;
	struct hmb_ring_hdr *copy = malloc(size);

	CHECK(copy != NULL);
	memcpy(copy, hdr, HMB_MIN(size, sizeof(*hdr)));
	CHECK_EQUAL(hmb_ring_attach(&ring, copy, size, &refusal), field ? -EINVAL : 0);
	CHECK_EQUAL(refusal.field, field);
	CHECK_EQUAL(refusal.found, found);
	CHECK_EQUAL(refusal.expected, expected);
	CHECK(memcmp(copy, hdr, HMB_MIN(size, sizeof(*hdr))) == 0);
	free(copy);
}

int main(void)
{
	const struct hmb_ring_hdr good = { .magic = HMB_RING_MAGIC,
					   .version = HMB_TRACE_ABI_VERSION,
					   .ring_size = 4096,
					   .record_area_off = HMB_RECORD_AREA_OFF };
	struct hmb_ring_hdr bad = good;

	expect(&good, 64 + 4096, HMB_FIELD_NONE, 0, 0);
	expect(&good, 64 + 4095, HMB_FIELD_REGION, 64 + 4095, 64 + 4096);
	expect(&good, 63, HMB_FIELD_REGION, 63, 64);
	bad.record_area_off = 0x80;
	expect(&bad, 8192, HMB_FIELD_RECORD_AREA_OFF, 0x80, 0x40);
	bad.ring_size = 16;
	expect(&bad, 8192, HMB_FIELD_RING_SIZE, 16, 32);
	bad.ring_size = 4097;
	expect(&bad, 8192, HMB_FIELD_RING_SIZE, 4097, 32);
	bad.ring_size = 0;
	expect(&bad, 8192, HMB_FIELD_RING_SIZE, 0, 32);
	bad.version = 2;
	expect(&bad, 8192, HMB_FIELD_VERSION, 2, 1);
	bad.version = 0;
	expect(&bad, 8192, HMB_FIELD_VERSION, 0, 1);
	bad.magic = 0x544D4248;
	expect(&bad, 8192, HMB_FIELD_MAGIC, 0x544D4248, HMB_RING_MAGIC);
	/* A ring at the largest size that the header can name is refused by arithmetic, not by luck. */
	bad = good;
	bad.ring_size = 0x80000000u;
	expect(&bad, 8192, HMB_FIELD_REGION, 8192, 64 + 0x80000000ull);
	return 0;
}
