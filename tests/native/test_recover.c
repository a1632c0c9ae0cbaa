// SPDX-License-Identifier: Apache-2.0
/* A collector killed between any two steps of a commit, and what the next one makes of it. */
#include "rig.h"

enum { RING = 1 << 14, SPOOL = 1 << 16, RECORDS = 30000, KILLS = 8 };

/* ---- under load: firmware, writer and collectors are processes ---- */

struct load {
	uint32_t all_emitted;
	uint32_t all_collected;
};

static uint16_t some_length(uint32_t n)
{
	return (uint16_t)((n * 2654435761u >> 16) % 200);
}

static void run_firmware(struct rig *rig, struct load *load)
{
	for (uint32_t n = 0; n < RECORDS; n++)
		while (!rig_emit(rig, some_length(n)))
			usleep(20);
	__atomic_store_n(&load->all_emitted, 1, __ATOMIC_RELEASE);
	_exit(0);
}

static void run_writer(struct rig *rig, struct load *load)
{
	struct hmb_spool spool;
	uint64_t n;
	uint32_t end;

	CHECK_EQUAL(hmb_spool_map(&spool, rig->spool_fd, rig->spool_bytes, 0, 0, NULL, 0), 0);
	do {
		end = __atomic_load_n(&load->all_collected, __ATOMIC_ACQUIRE);
		n = rig_take(rig, &spool);
		if (!n)
			usleep(100);
	} while (n || !end);
	_exit(0);
}

static pid_t start(void (*run)(struct rig *, struct load *), struct rig *rig, struct load *load)
{
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child)
		run(rig, load);
	return child;
}

