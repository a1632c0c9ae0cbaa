// SPDX-License-Identifier: Apache-2.0
/* What damage leaves open from one pass to the next, while the collector dies between them. */
#include "rig.h"

enum { RING = 1 << 15, SPOOL = 1 << 17 };

static struct rig *begin(void)
{
	struct rig *rig = rig_open(RING, SPOOL, 0);

	rig->seq = 1 << 20;
	CHECK_EQUAL(hmb_collector_begin(&rig->c), 0);
	rig->c.once = 1;
	return rig;
}

static void put_junk(struct rig *rig, uint64_t n)
{
	uint8_t junk[256];

	memset(junk, 0xDB, sizeof(junk));
	rig_put(rig, junk, n);
	rig_publish(rig);
}

static void emit_many(struct rig *rig, uint32_t first_seq, int count)
{
	rig->seq = first_seq;
	for (int i = 0; i < count; i++)
		CHECK(rig_emit(rig, 40));
}

/* To the end, killed at each of these steps if any; what is dumped is what was emitted. */
static void drain(struct rig *rig, uint32_t kill_at)
{
	if (kill_at) {
		rig_run_and_die(rig, kill_at, 1);
		CHECK(rig_restart(rig) != 0);
		rig->c.once = 1;
	}
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	rig_take(rig, &rig->c.spool);
}

static const uint32_t steps[] = { 0,
				  HMB_TESTPOINT_BEFORE_COPY,
				  HMB_TESTPOINT_BEFORE_COMMIT,
				  HMB_TESTPOINT_INSIDE_COMMIT,
				  HMB_TESTPOINT_AFTER_COMMIT,
				  HMB_TESTPOINT_AFTER_TAIL };

/* R12: a break that waits is in the commit; the next daemon hears what it was. */
static void break_waits_over_a_kill(uint32_t kill_at)
{
	struct rig *rig = begin();

	emit_many(rig, 1 << 20, 3);
	emit_many(rig, 7, 1);
	drain(rig, kill_at);
	CHECK_EQUAL(rig->c.state.pending.state, HMB_PENDING_WAITS);
	CHECK_EQUAL(rig->c.state.counters.sequence_resets, 0);
	put_junk(rig, 64);
	emit_many(rig, (1 << 20) + 5, 2);
	drain(rig, kill_at);
	rig_check_dump(rig);
	CHECK_EQUAL(rig->c.state.counters.seq_glitches, 1);
	CHECK_EQUAL(rig->c.state.counters.rejected_records, 1);
	CHECK_EQUAL(rig->c.state.counters.lost + rig->c.state.counters.sequence_resets, 0);
	rig_close(rig);
}

/* R9: firmware died in mid-record and wrote two records since: nothing is left in the ring. */
static void restart_is_taken_at_the_end(uint32_t kill_at)
{
	struct rig *rig = begin();

	emit_many(rig, 1 << 20, 3);
	put_junk(rig, 40);
	emit_many(rig, 0, 2);
	drain(rig, kill_at);
	CHECK_EQUAL(rig->hdr->tail, rig->head);
	rig_check_dump(rig);
	CHECK_EQUAL(hmb_collector_finish(&rig->c), 0);
	CHECK_EQUAL(rig->c.state.counters.records, 5);
	CHECK_EQUAL(rig->c.state.counters.sequence_resets, 1);
	CHECK_EQUAL(rig->c.state.counters.rejected_bytes, 40);
	rig_close(rig);
}

/* The pass that takes them is not the first: the kills come one commit later each time. */
static void restart_is_taken_once_wherever_a_kill_comes(uint32_t kill_at)
{
	for (uint32_t nth = 1; nth <= 3; nth++) {
		struct rig *rig = begin();
		pid_t child;

		emit_many(rig, 1 << 20, 3);
		put_junk(rig, 40);
		emit_many(rig, 0, 2);
		child = fork();
		CHECK(child >= 0);
		if (!child) {
			rig_kill_at = kill_at;
			rig_kill_after = nth;
			hmb_collector_run(&rig->c);
			_exit(0);
		}
		CHECK_EQUAL(waitpid(child, NULL, 0), child);
		CHECK(rig_restart(rig) != 0);
		rig->c.once = 1;
		drain(rig, 0);
		rig_check_dump(rig);
		CHECK_EQUAL(rig->c.state.counters.records, 5);
		rig_close(rig);
	}
}

/* FROZEN is an end as well: the break is told, the chain taken. */
static void frozen_leaves_nothing_open(void)
{
	struct rig *rig = begin();
	struct hmb_event event;

	rig->c.once = 0;
	emit_many(rig, 1 << 20, 3);
	put_junk(rig, 40);
	emit_many(rig, 0, 1);
	__atomic_store_n(&rig->hdr->flags, HMB_RING_FLAG_FROZEN, __ATOMIC_RELEASE);
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_FROZEN);
	CHECK_EQUAL(rig_events(rig, HMB_EV_SEQ_RESET, &event), 1);
	CHECK_EQUAL(event.reason, HMB_UNCONFIRMED);
	CHECK_EQUAL(event.ts_ns, rig->ts_ns - 1);
	rig_take(rig, &rig->c.spool);
	rig_check_dump(rig);
	rig_close(rig);
}

/* A leftover spool whose ring is gone: what waits is told all the same, without a ring. */
static void break_of_a_leftover_is_told_without_a_ring(void)
{
	struct rig *rig = begin();
	struct hmb_collector c = { 0 };
	struct hmb_event event;

	emit_many(rig, 1 << 20, 3);
	emit_many(rig, 7, 1);
	drain(rig, HMB_TESTPOINT_AFTER_TAIL);
	c.spool = rig->c.spool;
	hmb_collector_resume(&c);
	CHECK_EQUAL(c.state.pending.state, HMB_PENDING_WAITS);
	CHECK_EQUAL(hmb_collector_finish(&c), 0);
	CHECK_EQUAL(rig_events(rig, HMB_EV_SEQ_RESET, &event), 1);
	CHECK_EQUAL(event.reason, HMB_UNCONFIRMED);
	/* Told once: whoever comes next, and finishes again, finds nothing left. */
	CHECK_EQUAL(hmb_collector_finish(&c), 0);
	CHECK_EQUAL(rig_events(rig, HMB_EV_SEQ_RESET, NULL), 1);
	rig_close(rig);
}

int main(void)
{
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		break_waits_over_a_kill(steps[i]);
		restart_is_taken_at_the_end(steps[i]);
		if (steps[i])
			restart_is_taken_once_wherever_a_kill_comes(steps[i]);
	}
	frozen_leaves_nothing_open();
	break_of_a_leftover_is_told_without_a_ring();
	return 0;
}
