// SPDX-License-Identifier: Apache-2.0
/*
 * The next record into the ring, in three styles that readers of the format
 * could have built (R3).  Space check, marker and publish are the firmware's.
 */
#include "sim_core.h"

#define FETCH_AHEAD 2048u /* bytes: some twenty records */

uint8_t *sim_ring_at(const struct hmb_sim *sim, uint64_t cursor)
{
	return sim->producer.area + (cursor & (sim->producer.size - 1));
}

/* Bytes from here to the lap's end that this record must leave out. */
static uint64_t skip_for(const struct hmb_sim *sim, uint32_t need)
{
	uint64_t left = hmb_producer_left(&sim->producer);
	uint32_t guarded = sim->config.wrap == HMB_SIM_WRAP_STRADDLE ? HMB_RECORD_HDR_SIZE : need;

	return left < guarded ? left : 0;
}

/* As hmb_producer_has_room(), where only the header is guarded. */
static int has_room_straddling(struct hmb_sim *sim, uint32_t need)
{
	struct hmb_producer *p = &sim->producer;

	if (skip_for(sim, need) + need > p->size && hmb_producer_fits(p, hmb_producer_left(p))) {
		hmb_producer_wrap(p, p->last_seq, sim->next.hdr.ts_ns);
		sim_show(sim);
	}
	return hmb_producer_fits(p, skip_for(sim, need) + need);
}

static int has_room(struct hmb_sim *sim, uint32_t need)
{
	if (sim->config.wrap == HMB_SIM_WRAP_STRADDLE)
		return has_room_straddling(sim, need);
	return hmb_producer_has_room(&sim->producer, sim->next.hdr.ts_ns,
				     sim->next.hdr.payload_len);
}

static void note_marker(struct hmb_sim *sim, uint64_t cursor, uint64_t left)
{
	if (!sim_twist_marker(sim, cursor, left))
		sim_count_marker(sim, sim_ring_at(sim, cursor), left);
}

/* A ring smaller than two records: the marker went out alone. */
static void note_marker_ahead(struct hmb_sim *sim, uint64_t before, uint64_t left)
{
	if (sim->producer.head != before)
		sim_count_marker(sim, sim_ring_at(sim, before), left);
}

static void wrap(struct hmb_sim *sim)
{
	struct hmb_producer *p = &sim->producer;
	uint64_t before = p->head;
	uint64_t left = hmb_producer_left(p);

	hmb_producer_wrap(p, p->seq, sim->next.hdr.ts_ns);
	if (sim->config.wrap == HMB_SIM_WRAP_SEQ_MARKER)
		p->seq++;
	note_marker(sim, before, left);
}

static void write_around(struct hmb_sim *sim, uint64_t cursor, const void *bytes, uint64_t n)
{
	uint64_t left = sim->producer.size - (cursor & (sim->producer.size - 1));
	uint64_t first = n < left ? n : left;

	memcpy(sim_ring_at(sim, cursor), bytes, first);
	memcpy(sim->producer.area, (const uint8_t *)bytes + first, n - first);
}

static void place_straddling(struct hmb_sim *sim, uint32_t need)
{
	struct hmb_producer *p = &sim->producer;

	p->record = p->head;
	p->need = need;
	write_around(sim, p->record, &sim->next, need);
}

#if defined(__x86_64__)
/*
 * A device's writes wait for nobody.  Ours wait for cache lines that the consumer
 * has just read: have them back by the time they are written.
 */
static void fetch_ahead(const struct hmb_sim *sim, uint32_t need)
{
	for (uint32_t i = 0; i < need; i += 64)
		__asm__ volatile("prefetchw %0" ::"m"(
			*sim_ring_at(sim, sim->producer.head + FETCH_AHEAD + i)));
}
#else
static void fetch_ahead(const struct hmb_sim *sim, uint32_t need)
{
	(void)sim;
	(void)need;
}
#endif

static void place_contiguous(struct hmb_sim *sim, uint32_t need)
{
	const struct hmb_record_hdr *hdr = &sim->next.hdr;
	void *payload = hmb_producer_begin(&sim->producer, hdr->ts_ns, hdr->opcode, hdr->cpu,
					   hdr->flags, hdr->payload_len);

	memcpy(payload, sim->next.payload, need - HMB_RECORD_HDR_SIZE);
}

void sim_show(struct hmb_sim *sim)
{
	if (sim->hold)
		return;
	sim_shadow(sim);
	hmb_producer_publish(&sim->producer);
}

static void finish(struct hmb_sim *sim, uint32_t need)
{
	struct hmb_producer *p = &sim->producer;
	int straddles = (p->record & (p->size - 1)) + need > p->size;
	int spoilt = sim_count_unknown_flags(sim, need);

	hmb_producer_end(p);
	sim_count_drops(sim);
	if (!spoilt && sim->fault.twist)
		spoilt = sim_twist_record(sim, p->record, need);
	if (!spoilt) {
		sim->hold = 0;
		sim_count_record(sim, &sim->next, straddles);
		sim->have_last = 1;
	}
	sim->published++;
	sim_log_state(sim);
	sim_show(sim);
}

static enum sim_outcome no_room(struct hmb_sim *sim)
{
	if (sim->config.block) {
		sim->blocked = 1;
		return SIM_BLOCKED;
	}
	hmb_producer_drop(&sim->producer);
	sim->pending_drops++;
	return SIM_DROPPED;
}

static void place(struct hmb_sim *sim, uint32_t need)
{
	if (skip_for(sim, need))
		wrap(sim);
	else if (sim->fault.twist)
		sim_twist_seq(sim);
	sim->next.hdr.seq = sim->producer.seq;
	fetch_ahead(sim, need);
	if (sim->config.wrap == HMB_SIM_WRAP_STRADDLE)
		place_straddling(sim, need);
	else
		place_contiguous(sim, need);
}

enum sim_outcome sim_publish_next(struct hmb_sim *sim)
{
	uint32_t need = sim_record_size(sim->next.hdr.payload_len);
	uint64_t before = sim->producer.head;
	uint64_t left = hmb_producer_left(&sim->producer);
	int room = has_room(sim, need);

	note_marker_ahead(sim, before, left);
	if (!room)
		return no_room(sim);
	sim->blocked = 0;
	if (need > sim->max_need)
		sim->max_need = need;
	place(sim, need);
	finish(sim, need);
	return SIM_PUBLISHED;
}