static void expect_exit(pid_t child)
{
	int status;

	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Exactly once, whichever instant the kills are aimed at. */
static void killed_at(uint32_t kill_at, int expected)
{
	struct rig *rig = rig_open(RING, SPOOL, (uint64_t)0 - 5 * RING);
	struct load *load = rig_shared(sizeof(*load));
	pid_t firmware, writer;

	rig->seq = 0xFFFFFFFFu - RECORDS / 2;
	CHECK_EQUAL(hmb_collector_begin(&rig->c), 0);
	firmware = start(run_firmware, rig, load);
	writer = start(run_writer, rig, load);
	for (uint32_t kill = 0; kill < KILLS; kill++) {
		rig_run_and_die(rig, kill_at, 1 + kill % 5);
		CHECK_EQUAL(rig_restart(rig), expected);
	}
	while (!__atomic_load_n(&load->all_emitted, __ATOMIC_ACQUIRE)) {
		rig->c.once = 1;
		CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	}
	expect_exit(firmware);
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	__atomic_store_n(&load->all_collected, 1, __ATOMIC_RELEASE);
	expect_exit(writer);
	rig_check_dump(rig);
	CHECK_EQUAL(rig->c.state.counters.records, RECORDS);
	CHECK_EQUAL(rig->c.state.counters.bytes, rig->dump_len);
	CHECK_EQUAL(rig->c.state.counters.gaps + rig->c.state.counters.duplicates, 0);
	CHECK_EQUAL(rig->hdr->tail, rig->head);
	munmap(load, sizeof(*load));
	rig_close(rig);
}

/* ---- one kill between commit and tail, and then ---- */

static struct rig *died_before_tail(uint64_t cursor, uint8_t flags)
{
	struct rig *rig = rig_open(4096, SPOOL, cursor);

	CHECK_EQUAL(hmb_collector_begin(&rig->c), 0);
	while (rig_emit_flags(rig, 40, flags, !flags))
		;
	rig_run_and_die(rig, HMB_TESTPOINT_AFTER_COMMIT, 1);
	CHECK_EQUAL(rig->hdr->tail, cursor);
	return rig;
}

/* The controller resets while nobody listens: the new ring begins at `cursor`. */
static void reset(struct rig *rig, uint64_t cursor, uint64_t ts_ns, uint8_t flags, int records)
{
	rig_reset_ring(rig, cursor);
	rig->seq = 0;
	rig->ts_ns = ts_ns;
	for (int i = 0; i < records; i++)
		CHECK(rig_emit_flags(rig, 40, flags, !flags));
}

/* After a decision for "the same ring": every byte once. */
static void expect_exactly_once(struct rig *rig)
{
	rig->c.once = 1;
	rig_take(rig, &rig->c.spool);
	for (int i = 0; i < 20; i++)
		CHECK(rig_emit(rig, 24));
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	rig_take(rig, &rig->c.spool);
	rig_check_dump(rig);
	CHECK_EQUAL(rig->c.state.counters.gaps + rig->c.state.counters.duplicates, 0);
	rig_close(rig);
}

static void same_ring_goes_on(void)
{
	struct rig *rig = died_before_tail(1 << 20, 0);

	CHECK_EQUAL(rig_restart(rig), 2);
	expect_exactly_once(rig);
	/* The writer may have freed the pass already: its bytes still stand in the spool. */
	rig = died_before_tail(0, 0);
	rig_take(rig, &rig->c.spool);
	CHECK_EQUAL(rig_restart(rig), 2);
	expect_exactly_once(rig);
}

/* R10: restarted with the other --unknown-flags, the pass is still the same pass. */
static void other_options_go_on(void)
{
	struct rig *rig = died_before_tail(4096, 0x10);

	rig->c.options.keep_unknown_flags = 1;
	CHECK_EQUAL(rig_restart(rig), 2);
	expect_exactly_once(rig);
}

/* R9: restarted with the other --on-corrupt, too. */
static void other_way_with_damage_goes_on(uint32_t stop_on_corrupt)
{
	struct rig *rig = rig_open(4096, SPOOL, 0);

	rig->c.options.stop_on_corrupt = stop_on_corrupt;
	CHECK_EQUAL(hmb_collector_begin(&rig->c), 0);
	CHECK(rig_emit(rig, 40) && rig_emit(rig, 40));
	rig_put(rig, "garbage, that is", 16);
	CHECK(rig_emit(rig, 40) && rig_emit(rig, 40));
	rig_run_and_die(rig, HMB_TESTPOINT_AFTER_COMMIT, 1);
	rig->c.options.stop_on_corrupt = !stop_on_corrupt;
	CHECK_EQUAL(rig_restart(rig), 2);
	expect_exactly_once(rig);
}

static void reset_is_noticed(struct rig *rig)
{
	uint64_t tail = rig->hdr->tail;

	CHECK_EQUAL(rig_restart(rig), 0);
	CHECK_EQUAL(rig->hdr->tail, tail);
	rig_close(rig);
}

static void reset_while_down(void)
{
	struct rig *rig = died_before_tail(1 << 20, 0);

	reset(rig, 0, 9000, 0, 10);
	reset_is_noticed(rig);
	/* In the first batch tail cannot tell: head, or the bytes, must. */
	rig = died_before_tail(0, 0);
	reset(rig, 0, 9000, 0, 3);
	reset_is_noticed(rig);
	/* Before its first record the area still holds the old ring's bytes. */
	rig = died_before_tail(0, 0);
	reset(rig, 0, 9000, 0, 0);
	reset_is_noticed(rig);
	rig = died_before_tail(0, 0);
	reset(rig, 0, 9000, 0, 4096 / 72);
	reset_is_noticed(rig);
	/* Of a pass that only rejected, the rejects must. */
	rig = died_before_tail(0, 0x10);
	reset(rig, 0, 9000, 0x10, 4096 / 72);
	reset_is_noticed(rig);
	/* Cursors that are not valid continue nothing (R2). */
	rig = died_before_tail(0, 0);
	rig->hdr->head = 1 << 20;
	reset_is_noticed(rig);
}

/* A reset after the tail was stored, too: both cursors 0, while ours is not. */
static void reset_after_tail(void)
{
	struct rig *rig = rig_open(4096, SPOOL, 0);

	CHECK_EQUAL(hmb_collector_begin(&rig->c), 0);
	rig_fill(rig, 40);
	rig_run_and_die(rig, HMB_TESTPOINT_AFTER_TAIL, 1);
	reset(rig, 0, 9000, 0, 4096 / 72);
	reset_is_noticed(rig);
}

/* Killed inside the commit of an epoch that a stale first batch gave way to. */
static void killed_in_the_epoch_after_a_stale_batch(void)
{
	struct rig *rig = died_before_tail(0, 0);
	struct hmb_commit last;

	reset(rig, 0, 9000, 0, 4096 / 72);
	/* What hmb_collector_new_epoch() writes, up to the middle of its commit. */
	hmb_spool_read_commit(&rig->c.spool, &last);
	hmb_state_next_epoch(&last.state, 0);
	last.tail_before = last.tail_after = 0;
	if (fork() == 0) {
		rig_kill_at = HMB_TESTPOINT_INSIDE_COMMIT;
		rig_kill_after = 1;
		hmb_spool_commit(&rig->c.spool, &last);
	}
	wait(NULL);
	reset_is_noticed(rig);
}

/* A marker may skip most of a ring that is larger than the spool. */
static void long_skip_goes_on(void)
{
	struct rig *rig = rig_open(1 << 18, SPOOL, 0);
	struct hmb_record_hdr marker;

	CHECK_EQUAL(hmb_collector_begin(&rig->c), 0);
	CHECK(rig_emit(rig, 40));
	marker = check_header(rig->seq, rig->ts_ns, 0);
	marker.flags = HMB_REC_FLAG_WRAP_MARKER;
	rig_put(rig, &marker, sizeof(marker));
	rig_expect(rig, &marker, sizeof(marker));
	rig->head = 1 << 18;
	rig_publish(rig);
	rig_run_and_die(rig, HMB_TESTPOINT_AFTER_COMMIT, 1);
	CHECK_EQUAL(rig_restart(rig), 2);
	CHECK_EQUAL(rig->hdr->tail, 1 << 18);
	expect_exactly_once(rig);
}

int main(void)
{
	killed_at(HMB_TESTPOINT_BEFORE_COPY, 1);
	killed_at(HMB_TESTPOINT_BEFORE_COMMIT, 1);
	killed_at(HMB_TESTPOINT_INSIDE_COMMIT, 1);
	killed_at(HMB_TESTPOINT_AFTER_COMMIT, 2);
	killed_at(HMB_TESTPOINT_AFTER_TAIL, 1);
	same_ring_goes_on();
	other_options_go_on();
	other_way_with_damage_goes_on(0);
	other_way_with_damage_goes_on(1);
	reset_while_down();
	reset_after_tail();
	killed_in_the_epoch_after_a_stale_batch();
	long_skip_goes_on();
	return 0;
}
