// SPDX-License-Identifier: Apache-2.0
/*
 * The loop between ring and spool.  It runs without the GIL for its whole
 * life and returns only for what a person, or policy, must decide.
 *
 * Order of a pass: copy and judge, commit to the spool, then store tail.  A
 * process killed between the last two finds the same bytes in ring and spool
 * at its next start (hmb_spool_continues), and takes them once.
 */
#include <poll.h>
#include <string.h>

#include "barrier.h"
#include "clock.h"
#include "clock_watch.h"
#include "core.h"
#include "pass.h"
#include "testpoint.h"

#define EAGER_BYTES 65536u /* so much unread is worth a pass at once */
#define SHORTEST_SLEEP_NS 20000u /* below it the sleep costs more than it saves */
#define STALL_SLEEP_NS 200000u
#define CLOCK_PAIR_NS 1000000000u
#define STOP_NOW 2u /* stop: do not even drain */

/* What the loop knows between passes. */
struct loop {
	uint64_t now_ns;
	uint64_t last_pass_ns;
	uint64_t last_clock_ns;
	uint64_t last_head; /* of the pass before */
	uint64_t wait_ns;
	uint64_t slept_ns; /* when the last wait began, and what had been taken by then */
	uint64_t slept_bytes;
	uint64_t rate; /* bytes a second lately */
	uint64_t invalid_since_ns;
	uint64_t target; /* drain up to here, when has_target */
	int has_target;
	int stopping;
};

static void publish(uint64_t *where, uint64_t value)
{
	__atomic_store_n(where, value, __ATOMIC_RELAXED);
}

static uint32_t stop_asked(const struct hmb_collector *c)
{
	return __atomic_load_n(&c->stop, __ATOMIC_RELAXED);
}

static uint64_t load_head(const struct hmb_collector *c)
{
	/* Pairs with the firmware's barrier A'. */
	return hmb_load_acquire(&((const struct hmb_ring_hdr *)c->ring.base)->head);
}

static uint32_t load_flags(const struct hmb_collector *c)
{
	return __atomic_load_n(&((const struct hmb_ring_hdr *)c->ring.base)->flags,
			       __ATOMIC_RELAXED);
}

static int at_or_past(uint64_t cursor, uint64_t target)
{
	return (int64_t)(cursor - target) >= 0;
}

/* ---- room in the spool ---- */

static void open_sink(const struct hmb_collector *c, const struct hmb_commit *last,
		      struct hmb_sink *sink)
{
	const struct hmb_spool *spool = &c->spool;
	uint64_t data_used = last->data_head - hmb_spool_data_tail(spool);
	uint64_t journal_used = last->journal_head - hmb_spool_journal_tail(spool);
	uint64_t data_free = spool->data_size - data_used;

	*sink = (struct hmb_sink){
		.data = spool->data + last->data_head % spool->data_size,
		.data_cap = HMB_MIN(data_free, c->batch_bytes + hmb_collect_min_data()),
		.events = spool->journal + last->journal_head % spool->journal_size,
		.events_cap = spool->journal_size - journal_used,
	};
}

static void note_fill(struct hmb_collector *c, const struct hmb_commit *last, uint64_t head)
{
	uint64_t unread = head - c->state.tail;
	uint64_t spooled = last->data_head - hmb_spool_data_tail(&c->spool);

	publish(&c->ring_head, head);
	__atomic_store_n(&c->ring_flags, load_flags(c), __ATOMIC_RELAXED);
	if (unread <= c->ring.ring_size && unread > c->max_fill)
		publish(&c->max_fill, unread);
	if (spooled > c->max_spool_fill)
		publish(&c->max_spool_fill, spooled);
}

/* ---- commit ---- */

/* Publish what a pass put into the sink: from here on it survives us. */
static void publish_pass(struct hmb_collector *c, struct hmb_commit *last,
			 const struct hmb_sink *sink, uint64_t head)
{
	uint64_t before = last->state.tail;

	*last = (struct hmb_commit){ .data_head = last->data_head + sink->data_len,
				     .journal_head = last->journal_head + sink->events_len,
				     .tail_before = before,
				     .tail_after = c->state.tail,
				     .head_seen = head,
				     .state = c->state };
	testpoint(HMB_TESTPOINT_BEFORE_COMMIT);
	hmb_spool_commit(&c->spool, last);
	testpoint(HMB_TESTPOINT_AFTER_COMMIT);
}

