// SPDX-License-Identifier: Apache-2.0
/*
 * Firmware that does it wrong, one fault at a time.  A fault waits for a place
 * where SPEC leaves one outcome only, so that the ledger can foretell the
 * consumer's counters.
 */
#include "hmb_producer_port.h"
#include "sim_core.h"

#define BAD_MAGIC 0xdeadbeefu
#define UNKNOWN_RECORD_FLAGS 0x84u /* bits 2 and 7 */
#define KNOWN_RECORD_FLAGS (HMB_REC_FLAG_WRAP_MARKER | HMB_REC_FLAG_TRUNCATED)
#define DIRTY_PAYLOAD_LEN 77u

/* Room for the spoilt record and two after it: none of them may be dropped. */
static int has_room_for_three(struct hmb_sim *sim, uint32_t need)
{
	uint64_t most = sim->max_need > need ? sim->max_need : need;

	return hmb_producer_fits(&sim->producer, 3 * most + 3 * HMB_RECORD_HDR_SIZE);
}

/*
 * Not across the lap's end, and the record's successor is a header that a
 * consumer looks at (R3 jumps over the last 31 bytes of a lap).
 */
static int place_is_plain(const struct hmb_sim *sim, uint64_t record, uint32_t need)
{
	uint64_t size = sim->producer.size;

	return (record & (size - 1)) + need + HMB_RECORD_HDR_SIZE <= size;
}

int sim_twist_fits(struct hmb_sim *sim, uint64_t record, uint32_t need)
{
	return sim->have_last && !sim->pending_drops && place_is_plain(sim, record, need) &&
	       has_room_for_three(sim, need);
}

static void happened(struct hmb_sim *sim, uint64_t cursor, uint32_t seq, uint64_t bytes)
{
	sim->fault.twist = HMB_SIM_NO_TWIST;
	sim->fault.cursor = cursor;
	sim->fault.seq = seq;
	sim->fault.bytes = bytes;
	sim->fault.record = sim->produced;
}

/* Faults of seq alone: the record stays good. */
void sim_twist_seq(struct hmb_sim *sim)
{
	struct hmb_producer *p = &sim->producer;

	if (!sim->have_last || sim->pending_drops)
		return;
	if (sim->fault.twist == HMB_SIM_DUPLICATE_SEQ) {
		p->seq = p->last_seq;
		sim->epoch.duplicates++;
	} else if (sim->fault.twist == HMB_SIM_BACKWARD_SEQ) {
		p->seq = p->last_seq - (uint32_t)sim->fault.argument;
		sim->epoch.sequence_resets++;
	} else {
		return;
	}
	happened(sim, p->head, p->seq, 0);
}

static void spoil(struct hmb_sim *sim, struct hmb_record_hdr *hdr)
{
	switch (sim->fault.twist) {
	case HMB_SIM_CORRUPT_MAGIC:
		hdr->magic = BAD_MAGIC;
		break;
	case HMB_SIM_OVERSIZE_LENGTH:
		hdr->payload_len = UINT16_MAX;
		break;
	case HMB_SIM_TORN_RECORD:
		hdr->magic = 0;
		hdr->seq = 0;
		break;
	case HMB_SIM_LYING_LENGTH:
		hdr->payload_len = (uint16_t)(((hdr->payload_len + 7) & ~7u) + 8);
		break;
	default:
		hdr->flags |= UNKNOWN_RECORD_FLAGS;
	}
}

static void count_damage(struct hmb_sim *sim, uint32_t need)
{
	sim->epoch.rejected_records++;
	sim->epoch.rejected_bytes += need;
	sim->epoch.resyncs++;
	sim->epoch.lying_lengths += sim->fault.twist == HMB_SIM_LYING_LENGTH;
}

int sim_count_unknown_flags(struct hmb_sim *sim, uint32_t need)
{
	if (!(sim->next.hdr.flags & ~KNOWN_RECORD_FLAGS))
		return 0;
	sim->epoch.unknown_flags++;
	if (sim->config.keep_unknown_flags)
		return 0;
	sim->epoch.rejected_records++;
	sim->epoch.rejected_bytes += need;
	return 1;
}

