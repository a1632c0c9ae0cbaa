/* SPDX-License-Identifier: Apache-2.0 */
/* A pass of collect under way: shared by collect.c, judge.c and account.c, private to them. */
#ifndef HMB_PASS_H
#define HMB_PASS_H

#include <string.h>

#include "copy.h"
#include "core.h"
#include "record.h"

#define HMB_OVERFLOW_NOT_LOOKED 2 /* hmb_state.overflow_seen */
/* Event room that one step may need: a rejected record and a handful of notes. */
#define HMB_EVENT_SLACK 8192u

/* Cursors are ring cursors; buffer holds [start, copied). */
struct pass {
	const struct hmb_ring *ring;
	const struct hmb_options *options;
	struct hmb_sink *sink;
	struct hmb_state *state;
	uint8_t *buffer;
	uint64_t start;
	uint64_t copied;
	uint64_t window_end;
	uint64_t head;
	uint64_t cursor; /* next byte to judge */
	uint64_t run; /* good bytes since here are not yet moved to their place */
	uint64_t out; /* dump bytes that are in their place */
	uint64_t host_ns;
	struct hmb_event unwritten; /* where one goes that is only counted */
};

static inline uint64_t left_in_lap(const struct hmb_ring *ring, uint64_t cursor)
{
	return ring->ring_size - (cursor & (ring->ring_size - 1));
}

/* b is before or at a, in the order of wrapping cursors no further than a ring apart. */
static inline int reached(uint64_t a, uint64_t b)
{
	return (int64_t)(a - b) >= 0;
}

static inline const struct hmb_ring_hdr *ring_header(const struct hmb_ring *ring)
{
	return (const struct hmb_ring_hdr *)ring->base;
}

static inline void copy_ring(const struct hmb_ring *ring, void *to, uint64_t cursor, uint64_t n)
{
	const uint8_t *area = ring->base + HMB_RECORD_AREA_OFF;
	uint64_t offset = cursor & (ring->ring_size - 1);
	uint64_t first = HMB_MIN(n, ring->ring_size - offset);

	hmb_copy(to, area + offset, first);
	hmb_copy((uint8_t *)to + first, area, n - first);
}

static inline uint8_t *at(const struct pass *pass, uint64_t cursor)
{
	return pass->buffer + (cursor - pass->start);
}

static inline uint64_t event_room(const struct hmb_sink *sink)
{
	return sink->events_cap - sink->events_len;
}

/* ---- account.c ---- */

struct hmb_event *emit(struct pass *pass, uint16_t kind, uint64_t cursor, const void *bytes,
		       uint32_t length);
void account_record(struct pass *pass, const struct hmb_record_hdr *hdr);
void account_marker(struct pass *pass, uint32_t seq);
/* R12: a break that waits is told as it looks, unconfirmed. Needs room for two events. */
void settle_break(struct pass *pass);
void close_episode(struct pass *pass, uint64_t cursor, uint32_t first_after, uint64_t lost);
void expire_episode(struct pass *pass, uint32_t seq);
void observe_flags(struct pass *pass, uint32_t flags);
void observe_reserved(struct pass *pass);

/* ---- judge.c ---- */

int judge(struct pass *pass);
void reject(struct pass *pass, uint16_t reason, uint64_t n);

/* ---- collect.c ---- */

/*
 * hmb_collect() under a head that was loaded by acquire and is valid, while the
 * ring's tail is expected to be header_tail.
 */
int64_t hmb_collect_upto(const struct hmb_ring *ring, struct hmb_state *state,
			 const struct hmb_options *options, struct hmb_sink *sink, uint64_t head,
			 uint64_t header_tail);
/* Data room that hmb_collect_upto() keeps beyond what it takes from the ring. */
uint64_t hmb_collect_slack(void);
/* One event outside a pass. Needs room in the sink. */
struct hmb_event *hmb_note(struct hmb_state *state, struct hmb_sink *sink, uint16_t kind);
/* The same, with a copy of the state behind it. */
struct hmb_event *hmb_note_with_state(struct hmb_state *state, struct hmb_sink *sink,
				      uint16_t kind);

/* R12: nothing more comes for now; see settle_break(). */
void hmb_settle_break(struct hmb_state *state, struct hmb_sink *sink);

#endif
