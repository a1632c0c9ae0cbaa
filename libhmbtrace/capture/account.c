// SPDX-License-Identifier: Apache-2.0
/* What a pass accounts for: events, the sequence (SPEC R12), overflow episodes and flags (R5). */
#include <string.h>

#include "clock.h"
#include "core.h"
#include "pass.h"
#include "sequence.h"

#define KNOWN_RING_FLAGS (HMB_RING_FLAG_OVERFLOWED | HMB_RING_FLAG_FROZEN)
/* Gaps, duplicates and resets written one by one between two index events. */
#define MAX_ANOMALIES 4096u
/* The largest record and a lap end before it. */
#define ROOM_FOR_ANY 8192u

/* ---- events ---- */

static uint64_t host_now(struct pass *pass)
{
	if (!pass->host_ns)
		pass->host_ns = realtime_ns();
	return pass->host_ns;
}

/* Dump position of the bytes at a cursor that was not passed over. */
static uint64_t dump_pos(const struct pass *pass, uint64_t cursor)
{
	return pass->state->pos + pass->out + (cursor - pass->run);
}

/* Room was checked before the step: no event may be dropped for lack of it. */
struct hmb_event *emit(struct pass *pass, uint16_t kind, uint64_t cursor, const void *bytes,
		       uint32_t length)
{
	struct hmb_sink *sink = pass->sink;
	struct hmb_event *event = (struct hmb_event *)(sink->events + sink->events_len);
	uint8_t *payload = (uint8_t *)(event + 1);

	*event = (struct hmb_event){
		.magic = HMB_EVENT_MAGIC,
		.kind = kind,
		.length = length,
		.epoch = pass->state->epoch,
		.pos = dump_pos(pass, cursor),
		.cursor = cursor,
		.host_ns = host_now(pass),
		.ts_ns = pass->state->last_ts_ns,
		.seq = pass->state->last_seq,
	};
	memset(payload + length, 0, hmb_align8(length) - length);
	memcpy(payload, bytes ? bytes : (const void *)"", length);
	sink->events_len += sizeof(*event) + hmb_align8(length);
	return event;
}

/* Where an event belongs that is written later than what it is about. */
static void place(struct hmb_event *event, const struct hmb_pending_break *pending)
{
	event->pos = pending->pos;
	event->cursor = pending->cursor;
	event->ts_ns = pending->ts_ns;
	event->host_ns = pending->host_ns;
}

/* Events that a broken producer could cause per record: all are counted, not all are written. */
static struct hmb_event *emit_anomaly(struct pass *pass, uint16_t kind, uint16_t reason, uint64_t a,
				      uint64_t b)
{
	struct hmb_state *state = pass->state;
	struct hmb_event *event;

	if (pass->options && pass->options->index_bytes && state->anomalies >= MAX_ANOMALIES) {
		state->counters.events_suppressed++;
		return &pass->unwritten;
	}
	state->anomalies++;
	event = emit(pass, kind, pass->cursor, NULL, 0);
	event->reason = reason;
	event->a = a;
	event->b = b;
	return event;
}

/* ---- how full the ring was ---- */

/*
 * How much of the ring may have been unread when firmware wrote at cursor: since it had that
 * place before it, tail was never behind what it was at a look that saw less.
 */
static uint64_t most_unread(const struct pass *pass, uint64_t cursor)
{
	for (int i = 0; i < 2; i++)
		if (!reached(pass->state->look[i].head, cursor))
			return cursor - pass->state->look[i].tail;
	return pass->ring->ring_size;
}

/* R5: whether what is missing before cursor may have found the ring full. */
static uint8_t gap_reason(const struct pass *pass, uint64_t cursor)
{
	uint64_t size = pass->ring->ring_size, room = HMB_MIN(ROOM_FOR_ANY, size / 4);

	if (pass->state->episode_open || most_unread(pass, cursor) + room > size)
		return HMB_GAP_OVERFLOW;
	return HMB_GAP_SKIPPED;
}

/* ---- sequence (R12) and overflow episodes (R5) ---- */

