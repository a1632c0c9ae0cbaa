// SPDX-License-Identifier: Apache-2.0
/*
 * Ring bytes to dump bytes, one pass at a time (SPEC R6, R7).
 *
 * A pass copies a window of the ring into the sink, looks at head again, and
 * only then judges the private copy: the device may change ring memory under
 * us at any time.  A window never goes beyond the lap's end, except for the
 * rest of a record that straddles it; head is looked at once more for that.
 */
#include <string.h>

#include "barrier.h"
#include "core.h"
#include "pass.h"

/* Data room beyond the window: the rest of a last record, or a completed marker. */
#define DATA_SLACK 8192u
#define MIN_WINDOW 8192u

/* R6: the header is still the one that we attached to, with our tail in it. */
static int header_is_ours(const struct hmb_ring *ring, uint64_t tail)
{
	const struct hmb_ring_hdr *hdr = ring_header(ring);

	return __atomic_load_n(&hdr->magic, __ATOMIC_RELAXED) == HMB_RING_MAGIC &&
	       __atomic_load_n(&hdr->ring_size, __ATOMIC_RELAXED) == ring->ring_size &&
	       __atomic_load_n(&hdr->tail, __ATOMIC_RELAXED) == tail;
}

/* How much to take at once: what is there, up to the lap's end, with room kept for its rejects. */
static uint64_t choose_window(const struct pass *pass)
{
	uint64_t data_room = pass->sink->data_cap - pass->sink->data_len - DATA_SLACK;
	uint64_t room = HMB_MIN(data_room, event_room(pass->sink) - 2 * HMB_EVENT_SLACK);
	uint64_t window = HMB_MIN(pass->head - pass->start, left_in_lap(pass->ring, pass->start));

	return HMB_MIN(window, room & ~(uint64_t)(HMB_RECORD_ALIGN - 1));
}

/* R7: all of the window may have been overwritten while it was copied. */
static void quarantine(struct pass *pass)
{
	pass->state->counters.overruns++;
	pass->state->resync = HMB_REJECT_DAMAGED;
	pass->state->damaged_bytes += pass->copied - pass->start;
	emit(pass, HMB_EV_OVERRUN, pass->cursor, NULL, 0)->a = pass->head;
	reject(pass, HMB_REJECT_OVERRUN, pass->copied - pass->start);
}

static void note_index(struct pass *pass)
{
	struct hmb_state *state = pass->state;

	/* No mark where a file may end behind a record that still waits for its account (R12). */
	if (!pass->options->index_bytes || state->pending.state == HMB_PENDING_WAITS ||
	    state->pos - state->index_pos < pass->options->index_bytes)
		return;
	state->index_pos = state->pos;
	state->anomalies = 0;
	state->clock_events = 0;
	pass->out = 0;
	pass->run = pass->cursor;
	emit(pass, HMB_EV_INDEX, pass->cursor, state, sizeof(*state));
}

/* A head is worth remembering once what it had published is drained: see most_unread(). */
static void note_look(struct pass *pass)
{
	struct hmb_look *look = pass->state->look;

	if (!reached(pass->cursor, look[0].head))
		return;
	look[1] = look[0];
	look[0] = (struct hmb_look){ .head = pass->head, .tail = pass->start };
}

/* The pass's dump bytes become the stream's. */
static void finish(struct pass *pass)
{
	struct hmb_state *state = pass->state;

	note_look(pass);
	pass->sink->data_len += pass->out;
	state->pos += pass->out;
	state->tail = pass->cursor;
	state->counters.bytes += pass->out;
	state->counters.ring_bytes += pass->cursor - pass->start;
	note_index(pass);
}

static void copy_window(struct pass *pass)
{
	uint64_t window = choose_window(pass);

	copy_ring(pass->ring, pass->buffer, pass->start, window);
	pass->copied = pass->start + window;
	pass->window_end = pass->copied;
}

/* R6, R7, after reading the ring: 1 when it may have been overwritten meanwhile, or -ESTALE. */
static int look_again(const struct pass *pass, uint64_t header_tail, uint64_t *head)
{
	/* Pairs with the firmware's barrier B': what it overwrote, it announced by head first. */
	*head = hmb_load_after_copy(&ring_header(pass->ring)->head);
	if (!header_is_ours(pass->ring, header_tail) || !reached(*head, pass->head))
		return -ESTALE;
	return *head - pass->start > pass->ring->ring_size;
}

/*
 * Judge the copy, then look again: a straddled record's rest and successors
 * beyond the window were read while judging.  1: overrun, all of it undone.
 */
static int judge_safely(struct pass *pass, uint64_t header_tail, uint64_t *head)
{
	struct hmb_state before = *pass->state;
	uint64_t events_len = pass->sink->events_len;
	int err = judge(pass);
	int again = look_again(pass, header_tail, head);

	if (again <= 0)
		return again < 0 ? again : err;
	*pass->state = before;
	pass->sink->events_len = events_len;
	pass->cursor = pass->start;
	pass->run = pass->start;
	pass->out = 0;
	copy_window(pass);
	return 1;
}

/* Take a window of the ring: 0, or -errno with nothing taken. */
static int take_window(struct pass *pass, uint64_t header_tail)
{
	uint64_t head;
	int result;

	copy_window(pass);
	result = look_again(pass, header_tail, &head);
	if (!result)
		result = judge_safely(pass, header_tail, &head);
	if (result <= 0)
		return result;
	pass->head = head;
	quarantine(pass);
	return 0;
}