/* Hand the ring bytes back that the last commit took. */
static int store_tail(struct hmb_collector *c, const struct hmb_commit *last)
{
	if (last->tail_after == last->tail_before)
		return 0;
	c->error = hmb_ring_store_tail(&c->ring, last->tail_before, last->tail_after);
	testpoint(HMB_TESTPOINT_AFTER_TAIL);
	if (c->error == -ESTALE)
		return HMB_STOP_REINIT;
	return c->error ? HMB_STOP_DEVICE : 0;
}

static int commit(struct hmb_collector *c, struct hmb_commit *last, const struct hmb_sink *sink,
		  uint64_t head)
{
	publish_pass(c, last, sink, head);
	return store_tail(c, last);
}

/*
 * Compare-exchange cannot tell the tail of a ring that was re-initialised
 * since the pass began from ours where both are 0, as in a first batch.  The
 * first bytes can: they are read before the head that the pass goes by is
 * loaded, and compared after the copy and again before tail is stored
 * (formal/spool.pml).  What a device does between that last look and the store
 * nobody can see.
 */
struct witness {
	uint8_t bytes[HMB_RECORD_HDR_SIZE];
	uint64_t length; /* published bytes only */
	uint64_t cursor;
};

static void take_witness(const struct hmb_collector *c, struct witness *witness)
{
	uint64_t unread = load_head(c) - c->state.tail;

	witness->cursor = c->state.tail;
	witness->length = unread > c->ring.ring_size ? 0 : HMB_MIN(sizeof(witness->bytes), unread);
	copy_ring(&c->ring, witness->bytes, witness->cursor, witness->length);
}

/*
 * Whether header and first bytes are those of the pass that went by head_seen.
 * After an overrun (R7) the bytes are not, and yet it is the same ring.
 */
static int ring_is_same(const struct hmb_collector *c, const struct witness *witness,
			uint64_t head_seen)
{
	const struct hmb_ring_hdr *hdr = ring_header(&c->ring);
	uint64_t head = load_head(c);
	uint8_t now[HMB_RECORD_HDR_SIZE];

	if (__atomic_load_n(&hdr->magic, __ATOMIC_RELAXED) != HMB_RING_MAGIC ||
	    !at_or_past(head, head_seen))
		return 0;
	copy_ring(&c->ring, now, witness->cursor, witness->length);
	return head - witness->cursor > c->ring.ring_size ||
	       memcmp(now, witness->bytes, witness->length) == 0;
}

static int store_tail_of_pass(struct hmb_collector *c, const struct hmb_commit *last,
			      const struct witness *witness)
{
	if (ring_is_same(c, witness, last->head_seen))
		return store_tail(c, last);
	c->error = -ESTALE;
	return HMB_STOP_REINIT;
}

/*
 * A pair of clocks a second.  Only of a record that was published since the
 * pass before: head has moved since, and this pass has drained it.
 */
static void note_clock(struct hmb_collector *c, struct loop *loop, struct hmb_sink *sink,
		       uint64_t age_ns)
{
	if (!age_ns || (loop->last_clock_ns && loop->now_ns - loop->last_clock_ns < CLOCK_PAIR_NS))
		return;
	hmb_note(&c->state, sink, HMB_EV_CLOCK)->a = age_ns;
	loop->last_clock_ns = loop->now_ns;
}

/* What a pass that took something says about the firmware's clock. */
static void watch_clock(struct hmb_collector *c, struct loop *loop, const struct hmb_commit *last,
			struct hmb_sink *sink, uint64_t head)
{
	struct hmb_clock_look look = { .pos = last->state.pos,
				       .ts_ns = last->state.last_ts_ns,
				       .data = sink->data,
				       .data_len = sink->data_len,
				       .had_record = last->state.epoch == c->state.epoch &&
						     last->state.have_seq };

	if (c->state.tail == head && head != loop->last_head)
		look.age_ns = monotonic_ns() - loop->last_pass_ns;
	if (c->state.counters.records != last->state.counters.records &&
	    hmb_watch_clock(&c->state, sink, &look))
		loop->last_clock_ns = 0;
	note_clock(c, loop, sink, look.age_ns);
}

/* ---- one turn of the loop ---- */

static void wait_for_room(struct hmb_collector *c, const struct loop *loop)
{
	publish(&c->stalls, c->stalls + 1);
	sleep_ns(STALL_SLEEP_NS);
	publish(&c->stalled_ns, c->stalled_ns + monotonic_ns() - loop->now_ns);
}

