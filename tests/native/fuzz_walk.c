// SPDX-License-Identifier: Apache-2.0
/*
 * libFuzzer: any file whatsoever as a dump.  The walk must stay inside it, and
 * must give the same answer in one piece, in two, and with columns so small
 * that they fill up.
 */
#include "check.h"

enum { FEW = 3 };

static int walk_in_steps(struct hmb_walk *walk, const uint8_t *data, uint64_t n)
{
	uint64_t offset[FEW], ts_ns[FEW];
	uint32_t seq[FEW];
	uint16_t opcode[FEW], length[FEW];
	uint8_t cpu[FEW], flags[FEW];
	struct hmb_columns columns = { .offset = offset,
				       .ts_ns = ts_ns,
				       .seq = seq,
				       .opcode = opcode,
				       .payload_len = length,
				       .cpu = cpu,
				       .flags = flags,
				       .cap = FEW };
	int end = HMB_WALK_FULL;

	while (end == HMB_WALK_FULL) {
		columns.len = 0;
		end = hmb_walk(walk, data + walk->offset, n - walk->offset, &columns, NULL, NULL);
		CHECK(columns.len <= FEW);
		for (uint64_t i = 0; i < columns.len; i++)
			CHECK(offset[i] + sizeof(struct hmb_record_hdr) + length[i] <=
			      walk->offset);
	}
	return end;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct hmb_walk whole = { 0 }, steps = { 0 };
	uint8_t *exact = malloc(n + !n); /* of its own, so that one byte beyond is an error */

	memcpy(exact, data, n);
	CHECK_EQUAL(hmb_walk(&whole, exact, n, NULL, NULL, NULL), walk_in_steps(&steps, exact, n));
	CHECK(whole.offset <= n);
	CHECK(memcmp(&whole, &steps, sizeof(whole)) == 0);
	free(exact);
	return 0;
}