int64_t hmb_collect_upto(const struct hmb_ring *ring, struct hmb_state *state,
			 const struct hmb_options *options, struct hmb_sink *sink, uint64_t head,
			 uint64_t header_tail)
{
	struct pass pass = { .ring = ring,
			     .options = options,
			     .sink = sink,
			     .state = state,
			     .buffer = sink->data + sink->data_len,
			     .start = state->tail,
			     .cursor = state->tail,
			     .run = state->tail,
			     .copied = state->tail,
			     .head = head };
	int err;

	observe_flags(&pass, __atomic_load_n(&ring_header(ring)->flags, __ATOMIC_RELAXED));
	observe_reserved(&pass);
	if (head == state->tail)
		return 0;
	err = take_window(&pass, header_tail);
	if (err)
		return err;
	finish(&pass);
	return (int64_t)(pass.cursor - pass.start);
}

static int check_before_pass(const struct hmb_ring *ring, const struct hmb_state *state,
			     const struct hmb_sink *sink, uint64_t head)
{
	if (!header_is_ours(ring, state->tail))
		return -ESTALE;
	if (!hmb_cursors_valid(head, state->tail, ring->ring_size))
		return -EILSEQ;
	if (sink->data_cap - sink->data_len < hmb_collect_min_data() ||
	    event_room(sink) < hmb_collect_min_events())
		return -ENOSPC;
	return 0;
}

int64_t hmb_collect(const struct hmb_ring *ring, struct hmb_state *state,
		    const struct hmb_options *options, struct hmb_sink *sink, uint64_t *head_seen)
{
	/* Pairs with the firmware's barrier A': the bytes below head are there. */
	uint64_t head = hmb_load_acquire(&ring_header(ring)->head);
	uint64_t events_len = sink->events_len;
	struct hmb_state before = *state;
	int64_t result = check_before_pass(ring, state, sink, head);

	if (head_seen)
		*head_seen = head;
	if (!result)
		result = hmb_collect_upto(ring, state, options, sink, head, state->tail);
	if (result < 0) {
		*state = before;
		sink->events_len = events_len;
	}
	return result;
}

/* Nothing is known of this ring but where tail stands. */
static void begin_at(struct hmb_state *state, uint64_t tail)
{
	struct hmb_look first = { .head = tail - HMB_RECORD_ALIGN, .tail = tail };

	state->tail = tail;
	state->overflow_seen = HMB_OVERFLOW_NOT_LOOKED;
	state->look[0] = state->look[1] = first;
}

int hmb_state_begin(struct hmb_state *state, const struct hmb_ring *ring)
{
	struct hmb_ring_view view;

	hmb_ring_view(ring, &view);
	if (!hmb_cursors_valid(view.head, view.tail, ring->ring_size))
		return -EILSEQ;
	*state = (struct hmb_state){ .tail = view.tail };
	begin_at(state, view.tail);
	return 0;
}

void hmb_state_next_epoch(struct hmb_state *state, uint64_t tail)
{
	begin_at(state, tail);
	state->epoch++;
	state->counters.epochs++;
	state->have_seq = 0;
	state->markers.seen = 0;
	state->resync = 0;
	state->damaged_bytes = 0;
	state->chain = 0;
	state->chain_may_end = 0;
	state->pending.state = HMB_PENDING_NONE;
	state->clock.error_ns = 0;
	state->frozen_seen = 0;
}

struct hmb_event *hmb_note(struct hmb_state *state, struct hmb_sink *sink, uint16_t kind)
{
	struct pass pass = { .sink = sink, .state = state, .run = state->tail };

	return emit(&pass, kind, state->tail, NULL, 0);
}

struct hmb_event *hmb_note_with_state(struct hmb_state *state, struct hmb_sink *sink, uint16_t kind)
{
	struct pass pass = { .sink = sink, .state = state, .run = state->tail };

	return emit(&pass, kind, state->tail, state, sizeof(*state));
}

int hmb_collect_release(struct hmb_state *state)
{
	state->chain_may_end = !!state->chain;
	return state->chain_may_end;
}

void hmb_settle_break(struct hmb_state *state, struct hmb_sink *sink)
{
	struct pass pass = {
		.sink = sink, .state = state, .cursor = state->tail, .run = state->tail
	};

	settle_break(&pass);
}

int hmb_collect_finish(struct hmb_state *state, struct hmb_sink *sink)
{
	struct pass pass = {
		.sink = sink, .state = state, .cursor = state->tail, .run = state->tail
	};

	if (event_room(sink) < hmb_collect_min_events())
		return -ENOSPC;
	settle_break(&pass);
	if (state->episode_open)
		close_episode(&pass, state->tail, 0, 0);
	return 0;
}

uint64_t hmb_collect_slack(void)
{
	return DATA_SLACK;
}

uint64_t hmb_collect_min_data(void)
{
	return DATA_SLACK + MIN_WINDOW;
}

uint64_t hmb_collect_min_events(void)
{
	return 2 * HMB_EVENT_SLACK + MIN_WINDOW;
}

uint32_t hmb_event_magic(void)
{
	return HMB_EVENT_MAGIC;
}
