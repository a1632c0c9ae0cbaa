// SPDX-License-Identifier: Apache-2.0
/* Dump bytes to columns, sequence breaks and histograms: one pass (SPEC R8, R12, R13). */
#include <string.h>

#include "core.h"
#include "record.h"
#include "sequence.h"

/* The break before is taken back, a gap in its place, and a new break. */
#define BREAKS_A_RECORD 3u

static int log2_bucket(uint64_t value)
{
	return value ? 64 - __builtin_clzll(value) : 0;
}

static void report(struct hmb_breaks *breaks, const struct hmb_walk_pending *found)
{
	if (!breaks)
		return;
	breaks->item[breaks->len++] = (struct hmb_break){
		.offset = found->offset,
		.ts_ns = found->ts_ns,
		.lost = found->lost,
		.seq_before = found->seq_before,
		.seq_after = found->seq,
		.kind = found->kind,
	};
}

/* Count a break, or with -1 take it back. */
static void count_break(struct hmb_walk *walk, const struct hmb_walk_pending *found, int64_t by)
{
	walk->gaps += found->kind == HMB_EV_GAP ? by : 0;
	walk->lost += found->lost * (uint64_t)by;
	walk->duplicates += found->kind == HMB_EV_DUPLICATE ? by : 0;
	walk->sequence_resets += found->kind == HMB_EV_SEQ_RESET ? by : 0;
}

static struct hmb_walk_pending break_at(const struct hmb_walk *walk,
					const struct hmb_record_hdr *hdr, uint32_t seq_before,
					uint32_t kind, uint64_t lost)
{
	return (struct hmb_walk_pending){ .offset = walk->offset,
					  .ts_ns = hdr->ts_ns,
					  .lost = lost,
					  .seq_before = seq_before,
					  .seq = hdr->seq,
					  .kind = kind };
}

/* The record does not follow from the last one: so it counts, until the next one denies it. */
static void begin_break(struct hmb_walk *walk, const struct hmb_record_hdr *hdr,
			struct hmb_breaks *breaks)
{
	uint32_t kind = HMB_EV_SEQ_RESET;
	uint64_t lost = 0;

	if (hmb_seq_ahead(walk->last_seq, hdr->seq)) {
		kind = HMB_EV_GAP;
		lost = hmb_missing_records(&walk->markers, walk->last_seq, hdr->seq);
	} else if (hdr->seq == walk->last_seq) {
		kind = HMB_EV_DUPLICATE;
	}
	walk->pending = break_at(walk, hdr, walk->last_seq, kind, lost);
	walk->pending.markers_before = walk->pending.markers = walk->markers;
	count_break(walk, &walk->pending, 1);
	report(breaks, &walk->pending);
}

/* R12: take the break back that was none; what is missing beyond the wrong seq is a gap. */
static void take_back(struct hmb_walk *walk, const struct hmb_record_hdr *hdr,
		      struct hmb_breaks *breaks, uint64_t beyond)
{
	struct hmb_walk_pending glitch = walk->pending, gap;

	count_break(walk, &glitch, -1);
	walk->seq_glitches++;
	glitch.kind = HMB_EV_SEQ_GLITCH;
	glitch.lost = 0;
	if (breaks && breaks->len && breaks->item[breaks->len - 1].offset == glitch.offset)
		breaks->len--;
	report(breaks, &glitch);
	if (!beyond)
		return;
	gap = break_at(walk, hdr, glitch.seq_before, HMB_EV_GAP, beyond);
	count_break(walk, &gap, 1);
	report(breaks, &gap);
}

/* The record behind a break: 1 if it follows from the one before the break, and not from it. */
static int answer_pending(struct hmb_walk *walk, const struct hmb_record_hdr *hdr,
			  struct hmb_breaks *breaks)
{
	struct hmb_seq_question question = { .p = walk->pending.seq_before,
					     .a = walk->pending.seq,
					     .b = hdr->seq,
					     .rejected_somewhere = walk->rejected_bytes,
					     .before = &walk->pending.markers_before,
					     .after = &walk->markers,
					     .all = &walk->pending.markers };
	int is_glitch = hmb_seq_answer(&question) == HMB_SEQ_GLITCH;

	if (is_glitch)
		take_back(walk, hdr, breaks, (uint64_t)hmb_seq_beyond(&question));
	walk->pending.kind = 0;
	return is_glitch;
}

static void record_seq(struct hmb_walk *walk, const struct hmb_record_hdr *hdr,
		       struct hmb_breaks *breaks)
{
	int settled = walk->pending.kind && answer_pending(walk, hdr, breaks);

	if (!walk->records)
		walk->first_seq = hdr->seq;
	if (!settled && walk->have_seq &&
	    !hmb_seq_follows(&walk->markers, walk->last_seq, hdr->seq))
		begin_break(walk, hdr, breaks);
	walk->have_seq = 1;
	walk->last_seq = hdr->seq;
	walk->markers.seen = 0;
}

static void count_flags(struct hmb_walk *walk, uint8_t flags)
{
	walk->truncated += !!(flags & HMB_REC_FLAG_TRUNCATED);
	walk->unknown_flags += !!(flags & ~HMB_KNOWN_RECORD_FLAGS);
}

