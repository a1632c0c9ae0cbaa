// SPDX-License-Identifier: Apache-2.0
/* The collector's loop, one decision at a time: what it returns, and what it wrote. */
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "rig.h"

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct rig *begin(uint64_t ring_size, uint64_t cursor)
{
	struct rig *rig = rig_open(ring_size, 1 << 17, cursor);

	CHECK_EQUAL(hmb_collector_begin(&rig->c), 0);
	rig->c.once = 1;
	return rig;
}

/* Something that happens while the collector runs. */
struct later {
	struct rig *rig;
	uint64_t delay_ms;
	void (*act)(struct rig *rig);
};

static void *act_later(void *arg)
{
	struct later *later = arg;
	struct timespec pause = { .tv_nsec = (long)(later->delay_ms * RIG_MS) };

	nanosleep(&pause, NULL);
	later->act(later->rig);
	return NULL;
}

static int run_while(struct rig *rig, uint64_t delay_ms, void (*act)(struct rig *rig))
{
	struct later later = { .rig = rig, .delay_ms = delay_ms, .act = act };
	pthread_t thread;
	int stop;

	CHECK_EQUAL(pthread_create(&thread, NULL, act_later, &later), 0);
	stop = hmb_collector_run(&rig->c);
	CHECK_EQUAL(pthread_join(thread, NULL), 0);
	return stop;
}

static void ask_stop(struct rig *rig)
{
	__atomic_store_n(&rig->c.stop, 1, __ATOMIC_RELAXED);
}

static void once_drains_and_stops(void)
{
	struct rig *rig = begin(4096, (uint64_t)0 - 4096);

	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	for (int lap = 0; lap < 5; lap++) {
		rig_fill(rig, (uint16_t)(13 * lap));
		CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
		rig_take(rig, &rig->c.spool);
	}
	rig_check_dump(rig);
	CHECK_EQUAL(rig->hdr->tail, rig->head);
	rig_close(rig);
}

/* R2: nothing in the region changes but the eight bytes of tail. */
static void writes_nothing_but_tail(void)
{
	struct rig *rig = begin(1 << 16, 0);
	uint8_t *before;

	for (int i = 0; i < 300; i++)
		rig_emit(rig, (uint16_t)(i % 97));
	rig->hdr->flags = HMB_RING_FLAG_OVERFLOWED | 0x80;
	rig->hdr->reserved2 = 77;
	before = malloc(rig->region);
	CHECK(before != NULL);
	memcpy(before, rig->hdr, rig->region);
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	CHECK_EQUAL(rig->hdr->tail, rig->head);
	memcpy(before + offsetof(struct hmb_ring_hdr, tail), &rig->hdr->tail, 8);
	CHECK(memcmp(before, rig->hdr, rig->region) == 0);
	free(before);
	rig_close(rig);
}

static uint64_t advanced_from, advanced_to;

static int advance(const struct hmb_ring *ring, uint64_t expected, uint64_t new_tail)
{
	(void)ring;
	advanced_from = expected;
	advanced_to = new_tail;
	return 0;
}

static int advance_fails(const struct hmb_ring *ring, uint64_t expected, uint64_t new_tail)
{
	(void)ring, (void)expected, (void)new_tail;
	return -EIO;
}

/* A read-only mapping: the cursor goes by the call and by nothing else. */
static void read_only_mapping_works(void)
{
	struct rig *rig = begin(4096, 64);

	rig_emit(rig, 10);
	CHECK_EQUAL(mprotect(rig->consumer, rig->region, PROT_READ), 0);
	rig->c.ring.advance = advance_fails;
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DEVICE);
	CHECK_EQUAL((uint32_t)-rig->c.error, EIO);
	/* The commit stands, the tail does not: the same decision as after a kill. */
	rig->hdr->tail = 64;
	CHECK_EQUAL(hmb_spool_continues(&rig->c.spool, &rig->c.ring, &rig->c.options), 2);
	rig_close(rig);

	rig = begin(4096, 64);
	rig_emit(rig, 10);
	CHECK_EQUAL(mprotect(rig->consumer, rig->region, PROT_READ), 0);
	rig->c.ring.advance = advance;
	rig->c.latency_ns = 1000;
	/* The call takes the cursor, but the header does not follow: a tail that is not ours (R6). */
	rig->c.once = 0;
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_REINIT);
	CHECK_EQUAL(advanced_from, 64);
	CHECK_EQUAL(advanced_to, rig->head);
	rig_close(rig);
}

