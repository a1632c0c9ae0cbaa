// SPDX-License-Identifier: Apache-2.0
/* The books of a pass: events, the sequence (SPEC R12), overflow episodes and flags (R5). */
#include <string.h>
#include <time.h>

#include "core.h"
#include "pass.h"
#include "sequence.h"

#define KNOWN_RING_FLAGS (HMB_RING_FLAG_OVERFLOWED | HMB_RING_FLAG_FROZEN)
/* Gaps, duplicates and resets written one by one between two index events. */
#define MAX_ANOMALIES 4096u
#define NOT_LOOKED 2

/* ---- events ---- */

static uint64_t host_now(struct pass *pass)
{
	struct timespec now;

	if (!pass->host_ns) {
		clock_gettime(CLOCK_REALTIME, &now);
		pass->host_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	}
	return pass->host_ns;
}

/* Dump position of the bytes at a cursor that was not passed over. */
static uint64_t dump_pos(const struct pass *pass, uint64_t cursor)
{
	return pass->state->pos + pass->out + (cursor - pass->run);
}

/* Room was checked before the step: an event may be lost to nothing. */
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

/* Events that a broken producer could cause per record: all are counted, not all are written. */
static void emit_anomaly(struct pass *pass, uint16_t kind, uint64_t ts_ns, const uint64_t value[4])
{
	struct hmb_state *state = pass->state;
	struct hmb_event *event;

	if (pass->options->index_bytes && state->anomalies >= MAX_ANOMALIES) {
		state->counters.events_suppressed++;
		return;
	}
	state->anomalies++;
	event = emit(pass, kind, pass->cursor, NULL, 0);
	event->ts_ns = ts_ns;
	event->a = value[0];
	event->b = value[1];
	event->c = value[2];
	event->d = value[3];
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

static void count_missing(struct pass *pass, const struct hmb_record_hdr *after, uint32_t missing)
{
	struct hmb_state *state = pass->state;
	uint32_t seq = after->seq;
	uint64_t rejected = HMB_MIN(missing, state->damaged_bytes / HMB_RECORD_HDR_SIZE);
	uint64_t lost = missing - rejected;
	uint64_t value[4] = { state->last_seq, seq, lost, rejected };

	if (!missing)
		return;
	state->counters.rejected_records += rejected;
	state->counters.lost += lost;
	if (lost)
		state->counters.gaps++;
	emit_anomaly(pass, HMB_EV_GAP, after->ts_ns, value);
	if (state->episode_open && lost)
		close_episode(pass, pass->cursor, seq, lost);
}

/* R12: a record's seq against the last one. */
void account_record(struct pass *pass, const struct hmb_record_hdr *hdr)
{
	struct hmb_state *state = pass->state;
	uint32_t seq = hdr->seq;
	uint32_t ahead = seq - state->last_seq;
	uint64_t value[4] = { state->last_seq, seq, 0, 0 };

	if (state->have_seq) {
		if (ahead == 0) {
			state->counters.duplicates++;
			emit_anomaly(pass, HMB_EV_DUPLICATE, hdr->ts_ns, value);
		} else if (ahead >= HMB_HALF_SEQ) {
			state->counters.sequence_resets++;
			emit_anomaly(pass, HMB_EV_SEQ_RESET, hdr->ts_ns, value);
		} else {
			count_missing(pass, hdr,
				      hmb_missing_records(&state->markers, state->last_seq, seq));
		}
	}
	state->last_seq = seq;
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
}

/* R5: records dropped without a seq leave an episode that no gap explains. */
void expire_episode(struct pass *pass, uint32_t seq)
{
	struct hmb_state *state = pass->state;

	if (state->episode_open && reached(pass->cursor, state->episode_head))
		close_episode(pass, pass->cursor, seq, 0);
}

/* ---- what the ring header says ---- */

static void open_episode(struct pass *pass)
{
	struct hmb_state *state = pass->state;
	struct hmb_event *event;

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
	if (overflowed && state->overflow_seen == NOT_LOOKED) {
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