static int spoils_records(uint32_t twist)
{
	return twist >= HMB_SIM_CORRUPT_MAGIC && twist <= HMB_SIM_UNKNOWN_FLAGS;
}

int sim_twist_record(struct hmb_sim *sim, uint64_t record, uint32_t need)
{
	uint32_t twist = sim->fault.twist;
	int gone = 1;

	if (!spoils_records(twist) || !sim_twist_fits(sim, record, need))
		return 0;
	if (twist == HMB_SIM_LYING_LENGTH && need + 8 > SIM_MAX_RECORD)
		return 0;
	spoil(sim, (struct hmb_record_hdr *)sim_ring_at(sim, record));
	if (twist == HMB_SIM_UNKNOWN_FLAGS) {
		sim->next.hdr.flags |= UNKNOWN_RECORD_FLAGS;
		gone = sim_count_unknown_flags(sim, need);
	} else {
		count_damage(sim, need);
	}
	/* A lie is told once the record that it swallows is there too. */
	sim->hold = twist == HMB_SIM_LYING_LENGTH;
	happened(sim, record, sim->next.hdr.seq, need);
	return gone;
}

static void count_lost_marker(struct hmb_sim *sim, uint64_t left)
{
	if (left < HMB_RECORD_HDR_SIZE) {
		sim->epoch.plain_gaps++;
		return;
	}
	sim->epoch.resyncs++;
	sim->epoch.rejected_bytes += left;
}

int sim_twist_marker(struct hmb_sim *sim, uint64_t cursor, uint64_t left)
{
	struct hmb_record_hdr *marker = (void *)sim_ring_at(sim, cursor);
	uint64_t rejected = left < HMB_RECORD_HDR_SIZE ? 0 : left;

	if (!sim->have_last || sim->pending_drops)
		return 0;
	/* A partial marker that took a seq leaves a gap that is no loss: nobody could tell. */
	if (sim->fault.twist == HMB_SIM_DAMAGED_MARKER &&
	    (rejected || sim->config.wrap != HMB_SIM_WRAP_SEQ_MARKER)) {
		marker->magic = BAD_MAGIC;
		count_lost_marker(sim, left);
		happened(sim, cursor, marker->seq, rejected);
		return 1;
	}
	if (sim->fault.twist == HMB_SIM_DIRTY_MARKER && left >= HMB_RECORD_HDR_SIZE) {
		marker->payload_len = DIRTY_PAYLOAD_LEN;
		marker->flags |= UNKNOWN_RECORD_FLAGS;
		sim->epoch.markers_cleaned++;
		sim->epoch.rejected_bytes += HMB_RECORD_HDR_SIZE; /* as it was */
		happened(sim, cursor, marker->seq, HMB_RECORD_HDR_SIZE);
	}
	return 0;
}

void hmb_sim_twist(struct hmb_sim *sim, uint32_t twist, uint64_t argument)
{
	sim->fault = (struct sim_fault){ .twist = twist, .argument = argument };
}

int hmb_sim_twist_pending(const struct hmb_sim *sim)
{
	return sim->fault.twist != HMB_SIM_NO_TWIST;
}

void hmb_sim_last_fault(const struct hmb_sim *sim, uint64_t *cursor, uint32_t *seq, uint64_t *bytes,
			uint64_t *record)
{
	*cursor = sim->fault.cursor;
	*seq = sim->fault.seq;
	*bytes = sim->fault.bytes;
	*record = sim->fault.record;
}

void hmb_sim_drop(struct hmb_sim *sim, uint64_t records)
{
	for (uint64_t i = 0; i < records; i++)
		hmb_producer_drop(&sim->producer);
	sim->pending_drops += records;
}

void hmb_sim_set_flags(struct hmb_sim *sim, uint32_t set, uint32_t clear)
{
	hmb_producer_set_flags(&sim->producer, set, clear);
}