static void put_waiting_marker(struct rig *rig)
{
	struct hmb_record_hdr marker = check_header(rig->seq, rig->ts_ns, 0);

	marker.flags = HMB_REC_FLAG_WRAP_MARKER;
	rig_put(rig, &marker, sizeof(marker));
	rig_publish(rig);
}

/* R3.1: a wrap that waits for its boundary ends --once, and never moves tail past head. */
static void once_stops_at_a_wrap_that_waits(void)
{
	struct rig *rig = begin(4096, 0);
	uint64_t before;

	rig_emit(rig, 100);
	before = rig->head;
	put_waiting_marker(rig);
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	CHECK_EQUAL(rig->hdr->tail, before);
	/* Frozen like that it is drained too (R5). */
	rig->hdr->flags = HMB_RING_FLAG_FROZEN;
	rig->c.once = 0;
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_FROZEN);
	CHECK_EQUAL(rig->hdr->tail, before);
	rig_close(rig);
}

static void frozen_is_drained_first(void)
{
	struct rig *rig = begin(4096, 0);
	struct hmb_event event;

	rig->c.once = 0;
	rig_fill(rig, 40);
	rig->hdr->flags = HMB_RING_FLAG_FROZEN;
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_FROZEN);
	CHECK_EQUAL(rig->hdr->tail, rig->head);
	CHECK_EQUAL(rig_events(rig, HMB_EV_FROZEN, &event), 1);
	CHECK_EQUAL(event.a, rig->head);
	rig_take(rig, &rig->c.spool);
	rig_check_dump(rig);
	/* Still frozen: said once, unless the caller wants to wait. */
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_FROZEN);
	rig->c.keep_frozen = 1;
	CHECK_EQUAL(run_while(rig, 20, ask_stop), HMB_STOP_ASKED);
	CHECK_EQUAL(rig_events(rig, HMB_EV_FROZEN, NULL), 0);
	rig_close(rig);
}

static void thaw(struct rig *rig)
{
	__atomic_store_n(&rig->hdr->flags, 0, __ATOMIC_RELAXED);
	rig_emit(rig, 8);
}

static void freeze_again(struct rig *rig)
{
	struct timespec pause = { .tv_nsec = 30 * RIG_MS };

	thaw(rig);
	nanosleep(&pause, NULL);
	__atomic_store_n(&rig->hdr->flags, HMB_RING_FLAG_FROZEN, __ATOMIC_RELAXED);
}

static void frozen_may_thaw(void)
{
	struct rig *rig = begin(4096, 0);

	rig->c.once = 0;
	rig->hdr->flags = HMB_RING_FLAG_FROZEN;
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_FROZEN);
	rig->c.keep_frozen = 1;
	CHECK_EQUAL(run_while(rig, 20, freeze_again), HMB_STOP_FROZEN);
	CHECK_EQUAL(rig_events(rig, HMB_EV_FROZEN, NULL), 2);
	CHECK_EQUAL(rig_events(rig, HMB_EV_UNFROZEN, NULL), 1);
	CHECK_EQUAL(rig->hdr->tail, rig->head);
	rig_close(rig);
}

/* R2: under --once invalid cursors end the run at once, and nothing is written. */
static void once_refuses_invalid_cursors(void)
{
	struct rig *rig = begin(4096, 0);

	rig->hdr->head = 4096 + 8;
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_INVALID);
	CHECK_EQUAL(rig->hdr->tail, 0);
	CHECK_EQUAL(hmb_spool_data_head(&rig->c.spool), 0);
	rig_close(rig);
}

static void repair_head(struct rig *rig)
{
	rig_publish(rig);
}