/* Giving up moves tail to head & ~7: it is there already when only head's low bits are wrong. */
static int giving_up_helps(const struct hmb_collector *c)
{
	return c->state.tail != (load_head(c) & ~(uint64_t)(HMB_RECORD_ALIGN - 1));
}

/* R2: give a re-initialisation that is under way the time to end. */
static int wait_for_cursors(struct hmb_collector *c, struct loop *loop)
{
	if (!loop->invalid_since_ns)
		loop->invalid_since_ns = loop->now_ns;
	if (c->once || stop_asked(c))
		return HMB_STOP_INVALID;
	if (loop->now_ns - loop->invalid_since_ns >= c->invalid_ns && giving_up_helps(c))
		return HMB_STOP_INVALID;
	sleep_ns(HMB_MAX(HMB_MIN(c->latency_ns, c->invalid_ns / 10), SHORTEST_SLEEP_NS));
	return 0;
}

static int handle_failure(struct hmb_collector *c, struct loop *loop, int64_t result)
{
	if (result == -EILSEQ)
		return wait_for_cursors(c, loop);
	loop->invalid_since_ns = 0;
	if (result == -EBADMSG)
		return HMB_STOP_CORRUPT;
	if (result == -ESTALE)
		return HMB_STOP_REINIT;
	wait_for_room(c, loop);
	return 0;
}

/* hmb_collect() with a witness; -ESTALE, and nothing taken, where it no longer agrees. */
static int64_t collect(struct hmb_collector *c, const struct hmb_commit *last,
		       struct hmb_sink *sink, uint64_t *head, struct witness *witness)
{
	struct hmb_state before = c->state;
	int64_t result;

	do {
		/* Again only if the first record came just after the witness looked for it. */
		c->state = before;
		open_sink(c, last, sink);
		take_witness(c, witness);
		result = hmb_collect(&c->ring, &c->state, &c->options, sink, head);
	} while (result > 0 && !witness->length);
	if (result <= 0 || ring_is_same(c, witness, *head))
		return result;
	c->state = before;
	return -ESTALE;
}

static int64_t pass(struct hmb_collector *c, struct loop *loop, struct hmb_commit *last, int *stop)
{
	struct hmb_sink sink;
	struct witness witness;
	uint64_t head = load_head(c);
	int64_t result;

	note_fill(c, last, head);
	testpoint(HMB_TESTPOINT_BEFORE_COPY);
	result = collect(c, last, &sink, &head, &witness);
	if (result > 0)
		watch_clock(c, loop, last, &sink, head);
	loop->last_head = head;
	/* A chain that waits is state that a later pass depends on: a restart must know it. */
	if (result < 0 || (!result && !sink.events_len && c->state.chain == last->state.chain))
		return result;
	publish_pass(c, last, &sink, head);
	*stop = store_tail_of_pass(c, last, &witness);
	return result;
}

static int note_state(struct hmb_collector *c, struct hmb_commit *last, uint16_t kind,
		      uint64_t value)
{
	struct hmb_sink sink;

	open_sink(c, last, &sink);
	if (sink.events_cap < hmb_collect_min_events())
		return -ENOSPC;
	if (kind == HMB_EV_FROZEN)
		hmb_settle_break(&c->state, &sink);
	hmb_note(&c->state, &sink, kind)->a = value;
	return commit(c, last, &sink, value);
}

/*
 * R9: what waits for more in vain is taken before we end or rest.  Committed first, so that a
 * restart takes the same pass again as we do.
 */
static int release_chain(struct hmb_collector *c, struct hmb_commit *last)
{
	struct hmb_sink sink = { 0 };

	if (!hmb_collect_release(&c->state))
		return 0;
	publish_pass(c, last, &sink, last->head_seen);
	return 1;
}

/* R5: FROZEN seen, and what a last acquire load of head shows is drained. */
static int check_frozen(struct hmb_collector *c, struct hmb_commit *last)
{
	int frozen = !!(load_flags(c) & HMB_RING_FLAG_FROZEN);
	uint64_t head = load_head(c);

	if (frozen && release_chain(c, last))
		return 0;
	if (frozen == c->state.frozen_seen)
		return frozen && !c->keep_frozen && head == c->state.tail ? HMB_STOP_FROZEN : 0;
	if (frozen && head != c->state.tail && head != c->ring_head)
		return 0;
	c->state.frozen_seen = (uint8_t)frozen;
	if (note_state(c, last, frozen ? HMB_EV_FROZEN : HMB_EV_UNFROZEN, head) < 0) {
		c->state.frozen_seen = (uint8_t)!frozen;
		return 0;
	}
	if (!frozen)
		c->keep_frozen = 0;
	return frozen && !c->keep_frozen ? HMB_STOP_FROZEN : 0;
}

