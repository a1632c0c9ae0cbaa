// SPDX-License-Identifier: Apache-2.0
/* The ledger: what a dump of this ring must hold (SPEC R4, R11, R12). */
#include "sim_core.h"

#define FNV_BASIS 0xcbf29ce484222325u
#define FNV_PRIME 0x00000100000001b3u

/* The definition, byte by byte: an oracle must not share code with what it checks. */
static uint64_t fnv1a(const uint8_t *byte, uint64_t n, uint64_t state)
{
	for (uint64_t i = 0; i < n; i++)
		state = (state ^ byte[i]) * FNV_PRIME;
	return state;
}

void sim_counts_begin(struct hmb_sim_counts *counts)
{
	*counts = (struct hmb_sim_counts){ .fnv64 = FNV_BASIS };
}

static void hash(struct hmb_sim *sim, const void *bytes, uint64_t n)
{
	if (!sim->config.hash)
		return;
	sim->epoch.fnv64 = fnv1a(bytes, n, sim->epoch.fnv64);
	/* In the first epoch both are the same. */
	sim->fnv_total = sim->epoch_number ? fnv1a(bytes, n, sim->fnv_total) : sim->epoch.fnv64;
}

/* Drops become visible when a record follows them, if one came before them. */
void sim_count_drops(struct hmb_sim *sim)
{
	if (!sim->pending_drops)
		return;
	if (sim->have_last) {
		sim->epoch.dropped += sim->pending_drops;
		sim->epoch.drop_gaps += !sim->config.drops_keep_seq;
	} else {
		sim->epoch.dropped_unseen += sim->pending_drops;
	}
	sim->pending_drops = 0;
}

void sim_count_record(struct hmb_sim *sim, const struct sim_record *record, int straddles)
{
	struct hmb_sim_counts *counts = &sim->epoch;
	uint32_t size = sim_record_size(record->hdr.payload_len);

	if (!counts->records) {
		counts->first_seq = record->hdr.seq;
		counts->first_ts_ns = record->hdr.ts_ns;
	}
	counts->records++;
	counts->bytes += size;
	counts->straddled += straddles;
	counts->truncated += !!(record->hdr.flags & HMB_REC_FLAG_TRUNCATED);
	counts->last_seq = record->hdr.seq;
	counts->last_ts_ns = record->hdr.ts_ns;
	sim->seen_ts_ns = record->hdr.ts_ns;
	hash(sim, record, size);
}

/* R4: a marker of 8, 16 or 24 bytes is completed; its time may be the record's before it. */
static void count_partial(struct hmb_sim *sim, const struct hmb_record_hdr *marker, uint64_t left)
{
	struct hmb_record_hdr whole = { .magic = marker->magic,
					.seq = marker->seq,
					.ts_ns = left > 8 ? marker->ts_ns : sim->seen_ts_ns,
					.flags = HMB_REC_FLAG_WRAP_MARKER };

	sim->epoch.partial_markers++;
	sim->epoch.bytes += sizeof(whole);
	sim->seen_ts_ns = whole.ts_ns;
	hash(sim, &whole, sizeof(whole));
}

static void count_whole(struct hmb_sim *sim, struct hmb_record_hdr *marker)
{
	marker->payload_len = 0;
	marker->flags &= HMB_REC_FLAG_WRAP_MARKER | HMB_REC_FLAG_TRUNCATED;
	sim->epoch.markers++;
	sim->epoch.bytes += sizeof(*marker);
	sim->seen_ts_ns = marker->ts_ns;
	hash(sim, marker, sizeof(*marker));
}

void sim_count_marker(struct hmb_sim *sim, const uint8_t *at, uint64_t left)
{
	struct hmb_record_hdr marker = { 0 };

	memcpy(&marker, at, left < sizeof(marker) ? left : sizeof(marker));
	if (left < sizeof(marker))
		count_partial(sim, &marker, left);
	else
		count_whole(sim, &marker);
}

int sim_log_begin(struct hmb_sim *sim)
{
	free(sim->log.entries);
	sim->log = (struct sim_log){ 0 };
	if (!sim->config.keep_log)
		return 0;
	/* Every record that can be unread, and the one before them. */
	sim->log.capacity = sim->config.ring_size / HMB_RECORD_HDR_SIZE + 2;
	sim->log.entries = calloc(sim->log.capacity, sizeof(*sim->log.entries));
	return sim->log.entries ? 0 : -ENOMEM;
}

void sim_log_state(struct hmb_sim *sim)
{
	struct sim_log *log = &sim->log;

	if (!log->capacity)
		return;
	log->entries[log->count++ % log->capacity] =
		(struct sim_log_entry){ .end = sim->producer.head,
					.fnv_total = sim->fnv_total,
					.seen_ts_ns = sim->seen_ts_ns,
					.counts = sim->epoch };
}

/* Everything but the ends of the range and the hash is a plain sum. */
static void add(struct hmb_sim_counts *to, const struct hmb_sim_counts *counts)
{
	uint64_t *sum = (uint64_t *)to;
	const uint64_t *term = (const uint64_t *)counts;
	const size_t sums = offsetof(struct hmb_sim_counts, first_ts_ns) / sizeof(*sum);
	const size_t fnv = offsetof(struct hmb_sim_counts, fnv64) / sizeof(*sum);
	int first = !to->records;

	for (size_t i = 0; i < sums; i++)
		sum[i] += i == fnv ? 0 : term[i];
	if (!counts->records)
		return;
	if (first) {
		to->first_seq = counts->first_seq;
		to->first_ts_ns = counts->first_ts_ns;
	}
	to->last_seq = counts->last_seq;
	to->last_ts_ns = counts->last_ts_ns;
}

void hmb_sim_close_epoch(struct hmb_sim *sim)
{
	if (sim->hold) {
		sim->hold = 0;
		sim_show(sim);
	}
	sim->epoch.dropped_unseen += sim->pending_drops;
	sim->pending_drops = 0;
}

void hmb_sim_epoch(const struct hmb_sim *sim, struct hmb_sim_counts *counts)
{
	*counts = sim->epoch;
}

void hmb_sim_total(const struct hmb_sim *sim, struct hmb_sim_counts *counts)
{
	*counts = sim->closed;
	add(counts, &sim->epoch);
	counts->fnv64 = sim->fnv_total;
}

void sim_next_epoch(struct hmb_sim *sim)
{
	hmb_sim_close_epoch(sim);
	add(&sim->closed, &sim->epoch);
	sim_counts_begin(&sim->epoch);
	sim->epoch_number++;
	sim->have_last = 0;
	sim->seen_ts_ns = 0;
	sim->log.count = 0;
}