static void invalid_cursors_have_100_ms(void)
{
	struct rig *rig = begin(4096, 0);
	uint64_t start;

	rig->c.once = 0;
	rig_emit(rig, 40);
	rig->hdr->head = 12345;
	start = now_ns();
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_INVALID);
	CHECK(now_ns() - start >= 100 * RIG_MS);
	CHECK_EQUAL(rig->hdr->tail, 0);
	/* A head that comes back in time costs nothing: drained, then stopped. */
	rig->c.invalid_ns = 60000 * (uint64_t)RIG_MS;
	rig->c.once = 0;
	rig->hdr->flags = HMB_RING_FLAG_FROZEN;
	CHECK_EQUAL(run_while(rig, 30, repair_head), HMB_STOP_FROZEN);
	CHECK_EQUAL(rig->hdr->tail, rig->head);
	rig_take(rig, &rig->c.spool);
	rig_check_dump(rig);
	rig_close(rig);
}

/* R2: tail := head & ~7 in a new epoch, and the loss is said to be unknown. */
static void giving_up_begins_an_epoch(void)
{
	struct rig *rig = begin(4096, 0);
	struct hmb_event event;

	rig_emit(rig, 40);
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	rig->hdr->head = (1 << 20) + 64;
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_INVALID);
	CHECK_EQUAL(hmb_collector_new_epoch(&rig->c, 0), -EILSEQ);
	CHECK_EQUAL(hmb_collector_new_epoch(&rig->c, 1), 0);
	CHECK_EQUAL(rig->hdr->tail, (1 << 20) + 64);
	CHECK_EQUAL(rig_events(rig, HMB_EV_LOSS_UNKNOWN, &event), 1);
	CHECK_EQUAL(event.a, rig->head);
	CHECK_EQUAL(event.b, (1 << 20) + 64);
	CHECK_EQUAL(rig_events(rig, HMB_EV_EPOCH, &event), 1);
	CHECK_EQUAL(event.epoch, 1);
	CHECK_EQUAL(rig->c.state.counters.unknown_losses, 1);
	rig->head = (1 << 20) + 64;
	rig_emit(rig, 40);
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	rig_take(rig, &rig->c.spool);
	rig_check_dump(rig);
	CHECK_EQUAL(rig->c.state.counters.gaps, 0);
	rig_close(rig);
}

/* Giving up does not cure a head whose low bits are wrong: wait, do not pile up epochs. */
static void unaligned_head_is_waited_out(void)
{
	struct rig *rig = begin(4096, 0);

	rig->c.once = 0;
	rig->c.invalid_ns = 5 * RIG_MS;
	rig->hdr->head = 4;
	rig->hdr->flags = HMB_RING_FLAG_FROZEN;
	CHECK_EQUAL(run_while(rig, 50, repair_head), HMB_STOP_FROZEN);
	CHECK_EQUAL(rig->c.state.epoch, 0);
	rig_close(rig);
}

/* R2: cursors that became valid on the way to giving up lose nothing. */
static void giving_up_too_late_loses_nothing(void)
{
	struct rig *rig = begin(4096, 0);

	rig_emit(rig, 40);
	rig->hdr->head = 1 << 20;
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_INVALID);
	rig_publish(rig);
	CHECK_EQUAL(hmb_collector_new_epoch(&rig->c, 1), 0);
	CHECK_EQUAL(rig_events(rig, HMB_EV_LOSS_UNKNOWN, NULL), 0);
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	rig_take(rig, &rig->c.spool);
	rig_check_dump(rig);
	rig_close(rig);
}

