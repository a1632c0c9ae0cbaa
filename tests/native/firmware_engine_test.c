// SPDX-License-Identifier: Apache-2.0
/*
 * The simulator's engine under ASan and UBSan: every source, wrap style and
 * fault, in rings so small that everything happens at an edge.  The region is
 * a heap block of exactly the ring's size.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expect.h"
#include "sim_core.h"

static const struct hmb_sim_field fields[] = {
	{ .offset = 0, .size = 8, .kind = HMB_SIM_FIELD_RANDOM, .max = UINT64_MAX },
	{ .offset = 8, .size = 2, .kind = HMB_SIM_FIELD_KEY, .max = 9 },
	{ .offset = 10, .size = 1, .kind = HMB_SIM_FIELD_SKEWED, .min = 3, .max = 200 },
	{ .offset = 11, .size = 4, .kind = HMB_SIM_FIELD_FLOAT, .max = 1 },
	{ .offset = 15, .size = 9, .kind = HMB_SIM_FIELD_TEXT },
	{ .offset = 0, .size = 2, .kind = HMB_SIM_FIELD_KEY },
	{ .offset = 2, .size = 8, .kind = HMB_SIM_FIELD_ELAPSED },
	{ .offset = 10, .size = 8, .kind = HMB_SIM_FIELD_FLOAT, .max = 1 },
	{ .offset = 18, .size = 2, .kind = HMB_SIM_FIELD_COUNTER, .min = 7, .max = 9 },
};

static const struct hmb_sim_event events[] = {
	{ .opcode = 1, .cpus = 4, .weight = 1, .payload_max = 4064, .end = -1 },
	{ .opcode = 2,
	  .cpus = 0,
	  .weight = 1,
	  .payload_min = 24,
	  .payload_max = 24,
	  .fields = 5,
	  .end = 2,
	  .duration_min = 0,
	  .duration_max = 5000 },
	{ .opcode = 3,
	  .cpus = 1,
	  .payload_min = 20,
	  .payload_max = 31,
	  .first_field = 5,
	  .fields = 4,
	  .end = -1,
	  .flags = HMB_REC_FLAG_TRUNCATED },
	{ .opcode = 4, .cpus = 1, .weight = 1, .payload_max = 60, .end = -1 },
};

static struct hmb_sim_config small(uint8_t *base, uint32_t source, uint32_t wrap)
{
	return (struct hmb_sim_config){ .base = base,
					.events = events,
					.event_count = 4,
					.fields = fields,
					.field_count = 9,
					.ring_size = 16384,
					.start_cursor = 0xffffffffffff8000u,
					.start_seq = 0xffffff80u,
					.seed = 42,
					.gap_ns = 100,
					.source = source,
					.wrap = wrap,
					.hash = 1,
					.keep_log = 1 };
}

static void drain(uint8_t *base)
{
	struct hmb_ring_hdr *hdr = (struct hmb_ring_hdr *)base;

	hdr->tail = hdr->head;
}

static void go(struct hmb_sim *sim, uint8_t *base, uint64_t records)
{
	struct hmb_sim_stats stats;
	uint64_t until;

	hmb_sim_stats(sim, &stats);
	until = stats.produced + records;
	while (hmb_sim_run(sim, until, 100000) == HMB_SIM_SLICE)
		drain(base);
	drain(base);
}

static void twist_all(struct hmb_sim *sim, uint8_t *base)
{
	for (uint32_t twist = HMB_SIM_CORRUPT_MAGIC; twist <= HMB_SIM_DIRTY_MARKER; twist++) {
		hmb_sim_twist(sim, twist, 10);
		for (int i = 0; i < 200 && hmb_sim_twist_pending(sim); i++)
			go(sim, base, 1);
	}
	hmb_sim_twist(sim, HMB_SIM_NO_TWIST, 0);
}

static void other_faults(struct hmb_sim *sim, uint8_t *base)
{
	for (int i = 0; i < 100 && hmb_sim_garbage(sim, 2000); i++)
		go(sim, base, 1);
	hmb_sim_drop(sim, 3);
	hmb_sim_set_flags(sim, HMB_RING_FLAG_FROZEN, 0);
	hmb_sim_shift_clock(sim, -5000000);
	go(sim, base, 100);
	hmb_sim_move_head(sim, -64, 0);
	hmb_sim_move_head(sim, 0, 0);
	hmb_sim_move_head(sim, 4 * 16384, 1);
	go(sim, base, 100);
	CHECK(hmb_sim_overrun(sim, 20000) > 0);
	go(sim, base, 100);
	hmb_sim_run(sim, UINT64_MAX, 1000000);
	hmb_sim_discard(sim);
	hmb_sim_reset(sim, 1);
	go(sim, base, 100);
}

static void check_source(uint32_t source, uint32_t wrap, uint32_t block)
{
	uint8_t *base = calloc(1, HMB_RECORD_AREA_OFF + 16384);
	struct hmb_sim_config config = small(base, source, wrap);
	struct hmb_sim_counts counts;
	struct hmb_sim *sim;

	config.block = block;
	sim = hmb_sim_new(&config);
	CHECK(sim != NULL);
	go(sim, base, 3000);
	twist_all(sim, base);
	other_faults(sim, base);
	hmb_sim_close_epoch(sim);
	hmb_sim_total(sim, &counts);
	CHECK(counts.records > 100 && counts.bytes > 32 * counts.records);
	hmb_sim_free(sim);
	free(base);
}

/* A dump that is cut, or no dump, ends the replay; nothing behind it is read. */
static void check_replay(void)
{
	uint8_t *base = calloc(1, HMB_RECORD_AREA_OFF + 16384);
	struct hmb_record_hdr hdr = { .magic = HMB_RECORD_MAGIC, .seq = 5, .payload_len = 8 };

	for (uint32_t cut = 0; cut <= 80; cut++) {
		struct hmb_sim_config config = small(base, HMB_SIM_REPLAY, HMB_SIM_WRAP_MARKER);
		uint8_t *dump = malloc(cut ? cut : 1);
		uint8_t whole[80] = { 0 };
		struct hmb_sim_counts counts;
		struct hmb_sim *sim;

		memcpy(whole, &hdr, sizeof(hdr));
		memcpy(whole + 40, &hdr, sizeof(hdr));
		memcpy(dump, whole, cut);
		config.replay = dump;
		config.replay_size = cut;
		sim = hmb_sim_new(&config);
		CHECK(hmb_sim_run(sim, UINT64_MAX, 1000000000) == HMB_SIM_END);
		hmb_sim_total(sim, &counts);
		CHECK(counts.records == cut / 40);
		hmb_sim_free(sim);
		free(dump);
	}
	free(base);
}

static void check_refusals(void)
{
	uint8_t *base = calloc(1, HMB_RECORD_AREA_OFF + 16384);
	struct hmb_sim_config config = small(base, HMB_SIM_TABLE, HMB_SIM_WRAP_MARKER);

	config.ring_size = 1000;
	CHECK(hmb_sim_new(&config) == NULL);
	config.ring_size = 16384;
	config.start_cursor = 4;
	CHECK(hmb_sim_new(&config) == NULL);
	config.start_cursor = 0;
	config.event_count = 0;
	CHECK(hmb_sim_new(&config) == NULL);
	free(base);
}

int main(void)
{
	for (uint32_t wrap = HMB_SIM_WRAP_MARKER; wrap <= HMB_SIM_WRAP_SEQ_MARKER; wrap++) {
		for (uint32_t block = 0; block < 2; block++) {
			check_source(HMB_SIM_TABLE, wrap, block);
			check_source(HMB_SIM_FTL, wrap, block);
		}
	}
	check_replay();
	check_refusals();
	return 0;
}