void close_episode(struct pass *pass, uint64_t cursor, uint32_t first_after, uint64_t lost)
{
	struct hmb_state *state = pass->state;
	struct hmb_event *event = emit(pass, HMB_EV_OVERFLOW_END, cursor, NULL, 0);

	event->a = state->episode_seq;
	event->b = first_after;
	event->c = lost;
	state->episode_open = 0;
	if (!lost)
		state->counters.unknown_losses++;
}

static void count_gap(struct pass *pass, uint64_t lost, uint64_t rejected)
{
	struct hmb_counters *counters = &pass->state->counters;

	counters->rejected_records += rejected;
	counters->lost += lost;
	counters->gaps += lost != 0;
}

static void tell_gap(struct pass *pass, const struct hmb_pending_break *found, uint16_t flags)
{
	uint32_t missing =
		hmb_missing_records(&found->markers_before, found->seq_before, found->seq);
	uint64_t rejected = HMB_MIN(missing, found->rejected_bytes / HMB_RECORD_HDR_SIZE);
	uint64_t lost = missing - rejected;
	uint16_t reason = lost ? found->reason : HMB_GAP_REJECTS;
	struct hmb_event *event =
		emit_anomaly(pass, HMB_EV_GAP, reason | flags, found->seq_before, found->seq);

	place(event, found);
	event->c = lost;
	event->d = rejected;
	count_gap(pass, lost, rejected);
	if (lost && found->in_episode && pass->state->episode_open) {
		close_episode(pass, pass->cursor, found->seq, lost);
		event = (struct hmb_event *)(pass->sink->events + pass->sink->events_len) - 1;
		place(event, found);
	}
}

/* A break is what it looks like. */
static void tell_break(struct pass *pass, const struct hmb_pending_break *found, uint16_t flags)
{
	struct hmb_counters *counters = &pass->state->counters;
	uint16_t kind = HMB_EV_SEQ_RESET;

	if (hmb_seq_ahead(found->seq_before, found->seq)) {
		tell_gap(pass, found, flags);
		return;
	}
	if (found->seq == found->seq_before)
		kind = HMB_EV_DUPLICATE;
	counters->duplicates += kind == HMB_EV_DUPLICATE;
	counters->sequence_resets += kind == HMB_EV_SEQ_RESET;
	place(emit_anomaly(pass, kind, flags, found->seq_before, found->seq), found);
}

void settle_break(struct pass *pass)
{
	struct hmb_pending_break *pending = &pass->state->pending;

	if (pending->state != HMB_PENDING_WAITS)
		return;
	tell_break(pass, pending, HMB_UNCONFIRMED);
	pending->state = HMB_PENDING_TOLD;
}

/* What is missing between the records around a glitch, beyond it, lies in the rejects. */
static void tell_glitch(struct pass *pass, const struct hmb_pending_break *found,
			const struct hmb_record_hdr *hdr, uint64_t beyond)
{
	struct hmb_event *event;

	pass->state->counters.seq_glitches++;
	event = emit_anomaly(pass, HMB_EV_SEQ_GLITCH, 0, found->seq_before, found->seq);
	place(event, found);
	if (!beyond || found->state == HMB_PENDING_TOLD)
		return;
	event = emit_anomaly(pass, HMB_EV_GAP, HMB_GAP_REJECTS, found->seq_before, hdr->seq);
	event->ts_ns = hdr->ts_ns;
	event->d = beyond;
	count_gap(pass, 0, beyond);
}

/* The record that a pending break has waited for: 1 if only the record before it was wrong. */
static int answer_pending(struct pass *pass, const struct hmb_record_hdr *hdr)
{
	struct hmb_state *state = pass->state;
	struct hmb_pending_break found = state->pending;
	struct hmb_seq_question question = { .p = found.seq_before,
					     .a = found.seq,
					     .b = hdr->seq,
					     .rejected_before = found.rejected_bytes,
					     .rejected_after = state->damaged_bytes,
					     .before = &found.markers_before,
					     .after = &state->markers,
					     .all = &found.markers };
	enum hmb_seq_answer answer = hmb_seq_answer(&question);

	state->pending.state = HMB_PENDING_NONE;
	if (answer == HMB_SEQ_GLITCH)
		tell_glitch(pass, &found, hdr, (uint64_t)hmb_seq_beyond(&question));
	else if (found.state == HMB_PENDING_WAITS)
		tell_break(pass, &found, answer == HMB_SEQ_EITHER ? HMB_UNCONFIRMED : 0);
	return answer == HMB_SEQ_GLITCH;
}