/* The device refused tail, and then is back with the ring that we took from. */
static void device_that_comes_back_gives_nothing_twice(void)
{
	struct rig *rig = begin(4096, 0);

	rig_emit(rig, 40);
	rig->c.ring.advance = advance_fails;
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DEVICE);
	rig_emit(rig, 41);
	CHECK_EQUAL((uint64_t)-hmb_collector_new_epoch(&rig->c, 0), HMB_STOP_DEVICE);
	rig->c.ring.advance = NULL;
	CHECK_EQUAL(hmb_collector_new_epoch(&rig->c, 0), 0);
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	rig_take(rig, &rig->c.spool);
	rig_check_dump(rig);
	CHECK_EQUAL(rig->hdr->tail, rig->head);
	/* Back with another ring: that one from its beginning. */
	rig->c.ring.advance = advance_fails;
	rig_emit(rig, 40);
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DEVICE);
	rig->c.ring.advance = NULL;
	rig_reset_ring(rig, 0);
	rig_emit(rig, 40);
	CHECK_EQUAL(hmb_collector_new_epoch(&rig->c, 0), 0);
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	rig_take(rig, &rig->c.spool);
	rig_check_dump(rig);
	rig_close(rig);
}

static void header_rewritten_is_a_new_epoch(void)
{
	struct rig *rig = begin(4096, 0);

	rig_emit(rig, 40);
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	rig_reset_ring(rig, 0);
	rig->seq = 0;
	rig_fill(rig, 40);
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_REINIT);
	CHECK_EQUAL(rig->hdr->tail, 0);
	CHECK_EQUAL(hmb_collector_new_epoch(&rig->c, 0), 0);
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	rig_take(rig, &rig->c.spool);
	rig_check_dump(rig);
	CHECK_EQUAL(rig->c.state.epoch, 1);
	CHECK_EQUAL(rig->c.state.counters.duplicates + rig->c.state.counters.sequence_resets, 0);
	rig->hdr->magic = 0;
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_REINIT);
	rig_close(rig);
}

/* Bytes that wait for more keep a device readable: poll must not turn into a busy loop. */
static void poll_sleeps_while_a_wrap_waits(void)
{
	struct rig *rig = begin(4096, 0);
	int ends[2];

	CHECK(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
	rig->c.once = 0;
	rig->c.ring.fd = ends[0];
	rig->c.ring.can_poll = 1;
	rig->c.latency_ns = rig->c.idle_ns = 2 * RIG_MS;
	rig_emit(rig, 100);
	put_waiting_marker(rig);
	CHECK_EQUAL(run_while(rig, 60, ask_stop), HMB_STOP_ASKED);
	CHECK(rig->c.passes < 100);
	rig->c.stop = 0;
	close(ends[1]);
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_HANGUP);
	close(ends[0]);
	rig_close(rig);
}

/* H13: waits of a small ring are too short for poll(2); the region may go away all the same. */
static void short_waits_notice_that_the_region_is_gone(void)
{
	struct rig *rig = begin(4096, 0);
	int ends[2];

	CHECK(pipe(ends) == 0);
	rig->c.once = 0;
	rig->c.ring.fd = ends[0];
	rig->c.ring.can_poll = 1;
	rig->c.latency_ns = rig->c.idle_ns = 100000;
	close(ends[1]);
	CHECK_EQUAL(run_while(rig, 900, ask_stop), HMB_STOP_HANGUP);
	close(ends[0]);
	rig_close(rig);
}

static void emit_one(struct rig *rig)
{
	struct timespec pause = { .tv_nsec = 20 * RIG_MS };

	rig_emit(rig, 8);
	nanosleep(&pause, NULL);
	ask_stop(rig);
}

/* A clock pair needs a record whose publication we saw: what lay there at the start is no such. */
static void clock_pairs_are_of_fresh_records(void)
{
	struct rig *rig = begin(4096, 0);
	struct hmb_event event;

	rig_fill(rig, 40);
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	CHECK_EQUAL(rig_events(rig, HMB_EV_CLOCK, NULL), 0);
	rig->c.once = 0;
	CHECK_EQUAL(run_while(rig, 20, emit_one), HMB_STOP_ASKED);
	CHECK_EQUAL(rig_events(rig, HMB_EV_CLOCK, &event), 1);
	CHECK_EQUAL(event.ts_ns, rig->ts_ns - 1);
	CHECK(event.a > 0 && event.a < 1000 * (uint64_t)RIG_MS);
	rig_close(rig);
}

enum { MANY = 8 };

