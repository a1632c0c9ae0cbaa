// SPDX-License-Identifier: Apache-2.0
/*
 * What a device does to the ring in the middle of a pass.  The instant is hit
 * every time: a page of the spool that the pass is about to write is made
 * read-only, and the fault's handler plays the device.
 */
#include <signal.h>

#include "rig.h"
#include "spool.h"

enum { RING = 4096, SPOOL = 1 << 16, SPAN = 72 };

static struct rig *rig;
static void (*device)(void);
static void *trap;
static uint64_t page;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	uintptr_t at = (uintptr_t)info->si_addr;

	(void)signal, (void)context;
	CHECK(trap && at >= (uintptr_t)trap && at < (uintptr_t)trap + page);
	CHECK_EQUAL(mprotect(trap, page, PROT_READ | PROT_WRITE), 0);
	trap = NULL;
	device();
}

/* Run once while `act` happens as the pass first writes the page at `where`. */
static int run_with(void *where, void (*act)(void))
{
	int stop;

	trap = where;
	device = act;
	CHECK_EQUAL(mprotect(trap, page, PROT_READ), 0);
	rig->c.once = 1;
	stop = hmb_collector_run(&rig->c);
	CHECK(!trap);
	return stop;
}

static void begin(uint64_t cursor)
{
	rig = rig_open(RING, SPOOL, cursor);
	CHECK_EQUAL(hmb_collector_begin(&rig->c), 0);
	rig_fill(rig, SPAN - HMB_RECORD_HDR_SIZE);
}

/* The data page: while the window is copied.  The slots' page: judged, not yet committed. */
static void *while_copying(void)
{
	return rig->c.spool.data;
}

static void *before_commit(void)
{
	return rig->c.spool.map + COLLECTOR_BLOCK;
}

static void reset_to(uint64_t cursor, int records)
{
	rig_reset_ring(rig, cursor);
	rig->seq = 0;
	rig->ts_ns = 7000;
	rig->dump_len = 0;
	for (int i = 0; i < records; i++)
		CHECK(rig_emit(rig, SPAN - HMB_RECORD_HDR_SIZE));
}

static void reset_and_fill(void)
{
	reset_to(0, RING / SPAN);
}

static void reset_and_begin(void)
{
	reset_to(0, 2);
}

/* All of the new ring comes out, and the old pass, if it was committed, before it. */
static void new_epoch_is_whole(uint64_t old_bytes)
{
	CHECK_EQUAL(rig->hdr->tail, 0);
	CHECK_EQUAL(hmb_collector_new_epoch(&rig->c, 0), 0);
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	rig_take(rig, &rig->c.spool);
	CHECK_EQUAL(rig->got_len, old_bytes + rig->dump_len);
	CHECK(memcmp(rig->got + old_bytes, rig->dump, rig->dump_len) == 0);
	CHECK_EQUAL(rig->hdr->tail, rig->head);
	rig_close(rig);
}

/* R6: the stale tail must not be published, first batch (both tails 0) or not. */
static void reset_before_the_tail_is_stored(void (*how)(void), uint64_t cursor)
{
	uint64_t old_bytes;

	begin(cursor);
	old_bytes = rig->dump_len;
	CHECK_EQUAL(run_with(before_commit(), how), HMB_STOP_REINIT);
	new_epoch_is_whole(old_bytes);
}

/* A head that has caught up with the old one does not hide it: half of the copy may be old. */
static void reset_while_it_is_copied(void (*how)(void), uint64_t cursor)
{
	begin(cursor);
	CHECK_EQUAL(run_with(while_copying(), how), HMB_STOP_REINIT);
	new_epoch_is_whole(0);
}

static void take_magic_away(void)
{
	rig->hdr->magic = 0;
}

/* A reset that has begun, and not yet come to the cursors. */
static void reset_under_way(void)
{
	uint64_t old_bytes;

	begin(0);
	old_bytes = rig->dump_len;
	CHECK_EQUAL(run_with(before_commit(), take_magic_away), HMB_STOP_REINIT);
	CHECK_EQUAL(rig->hdr->tail, 0);
	rig->hdr->magic = HMB_RING_MAGIC;
	reset_and_fill();
	new_epoch_is_whole(old_bytes);
}

/* A producer that does not look at tail: two more records over unread ones. */
static void overwrite(void)
{
	for (int i = 0; i < 2; i++) {
		struct hmb_record_hdr header =
			check_header(rig->seq++, rig->ts_ns++, SPAN - HMB_RECORD_HDR_SIZE);
		uint8_t record[SPAN] = { 0 };

		memcpy(record, &header, sizeof(header));
		rig_put(rig, record, sizeof(record));
		rig_expect(rig, record, sizeof(record));
	}
	rig_publish(rig);
}

static void begin_full(void)
{
	struct hmb_record_hdr header;
	uint8_t last[RING % SPAN] = { 0 };

	begin(0);
	/* The last record fills the lap to its end, so that what overwrites begins at offset 0. */
	header = check_header(rig->seq++, rig->ts_ns++, sizeof(last) - HMB_RECORD_HDR_SIZE);
	memcpy(last, &header, sizeof(header));
	rig_put(rig, last, sizeof(last));
	rig_expect(rig, last, sizeof(last));
	rig_publish(rig);
	CHECK_EQUAL(rig->head, RING);
}

/* R7: all that may have been overwritten is in the rejects; what came after is kept. */
static void overrun_while_copying(void)
{
	struct hmb_event event;

	begin_full();
	rig->dump_len = 0;
	CHECK_EQUAL(run_with(while_copying(), overwrite), HMB_STOP_DRAINED);
	CHECK_EQUAL(rig->c.state.counters.overruns, 1);
	CHECK_EQUAL(rig->c.state.counters.rejected_bytes, RING);
	CHECK_EQUAL(rig_events(rig, HMB_EV_OVERRUN, NULL), 1);
	CHECK_EQUAL(rig_events(rig, HMB_EV_REJECT, &event), 1);
	CHECK_EQUAL(event.reason, HMB_REJECT_OVERRUN);
	CHECK_EQUAL(event.length, RING);
	/* --once had its target when it began; the rest is the next run's. */
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	rig_take(rig, &rig->c.spool);
	rig_check_dump(rig);
	CHECK_EQUAL(rig->c.state.counters.records, 2);
	rig_close(rig);
}

/* After the copy was judged an overrun no longer harms it, and is no re-initialisation. */
static void overrun_after_judging(void)
{
	begin_full();
	CHECK_EQUAL(run_with(before_commit(), overwrite), HMB_STOP_DRAINED);
	CHECK_EQUAL(rig->hdr->tail, RING);
	CHECK_EQUAL(hmb_collector_run(&rig->c), HMB_STOP_DRAINED);
	rig_take(rig, &rig->c.spool);
	rig_check_dump(rig);
	CHECK_EQUAL(rig->c.state.counters.overruns, 0);
	rig_close(rig);
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };

	page = (uint64_t)sysconf(_SC_PAGESIZE);
	CHECK_EQUAL(sigaction(SIGSEGV, &action, NULL), 0);
	reset_before_the_tail_is_stored(reset_and_fill, 0);
	reset_before_the_tail_is_stored(reset_and_begin, 0);
	reset_before_the_tail_is_stored(reset_and_fill, 1 << 20);
	reset_while_it_is_copied(reset_and_begin, 0);
	reset_while_it_is_copied(reset_and_fill, 0);
	reset_while_it_is_copied(reset_and_fill, 1 << 20);
	reset_under_way();
	overrun_while_copying();
	overrun_after_judging();
	return 0;
}