static void record_time(struct hmb_walk *walk, uint64_t ts_ns, const struct hmb_tally *tally)
{
	if (!walk->records) {
		walk->first_ts_ns = ts_ns;
		walk->min_ts_ns = ts_ns;
		walk->max_ts_ns = ts_ns;
	} else if (hmb_time_went_back(walk->last_ts_ns, ts_ns)) {
		walk->clock_steps_back++;
		walk->min_ts_ns = HMB_MIN(walk->min_ts_ns, ts_ns);
		walk->max_ts_ns = HMB_MAX(walk->max_ts_ns, ts_ns);
	} else {
		walk->max_ts_ns = HMB_MAX(walk->max_ts_ns, ts_ns);
		if (tally)
			tally->interval_log2[log2_bucket(ts_ns - walk->last_ts_ns)]++;
	}
	walk->last_ts_ns = ts_ns;
}

static void count_record(const struct hmb_tally *tally, const struct hmb_record_hdr *hdr)
{
	tally->opcode_records[hdr->opcode]++;
	tally->opcode_bytes[hdr->opcode] += hdr->payload_len;
	tally->cpu_records[hdr->cpu]++;
	tally->payload_log2[log2_bucket(hdr->payload_len)]++;
}

static void fill_row(struct hmb_columns *columns, const struct hmb_record_hdr *hdr, uint64_t offset,
		     uint16_t payload_len)
{
	uint64_t row = columns->len++;

	columns->offset[row] = offset;
	columns->ts_ns[row] = hdr->ts_ns;
	columns->seq[row] = hdr->seq;
	columns->opcode[row] = hdr->opcode;
	columns->payload_len[row] = payload_len;
	columns->cpu[row] = hdr->cpu;
	columns->flags[row] = hdr->flags;
}

/* The size of the whole record that hdr begins, or 0 and *end says why there is none. */
static uint64_t whole_record(const struct hmb_record_hdr *hdr, uint64_t left,
			     enum hmb_walk_end *end)
{
	uint64_t size = HMB_RECORD_HDR_SIZE;

	if (hdr->magic != HMB_RECORD_MAGIC) {
		*end = HMB_WALK_BAD_MAGIC;
		return 0;
	}
	if (hmb_is_marker(hdr))
		return size;
	if (hdr->payload_len > HMB_RECORD_MAX_PAYLOAD) {
		*end = HMB_WALK_BAD_LENGTH;
		return 0;
	}
	size = hmb_record_span(hdr);
	if (size > left) {
		*end = HMB_WALK_SHORT_PAYLOAD;
		return 0;
	}
	return size;
}

static void take_marker(struct hmb_walk *walk, const struct hmb_record_hdr *hdr,
			struct hmb_columns *columns)
{
	walk->wrap_markers++;
	if (walk->have_seq)
		hmb_remember_marker(&walk->markers, walk->last_seq, hdr->seq);
	if (walk->pending.kind)
		hmb_remember_marker(&walk->pending.markers, walk->pending.seq_before, hdr->seq);
	if (columns && columns->with_markers)
		fill_row(columns, hdr, walk->offset, 0);
}

static inline void take_record(struct hmb_walk *walk, const struct hmb_record_hdr *hdr,
			       struct hmb_columns *columns, struct hmb_breaks *breaks,
			       const struct hmb_tally *tally)
{
	if (walk->have_seq && !(walk->markers.seen | walk->pending.kind) &&
	    hdr->seq == walk->last_seq + 1)
		walk->last_seq = hdr->seq;
	else
		record_seq(walk, hdr, breaks);
	if (hdr->flags)
		count_flags(walk, hdr->flags);
	record_time(walk, hdr->ts_ns, tally);
	if (tally)
		count_record(tally, hdr);
	if (columns)
		fill_row(columns, hdr, walk->offset, hdr->payload_len);
	walk->records++;
	walk->payload_bytes += hdr->payload_len;
	walk->last_record_seq = hdr->seq;
}

static int is_full(const struct hmb_columns *columns, const struct hmb_breaks *breaks)
{
	return (columns && columns->len == columns->cap) ||
	       (breaks && breaks->cap - breaks->len < BREAKS_A_RECORD);
}

/* Inlined into each caller below, so that the unused parts of the loop body fall away. */
static inline __attribute__((always_inline)) enum hmb_walk_end
walk_loop(struct hmb_walk *walk, const uint8_t *data, uint64_t n, struct hmb_columns *columns,
	  struct hmb_breaks *breaks, const struct hmb_tally *tally)
{
	enum hmb_walk_end end = HMB_WALK_DONE;
	uint64_t pos = 0;

	while (pos < n) {
		struct hmb_record_hdr hdr;
		uint64_t size;

		if (is_full(columns, breaks))
			return HMB_WALK_FULL;
		if (n - pos < HMB_RECORD_HDR_SIZE)
			return HMB_WALK_SHORT_HEADER;
		memcpy(&hdr, data + pos, sizeof(hdr)); /* a .pccx payload begins anywhere */
		size = whole_record(&hdr, n - pos, &end);
		if (!size)
			return end;
		if (hmb_is_marker(&hdr))
			take_marker(walk, &hdr, columns);
		else
			take_record(walk, &hdr, columns, breaks, tally);
		pos += size;
		walk->offset += size;
	}
	return end;
}

int hmb_walk(struct hmb_walk *walk, const uint8_t *data, uint64_t n, struct hmb_columns *columns,
	     struct hmb_breaks *breaks, const struct hmb_tally *tally)
{
	struct hmb_walk local = *walk; /* data may alias *walk, but not this */
	struct hmb_columns rows = columns ? *columns : (struct hmb_columns){ 0 };
	enum hmb_walk_end end;

	if (columns && !tally)
		end = walk_loop(&local, data, n, &rows, breaks, NULL);
	else if (!columns)
		end = walk_loop(&local, data, n, NULL, breaks, tally);
	else
		end = walk_loop(&local, data, n, &rows, breaks, tally);
	*walk = local;
	if (columns)
		*columns = rows;
	return end;
}