static int64_t clock_step; /* of the firmware's clock, halfway */

/* Records at the pace of the host's clock, but for one step; marks and payloads between them. */
static void emit_with_a_step(struct rig *rig)
{
	struct timespec pause = { .tv_nsec = 4 * RIG_MS };
	uint64_t shift = 5000000000u;

	for (int i = 0; i < 2 * MANY; i++) {
		shift += i == MANY ? (uint64_t)clock_step : 0;
		rig->ts_ns = now_ns() + shift;
		for (int burst = 0; burst < 3; burst++)
			CHECK(rig_emit(rig, (uint16_t)(burst * 24)));
		nanosleep(&pause, NULL);
	}
	ask_stop(rig);
}

static struct rig *run_with_step(int64_t step)
{
	struct rig *rig = begin(4096, 0);

	rig->c.once = 0;
	clock_step = step;
	CHECK_EQUAL(run_while(rig, 1, emit_with_a_step), HMB_STOP_ASKED);
	return rig;
}

static const struct hmb_record_hdr *dumped_at(const struct rig *rig, uint64_t pos)
{
	return (const void *)(rig->c.spool.data + pos % rig->c.spool.data_size);
}

/* R16: found in the pass that it happened in, at the record that it came with. */
static void clock_step_is_found(int64_t step)
{
	struct rig *rig = run_with_step(step);
	struct hmb_event event, pair;
	int64_t error;

	CHECK_EQUAL(rig_events(rig, HMB_EV_CLOCK_STEP, &event), 1);
	CHECK_EQUAL(rig->c.state.counters.clock_steps, 1);
	CHECK_EQUAL(event.seq, 3 * MANY);
	CHECK_EQUAL(dumped_at(rig, event.pos)->seq, event.seq);
	CHECK_EQUAL(dumped_at(rig, event.pos)->ts_ns, event.ts_ns);
	error = (int64_t)event.c - step;
	CHECK((uint64_t)(error < 0 ? -error : error) <= event.d);
	CHECK(rig_events(rig, HMB_EV_CLOCK, &pair) >= 2);
	CHECK(pair.ts_ns >= event.ts_ns && pair.host_ns >= event.host_ns);
	rig_close(rig);
}

/* Firmware that was held up publishes late, and then catches up: its clock did nothing. */
static void emit_late(struct rig *rig)
{
	struct timespec pause = { .tv_nsec = 4 * RIG_MS }, held_up = { .tv_nsec = 40 * RIG_MS };
	uint64_t start = now_ns();

	for (int i = 0; i < 2 * MANY; i++) {
		rig->ts_ns = start + (uint64_t)i * 4 * RIG_MS;
		CHECK(rig_emit(rig, 24));
		nanosleep(i == MANY ? &held_up : &pause, NULL);
		while (i >= MANY && i < 2 * MANY - 1) {
			rig->ts_ns = start + (uint64_t)++i * 4 * RIG_MS;
			CHECK(rig_emit(rig, 24));
		}
	}
	ask_stop(rig);
}

static void late_records_are_no_clock_step(void)
{
	struct rig *rig = begin(4096, 0);

	rig->c.once = 0;
	CHECK_EQUAL(run_while(rig, 1, emit_late), HMB_STOP_ASKED);
	CHECK_EQUAL(rig_events(rig, HMB_EV_CLOCK_STEP, NULL), 0);
	rig_close(rig);
}

/* R16: a backlog comes in one pass, which nothing came before; and time may go below zero. */
static void step_in_a_pass(int first, uint64_t before, uint64_t after, uint32_t steps)
{
	struct rig *rig = begin(4096, 0);
	struct hmb_event event;

	if (!first) {
		rig->ts_ns = before - 1000;
		CHECK(rig_emit(rig, 24));
		CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	}
	for (int i = 0; i < 2 * MANY; i++) {
		rig->ts_ns = (i < MANY ? before : after) + (uint64_t)i;
		CHECK(rig_emit(rig, 24));
	}
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	CHECK_EQUAL(rig_events(rig, HMB_EV_CLOCK_STEP, &event), steps);
	CHECK(!steps || event.seq == (uint32_t)MANY + !first); /* not where the pass began */
	rig_close(rig);
}