void hmb_sim_shift_clock(struct hmb_sim *sim, int64_t by_ns)
{
	sim->clock.shift_ns += by_ns;
}

/* Random bytes that hold no record magic where a consumer would look for one. */
static void write_garbage(struct hmb_sim *sim, uint64_t cursor, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i += 8) {
		uint64_t word = sim_random(&sim->random);

		if ((uint32_t)word == HMB_RECORD_MAGIC)
			word ^= 1;
		memcpy(sim_ring_at(sim, cursor + i), &word, 8);
	}
}

static int garbage_fits(struct hmb_sim *sim, uint64_t bytes)
{
	struct hmb_producer *p = &sim->producer;
	uint64_t end = (p->head + bytes) & (p->size - 1);

	return sim->have_last && !sim->pending_drops && !sim->hold &&
	       hmb_producer_left(p) >= HMB_RECORD_HDR_SIZE &&
	       p->size - end >= HMB_RECORD_HDR_SIZE &&
	       hmb_producer_fits(p, bytes + 2 * sim->max_need + 2 * HMB_RECORD_HDR_SIZE);
}

int hmb_sim_garbage(struct hmb_sim *sim, uint64_t bytes)
{
	struct hmb_producer *p = &sim->producer;

	if (!garbage_fits(sim, bytes))
		return -EAGAIN;
	write_garbage(sim, p->head, bytes);
	sim->epoch.resyncs++;
	sim->epoch.rejected_bytes += bytes;
	happened(sim, p->head, p->seq, bytes);
	p->head += bytes;
	sim_log_state(sim);
	hmb_producer_publish(p);
	return 0;
}

void hmb_sim_reset(struct hmb_sim *sim, uint32_t version)
{
	struct hmb_producer *p = &sim->producer;
	uint32_t keep_seq = p->drops_keep_seq;

	sim_next_epoch(sim);
	hmb_producer_init(p, p->hdr, (uint32_t)p->size, 0, 0);
	p->drops_keep_seq = keep_seq;
	if (version != HMB_TRACE_ABI_VERSION)
		hmb_port_store32(&p->hdr->version, version);
	sim->clock.shift_ns = (int64_t)(sim->config.start_ts_ns - sim->clock.now_ns);
}

uint64_t hmb_sim_discard(struct hmb_sim *sim)
{
	struct sim_log *log = &sim->log;
	uint64_t tail = hmb_port_load_acquire64(&sim->producer.hdr->tail);
	uint64_t before = sim->epoch.records;
	uint64_t oldest = log->count > log->capacity ? log->count - log->capacity : 0;

	for (uint64_t i = log->count; i > oldest; i--) {
		const struct sim_log_entry *entry = &log->entries[(i - 1) % log->capacity];

		if ((int64_t)(tail - entry->end) < 0)
			continue;
		sim->epoch = entry->counts;
		sim->fnv_total = entry->fnv_total;
		return before - sim->epoch.records;
	}
	return 0;
}

void hmb_sim_move_head(struct hmb_sim *sim, int64_t by, uint32_t go_on)
{
	struct hmb_producer *p = &sim->producer;

	if (go_on) {
		sim_next_epoch(sim);
		p->head += (uint64_t)by;
		by = 0;
	}
	hmb_port_store_release64(&p->hdr->head, p->head + (uint64_t)by);
}

uint64_t hmb_sim_overrun(struct hmb_sim *sim, uint64_t bytes)
{
	struct hmb_producer *p = &sim->producer;
	uint64_t start = p->head;
	uint64_t records = 0;

	while (p->head - start < bytes && (sim->have_next || !sim_next(sim))) {
		p->tail = p->head; /* as if all had been read */
		sim->have_next = 0;
		sim->produced++;
		records += sim_publish_next(sim) == SIM_PUBLISHED;
	}
	p->tail = hmb_port_load_acquire64(&p->hdr->tail);
	return records;
}