/* Whether the loop is through: nothing more to take, or the target reached. */
static int check_done(struct hmb_collector *c, struct loop *loop, int64_t result)
{
	int drained = result == 0 || (loop->has_target && at_or_past(c->state.tail, loop->target));

	if (!loop->stopping && !c->once)
		return 0;
	if (!drained)
		return 0;
	return loop->stopping ? HMB_STOP_ASKED : HMB_STOP_DRAINED;
}

static void set_target(struct hmb_collector *c, struct loop *loop)
{
	if (!loop->stopping && stop_asked(c)) {
		loop->stopping = 1;
		loop->has_target = 0;
	}
	if (!loop->has_target && (loop->stopping || c->once)) {
		loop->target = load_head(c);
		loop->has_target = 1;
	}
}

/* ---- waiting ---- */

/* Not for POLLIN while bytes wait for more (R3): they are there already, and poll would not sleep. */
static int wait_by_poll(struct hmb_collector *c, uint64_t ns, int bytes_wait)
{
	struct pollfd ready = { .fd = c->ring.fd, .events = bytes_wait ? 0 : POLLIN };
	int got = poll(&ready, 1, (int)HMB_MAX(ns / 1000000u, 1u));

	return got > 0 && ready.revents & (POLLHUP | POLLNVAL | POLLERR) ? HMB_STOP_HANGUP : 0;
}

/* The rate since the wait before; of earlier ones the faster are forgotten slowly. */
static void note_rate(const struct hmb_collector *c, struct loop *loop)
{
	uint64_t bytes = c->state.counters.ring_bytes, now = monotonic_ns();
	uint64_t us = (now - loop->slept_ns) / 1000 + 1;
	uint64_t rate = (bytes - loop->slept_bytes) * 1000000 / us;

	loop->rate = HMB_MAX(rate, loop->rate - loop->rate / 8);
	loop->slept_ns = now;
	loop->slept_bytes = bytes;
}

/* At that rate, until a quarter of the ring is full: the other three bear what comes faster. */
static uint64_t time_to_fill(const struct hmb_collector *c, const struct loop *loop)
{
	return c->ring.ring_size / 4 * 1000000 / (loop->rate / 1000 + 1);
}

/* Long enough that a pass is worth its cost, short enough for latency and ring. */
static int wait_for_more(struct hmb_collector *c, struct loop *loop, int64_t result)
{
	uint64_t unread = load_head(c) - c->state.tail;
	uint64_t eager = HMB_MIN(EAGER_BYTES, c->ring.ring_size / 8);

	if (result > 0) {
		if (unread >= eager)
			return 0;
		note_rate(c, loop);
		loop->wait_ns = HMB_MIN(HMB_MIN(c->latency_ns, c->idle_ns), time_to_fill(c, loop));
	} else {
		loop->wait_ns = HMB_MIN(loop->wait_ns * 5 / 4, c->idle_ns);
	}
	loop->wait_ns = HMB_MAX(loop->wait_ns, SHORTEST_SLEEP_NS);
	if (c->ring.can_poll && result == 0 && loop->wait_ns >= 1000000u)
		return wait_by_poll(c, loop->wait_ns, unread != 0);
	sleep_ns(loop->wait_ns);
	return 0;
}

static int turn(struct hmb_collector *c, struct loop *loop, struct hmb_commit *last)
{
	int stop = 0, done;
	int64_t result;

	set_target(c, loop);
	loop->now_ns = monotonic_ns();
	publish(&c->passes, c->passes + 1);
	result = pass(c, loop, last, &stop);
	loop->last_pass_ns = loop->now_ns;
	if (stop)
		return stop;
	if (result < 0)
		return handle_failure(c, loop, result);
	loop->invalid_since_ns = 0;
	done = check_done(c, loop, result);
	if (done && release_chain(c, last))
		return 0;
	if (result == 0 || done)
		stop = check_frozen(c, last);
	if (!stop || c->once || loop->stopping)
		stop = done;
	return stop ? stop : wait_for_more(c, loop, result);
}