static void clock_steps(void)
{
	struct rig *rig;

	step_in_a_pass(1, 5000000000u, 1000000000u, 1);
	step_in_a_pass(0, 5000000000u, 1000000000u, 1);
	step_in_a_pass(1, 1000000000u, 0 - (uint64_t)5000000000u, 1);
	step_in_a_pass(0, 1000000000u, 1000000000u - 5000, 0);
	rig = run_with_step(0);
	CHECK_EQUAL(rig_events(rig, HMB_EV_CLOCK_STEP, NULL), 0);
	rig_close(rig);
	clock_step_is_found(3600 * (int64_t)1000000000);
	clock_step_is_found(-3600 * (int64_t)1000000000);
	clock_step_is_found(-20 * RIG_MS);
}

static void drain_slowly(struct rig *rig)
{
	struct timespec pause = { .tv_nsec = RIG_MS };

	/* Pairs with the collector's release store of tail. */
	while (__atomic_load_n(&rig->hdr->tail, __ATOMIC_ACQUIRE) != rig->head) {
		rig_take(rig, &rig->c.spool);
		nanosleep(&pause, NULL);
	}
}

/* A full spool stalls the collector; the ring keeps what it has, and nothing is lost. */
static void full_spool_stalls(void)
{
	struct rig *rig = rig_open(1 << 17, 1 << 15, 0);

	CHECK_EQUAL(hmb_collector_begin(&rig->c), 0);
	rig->c.once = 1;
	rig_fill(rig, 200);
	CHECK_EQUAL(run_while(rig, 10, drain_slowly), HMB_STOP_DRAINED);
	CHECK(rig->c.stalls > 0 && rig->c.stalled_ns > 0);
	rig_take(rig, &rig->c.spool);
	rig_check_dump(rig);
	rig_close(rig);
}

/* stop = 2 does not drain: the other side will not take any more. */
static void stop_now_leaves_the_ring(void)
{
	struct rig *rig = begin(4096, 0);

	rig_fill(rig, 40);
	rig->c.stop = 2;
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_ASKED);
	CHECK_EQUAL(rig->hdr->tail, 0);
	rig_close(rig);
}

static void emit_forty_laps(struct rig *rig)
{
	for (int i = 0; i < 40 * 1024; i++)
		while (!rig_emit(rig, 32))
			sched_yield();
	ask_stop(rig);
}

/* Forty laps with a wait of 200 ms each would take 8 s. */
static void waits_follow_the_rate(void)
{
	struct rig *rig = rig_open(1 << 16, 4 << 20, 0);
	uint64_t start = now_ns();

	CHECK_EQUAL(hmb_collector_begin(&rig->c), 0);
	rig->c.latency_ns = rig->c.idle_ns = 200 * RIG_MS;
	CHECK_EQUAL(run_while(rig, 0, emit_forty_laps), HMB_STOP_ASKED);
	CHECK(now_ns() - start < 40 * rig->c.latency_ns / 2);
	rig_take(rig, &rig->c.spool);
	rig_check_dump(rig);
	rig_close(rig);
}

int main(void)
{
	once_drains_and_stops();
	writes_nothing_but_tail();
	read_only_mapping_works();
	once_stops_at_a_wrap_that_waits();
	frozen_is_drained_first();
	frozen_may_thaw();
	once_refuses_invalid_cursors();
	invalid_cursors_have_100_ms();
	giving_up_begins_an_epoch();
	giving_up_too_late_loses_nothing();
	device_that_comes_back_gives_nothing_twice();
	unaligned_head_is_waited_out();
	header_rewritten_is_a_new_epoch();
	poll_sleeps_while_a_wrap_waits();
	short_waits_notice_that_the_region_is_gone();
	clock_pairs_are_of_fresh_records();
	clock_steps();
	late_records_are_no_clock_step();
	full_spool_stalls();
	stop_now_leaves_the_ring();
	waits_follow_the_rate();
	return 0;
}