static void begin_break(struct pass *pass, const struct hmb_record_hdr *hdr)
{
	struct hmb_state *state = pass->state;

	state->pending = (struct hmb_pending_break){
		.pos = dump_pos(pass, pass->cursor),
		.cursor = pass->cursor,
		.ts_ns = hdr->ts_ns,
		.host_ns = host_now(pass),
		.rejected_bytes = state->damaged_bytes,
		.seq_before = state->last_seq,
		.seq = hdr->seq,
		.markers_before = state->markers,
		.markers = state->markers,
		.state = HMB_PENDING_WAITS,
		.reason = gap_reason(pass, pass->cursor),
		.in_episode = state->episode_open,
	};
}

/* R12: a record's seq against the last one. */
void account_record(struct pass *pass, const struct hmb_record_hdr *hdr)
{
	struct hmb_state *state = pass->state;
	int settled = state->pending.state && answer_pending(pass, hdr);

	if (!settled && state->have_seq &&
	    !hmb_seq_follows(&state->markers, state->last_seq, hdr->seq))
		begin_break(pass, hdr);
	state->last_seq = hdr->seq;
	state->have_seq = 1;
	state->markers.seen = 0;
	state->damaged_bytes = 0;
}

/* R3.4: what a marker's seq means shows with the next record. */
void account_marker(struct pass *pass, uint32_t seq)
{
	struct hmb_state *state = pass->state;

	if (state->have_seq)
		hmb_remember_marker(&state->markers, state->last_seq, seq);
	if (state->pending.state)
		hmb_remember_marker(&state->pending.markers, state->pending.seq_before, seq);
}

/* R5: records dropped without a seq leave an episode that no gap explains. */
void expire_episode(struct pass *pass, uint32_t seq)
{
	struct hmb_state *state = pass->state;

	if (state->episode_open && state->pending.state != HMB_PENDING_WAITS &&
	    reached(pass->cursor, state->episode_head))
		close_episode(pass, pass->cursor, seq, 0);
}

/* ---- what the ring header says ---- */

static void open_episode(struct pass *pass)
{
	struct hmb_state *state = pass->state;
	struct hmb_event *event;

	if (state->pending.in_episode)
		settle_break(pass);
	if (state->episode_open)
		close_episode(pass, pass->cursor, 0, 0);
	event = emit(pass, HMB_EV_OVERFLOW, pass->cursor, NULL, 0);
	event->a = state->last_seq;
	event->b = state->have_seq;
	state->counters.overflow_episodes++;
	state->episode_open = 1;
	state->episode_seq = state->last_seq;
	state->episode_head = pass->head;
}

void observe_flags(struct pass *pass, uint32_t flags)
{
	struct hmb_state *state = pass->state;
	uint32_t unknown = flags & ~KNOWN_RING_FLAGS & ~state->ring_flags_logged;
	uint8_t overflowed = !!(flags & HMB_RING_FLAG_OVERFLOWED);

	if (unknown) {
		emit(pass, HMB_EV_UNKNOWN_RING_FLAGS, pass->cursor, NULL, 0)->a = unknown;
		state->ring_flags_logged |= unknown;
	}
	if (overflowed && state->overflow_seen == HMB_OVERFLOW_NOT_LOOKED) {
		emit(pass, HMB_EV_LOSS_BEFORE, pass->cursor, NULL, 0);
		state->counters.unknown_losses++;
	} else if (overflowed && !state->overflow_seen) {
		open_episode(pass);
	}
	state->overflow_seen = overflowed;
}

void observe_reserved(struct pass *pass)
{
	const struct hmb_ring_hdr *hdr = ring_header(pass->ring);
	uint64_t value[4] = { hdr->reserved0, hdr->reserved1, hdr->reserved2, hdr->reserved3 };

	for (uint32_t i = 0; i < 4; i++) {
		struct hmb_event *event;

		if (!value[i] || pass->state->reserved_logged & (1u << i))
			continue;
		event = emit(pass, HMB_EV_RESERVED_SET, pass->cursor, NULL, 0);
		event->a = i;
		event->b = value[i];
		pass->state->reserved_logged |= 1u << i;
	}
}