int hmb_collector_run(struct hmb_collector *c)
{
	struct loop loop = { .wait_ns = c->latency_ns };
	struct hmb_commit last;
	int stop = 0;

	hmb_spool_read_commit(&c->spool, &last);
	loop.last_pass_ns = loop.slept_ns = monotonic_ns();
	loop.slept_bytes = c->state.counters.ring_bytes;
	loop.last_head = load_head(c);
	while (!stop)
		stop = stop_asked(c) == STOP_NOW ? HMB_STOP_ASKED : turn(c, &loop, &last);
	return stop;
}

/* ---- epochs (R2, R6) ---- */

/*
 * A store of tail that failed (HMB_STOP_DEVICE) left a pass behind that the
 * spool has and the ring still holds: hand it back now, lest it be taken twice.
 */
static int hand_back_what_is_taken(struct hmb_collector *c, const struct hmb_commit *last)
{
	if (hmb_spool_continues(&c->spool, &c->ring, &c->options) != 2)
		return 0;
	return store_tail(c, last);
}

/* Where an epoch begins: at tail, or where nothing else helps, at head. 1: given up. */
static int choose_tail(const struct hmb_collector *c, struct hmb_ring_view *view, int give_up,
		       uint64_t *tail)
{
	hmb_ring_view(&c->ring, view);
	*tail = view->tail;
	/* Cursors that became valid after all need no giving up. */
	if (hmb_cursors_valid(view->head, view->tail, c->ring.ring_size))
		return 0;
	*tail = view->head & ~(uint64_t)(HMB_RECORD_ALIGN - 1);
	/* A head that moves meanwhile may be that of a reset; the caller comes again. */
	return give_up && load_head(c) == view->head ? 1 : -EILSEQ;
}

static void note_epoch(struct hmb_collector *c, struct hmb_sink *sink,
		       const struct hmb_ring_view *view, uint64_t tail, int given_up)
{
	uint64_t old_tail = c->state.tail;
	struct hmb_event *event;

	hmb_collect_finish(&c->state, sink);
	if (given_up) {
		c->state.counters.unknown_losses++;
		event = hmb_note(&c->state, sink, HMB_EV_LOSS_UNKNOWN);
		event->a = view->tail;
		event->b = tail;
	}
	hmb_state_next_epoch(&c->state, tail);
	event = hmb_note_with_state(&c->state, sink, HMB_EV_EPOCH);
	event->a = tail;
	event->b = view->head;
	event->c = old_tail;
}

int hmb_collector_new_epoch(struct hmb_collector *c, int give_up)
{
	struct hmb_ring_view view;
	struct hmb_commit last;
	struct hmb_sink sink;
	uint64_t tail;
	int stop, given_up;

	hmb_spool_read_commit(&c->spool, &last);
	stop = hand_back_what_is_taken(c, &last);
	if (stop)
		return -stop;
	given_up = choose_tail(c, &view, give_up, &tail);
	if (given_up < 0)
		return given_up;
	open_sink(c, &last, &sink);
	if (sink.events_cap < hmb_collect_min_events())
		return -ENOSPC;
	note_epoch(c, &sink, &view, tail, given_up);
	/* The commit's "before" is what the header holds now, not what we left there. */
	last.state.tail = view.tail;
	return -commit(c, &last, &sink, view.head);
}

/* ---- begin and end ---- */

int hmb_collector_begin(struct hmb_collector *c)
{
	struct hmb_commit first = { 0 };
	int err = hmb_state_begin(&c->state, &c->ring);

	if (err)
		return err;
	first.tail_before = first.tail_after = first.head_seen = c->state.tail;
	first.state = c->state;
	hmb_spool_commit(&c->spool, &first);
	return 0;
}

void hmb_collector_resume(struct hmb_collector *c)
{
	struct hmb_commit last;

	hmb_spool_read_commit(&c->spool, &last);
	c->state = last.state;
}

int hmb_collector_finish(struct hmb_collector *c)
{
	struct hmb_commit last;
	struct hmb_sink sink;

	hmb_spool_read_commit(&c->spool, &last);
	open_sink(c, &last, &sink);
	if (!c->state.episode_open && c->state.pending.state != HMB_PENDING_WAITS)
		return 0;
	if (hmb_collect_finish(&c->state, &sink))
		return -ENOSPC;
	commit(c, &last, &sink, last.head_seen);
	return 0;
}
