// SPDX-License-Identifier: Apache-2.0
/*
 * Firmware that does everything wrong, at random, while the real collector runs:
 *
 *	hostile_ring SEED SECONDS
 *
 * Every record carries a stamp with a number of its own.  Whatever firmware does, each record
 * that it published and did not spoil itself must be in the dump, once, or in the rejects; what
 * the events say must add up to the counters; and nothing of the ring but `tail` is ever written
 * (all pages but the first are read-only to the collector, the first is compared).
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "rig.h"

enum { RING = 1 << 16, SPOOL = 1 << 20, STAMP_SIZE = 24, IDS = 1 << 26, GROWTH_KB = 128 << 10 };

#define STAMP 0x9D39247E33776D41u

/* What became of the record of a number, and what it may be excused for. */
enum { DUMPED = 1, TRACED = 2, SPOILED = 4, MAY_REPEAT = 8, PUBLISHED = 16 };

static struct rig *rig;
static uint8_t *fate;
static uint64_t next_id = 1, oldest_unread_id = 1;
static uint64_t spoiled_until; /* cursor: a spoiled header may hide what follows up to there */
static struct hmb_ring_hdr shadow; /* the header as firmware wrote it */
static uint32_t collector_done;
static uint64_t random_state;

/* What the events add up to. */
static struct hmb_counters told;
static uint64_t walked_records, walked_markers, walked_bytes;

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint64_t any(uint64_t below)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (random_state >> 33) % below;
}

static void mark(uint64_t id, uint8_t bits)
{
	__atomic_fetch_or(&fate[id], bits, __ATOMIC_RELAXED);
}

/* ---- firmware ---- */

static uint64_t true_tail(void)
{
	return __atomic_load_n(&rig->hdr->tail, __ATOMIC_ACQUIRE);
}

static void publish(void)
{
	shadow.head = rig->head;
	rig_publish(rig);
}

static void spoil_until(uint64_t cursor)
{
	if ((int64_t)(cursor - spoiled_until) > 0)
		spoiled_until = cursor;
}

/* What is unread may be lost, or come twice, and it is firmware's doing. */
static void spoil_unread(void)
{
	for (uint64_t id = oldest_unread_id; id < next_id; id++)
		mark(id, SPOILED | MAY_REPEAT);
	spoil_until(rig->head + 2 * RING);
	oldest_unread_id = next_id;
}

static void everything_may_repeat(void)
{
	static uint64_t done;

	for (; done < next_id; done++)
		mark(done, MAY_REPEAT);
	spoil_unread();
}

/* The numbers of what was read long ago need no excuse any more. */
static void forget_read(void)
{
	if (rig->head == true_tail())
		oldest_unread_id = next_id;
}

static void put_bytes(const void *bytes, uint64_t n)
{
	uint64_t first = HMB_MIN(n, rig_left(rig));

	rig_put(rig, bytes, first);
	rig_put(rig, (const uint8_t *)bytes + first, n - first);
}

static void fill_record(uint8_t *record, uint32_t seq, uint16_t length, uint64_t id)
{
	struct hmb_record_hdr header = check_header(seq, rig->ts_ns, length);
	uint64_t stamp[3] = { STAMP, id, id * STAMP ^ length };

	memcpy(record, &header, sizeof(header));
	memcpy(record + sizeof(header), stamp, sizeof(stamp));
	memset(record + sizeof(header) + STAMP_SIZE, (int)id, length - STAMP_SIZE);
}

static const uint8_t zeros[4096];

static void lap_end(uint64_t left)
{
	struct hmb_record_hdr marker = check_header(rig->seq, rig->ts_ns, 0);

	marker.flags = HMB_REC_FLAG_WRAP_MARKER | (any(8) ? 0 : (uint8_t)any(64) << 2);
	marker.payload_len = any(8) ? 0 : (uint16_t)any(65536);
	rig_put(rig, &marker, HMB_MIN(left, sizeof(marker)));
	/*
	 * Zeros behind it: where numbers go back, records of an earlier lap look like new ones to a
	 * search through what the marker skips (R9), and would be counted against the collector.
	 */
	if (left > sizeof(marker))
		put_bytes(zeros, left - sizeof(marker));
}

/* A stamped record with this seq, these flags and a length that lies by `lie`. */
static void emit(uint32_t seq, uint8_t flags, int lie)
{
	uint8_t record[4096] = { 0 };
	struct hmb_record_hdr *header = (void *)record;
	uint16_t length = (uint16_t)(STAMP_SIZE + any(any(16) ? 64 : 2000));
	uint64_t span = HMB_RECORD_HDR_SIZE + hmb_align8(length), left = rig_left(rig);
	uint64_t skip = span > left ? left : 0;

	if (next_id == IDS || rig->head + skip + span - true_tail() > RING)
		return;
	if (skip)
		lap_end(left);
	rig->ts_ns += any(1000);
	fill_record(record, seq, length, next_id);
	header->flags = flags;
	header->payload_len = (uint16_t)(length + lie);
	/* Before the publish: the collector may be quicker. */
	mark(next_id,
	     PUBLISHED | ((int64_t)(rig->head - spoiled_until) < 0 ? SPOILED | MAY_REPEAT : 0));
	next_id++;
	put_bytes(record, span);
	publish();
}

static void do_good(void)
{
	for (uint64_t n = any(40); n; n--)
		emit(rig->seq++, any(50) ? 0 : HMB_REC_FLAG_TRUNCATED, 0);
}

static void do_drop(void)
{
	rig->seq += (uint32_t)any(any(20) ? 50 : 1u << 31);
	shadow.flags = any(3) ? shadow.flags | HMB_RING_FLAG_OVERFLOWED : 0;
	__atomic_store_n(&rig->hdr->flags, shadow.flags, __ATOMIC_RELAXED);
	do_good();
}

static void do_glitch(void)
{
	emit(rig->seq++ ^ (1u << any(32)), 0, 0);
	do_good();
}

static void do_unknown_flags(void)
{
	emit(rig->seq++, (uint8_t)(1 + any(63)) << 2, 0);
}

static void do_lie(void)
{
	/* It may be cut with its stamp, and what it swallows is cut where it ends (R8, R11). */
	spoil_until(rig->head + 4 * 4096);
	emit(rig->seq++, 0, (int)any(400) - STAMP_SIZE);
	do_good();
}

static void do_junk(void)
{
	uint64_t words[64], n = any(64);

	for (uint64_t i = 0; i < n; i++)
		words[i] = random_state * (i + 1) ^ any(1 << 30);
	if (rig->head + n * 8 - true_tail() > RING)
		return;
	put_bytes(words, n * 8);
	publish();
}

/* Dies in mid-record, and begins anew: sometimes with numbers that were there lately. */
static void do_restart(void)
{
	do_junk();
	rig->seq = any(4) ? (uint32_t)any(100) : rig->seq - (uint32_t)any(3000);
	do_good();
}

static void do_back(void)
{
	rig->seq -= (uint32_t)any(any(2) ? 3 : 1 << 30);
	do_good();
}

/* Overwrite what nobody has read yet. */
static void do_stomp(void)
{
	uint64_t unread = rig->head - true_tail();

	spoil_unread();
	for (uint64_t n = any(20); n && unread && unread <= RING; n--) {
		uint64_t at = (rig->head - 1 - any(unread)) & (RING - 1);

		((uint8_t *)rig->hdr)[HMB_RECORD_AREA_OFF + at] = (uint8_t)any(256);
	}
}

static void pause_a_little(void)
{
	usleep((useconds_t)any(any(4) ? 100 : 4000));
}

static void store_head(uint64_t head)
{
	shadow.head = head;
	__atomic_store_n(&rig->hdr->head, head, __ATOMIC_RELEASE);
}

/* Cursors that make no sense, or that offer again what was read long ago. */
static void do_cursors(void)
{
	uint64_t heads[] = { rig->head + 4, rig->head - 8 * any(RING / 8), rig->head + RING + 8,
			     rig->head + 8 * any(RING / 8), (uint64_t)any(1 << 30) << 20 };

	everything_may_repeat();
	if (any(2))
		store_head(heads[any(5)]);
	else
		__atomic_store_n(&rig->hdr->tail, heads[any(5)], __ATOMIC_RELEASE);
	pause_a_little();
	if (any(2))
		store_head(rig->head);
	else
		rig->head = shadow.head & ~(uint64_t)7, store_head(rig->head);
	everything_may_repeat();
}

static void do_reinit(void)
{
	uint64_t cursor = any(2) ? 0 : 8 * any(1 << 30);

	everything_may_repeat();
	__atomic_store_n(&rig->hdr->magic, 0, __ATOMIC_RELEASE);
	if (any(2))
		pause_a_little();
	rig->head = shadow.head = cursor;
	shadow.flags = 0;
	rig->seq = (uint32_t)any(1 << 20);
	rig_reset_ring(rig, cursor);
	__atomic_store_n(&rig->hdr->magic, HMB_RING_MAGIC, __ATOMIC_RELEASE);
	/* Nothing of the old ring is spoiled from here on, but what the collector may still read. */
	spoiled_until = cursor;
}

/* A header field that is wrong for a while. */
static void do_header(void)
{
	uint32_t *fields[] = { &rig->hdr->magic, &rig->hdr->version, &rig->hdr->ring_size,
			       &rig->hdr->record_area_off, &rig->hdr->reserved0 };
	uint32_t *field = fields[any(5)], before = *field;

	everything_may_repeat();
	__atomic_store_n(field, any(2) ? before << any(3) : (uint32_t)any(1 << 20),
			 __ATOMIC_RELEASE);
	pause_a_little();
	__atomic_store_n(field, before, __ATOMIC_RELEASE);
	everything_may_repeat();
}

static void do_flags(void)
{
	shadow.flags = (uint32_t)any(any(2) ? 4 : 1 << 30);
	__atomic_store_n(&rig->hdr->flags, shadow.flags, __ATOMIC_RELAXED);
}

static void do_pause(void)
{
	pause_a_little();
	forget_read();
}

static void (*const acts[])(void) = {
	do_good, do_good,	   do_good, do_good, do_good, do_pause,	 do_pause,   do_pause,
	do_drop, do_unknown_flags, do_lie,  do_junk, do_back, do_glitch, do_restart,
};
static void (*const crimes[])(void) = { do_stomp, do_cursors, do_reinit, do_header, do_flags };

/* Everything in the first page but `tail` is as firmware wrote it. */
static void check_page(void)
{
	struct hmb_ring_hdr found = *rig->hdr;

	found.tail = shadow.tail = 0;
	CHECK(memcmp(&found, &shadow, sizeof(found)) == 0);
}

static void run_firmware(uint64_t seconds)
{
	uint64_t end = now_ms() + seconds * 1000;

	while (now_ms() < end && next_id < IDS) {
		for (uint64_t n = any(1000); n; n--)
			acts[any(sizeof(acts) / sizeof(acts[0]))]();
		check_page();
		crimes[any(sizeof(crimes) / sizeof(crimes[0]))]();
		check_page();
	}
	/* A good end, so that nothing waits for a record that never comes. */
	do_reinit();
	shadow.flags = 0;
	__atomic_store_n(&rig->hdr->flags, 0, __ATOMIC_RELAXED);
	do_good();
}

/* ---- collector: what a daemon does about each stop ---- */

static int reattach(void)
{
	struct hmb_refusal refusal;

	return hmb_ring_attach(&rig->c.ring, rig->consumer, rig->region, &refusal) == 0;
}

static void go_on_in_a_new_epoch(int give_up)
{
	int err;

	do {
		usleep(300);
		err = reattach() ? hmb_collector_new_epoch(&rig->c, give_up) : -EINVAL;
		CHECK(err == 0 || err == -EINVAL || err == -EILSEQ || err == -ENOSPC ||
		      err == -HMB_STOP_REINIT);
	} while (err && !__atomic_load_n(&rig->c.stop, __ATOMIC_RELAXED));
}

static void *run_collector(void *unused)
{
	int stop;

	while ((stop = hmb_collector_run(&rig->c)) != HMB_STOP_ASKED) {
		rig->c.keep_frozen = stop == HMB_STOP_FROZEN;
		CHECK(stop == HMB_STOP_FROZEN || stop == HMB_STOP_REINIT ||
		      stop == HMB_STOP_INVALID);
		if (stop != HMB_STOP_FROZEN)
			go_on_in_a_new_epoch(stop == HMB_STOP_INVALID);
		if (__atomic_load_n(&rig->c.stop, __ATOMIC_RELAXED))
			break;
	}
	while (hmb_collector_finish(&rig->c))
		usleep(300);
	__atomic_store_n(&collector_done, 1, __ATOMIC_RELEASE);
	return unused;
}

/* ---- writer: what came out, and whether it adds up ---- */

/* Its third word tells a stamp from what is left of one. */
static int stamped(const uint8_t *at, uint64_t *id)
{
	uint64_t words[3];

	memcpy(words, at, sizeof(words));
	*id = words[1];
	return words[0] == STAMP && words[1] && words[1] < IDS &&
	       (words[2] ^ words[1] * STAMP) <= HMB_RECORD_MAX_PAYLOAD;
}

/* Stamps anywhere in bytes that begin at a multiple of 8. */
static void trace(const uint8_t *bytes, uint64_t n)
{
	uint64_t id;

	for (uint64_t at = 0; at + STAMP_SIZE <= n; at += 8)
		if (stamped(bytes + at, &id))
			mark(id, TRACED);
}

/* Its content is what was published, as far as its length does not lie. */
static void check_content(const struct hmb_record_hdr *header, uint64_t id)
{
	const uint8_t *payload = (const void *)(header + 1);
	uint8_t expected[4096];
	uint64_t words[3], length;

	memcpy(words, payload, sizeof(words));
	length = HMB_MIN(words[2] ^ id * STAMP, header->payload_len);
	memset(expected, (int)id, sizeof(expected));
	CHECK(length >= STAMP_SIZE && length <= HMB_RECORD_MAX_PAYLOAD);
	CHECK(memcmp(payload + STAMP_SIZE, expected, length - STAMP_SIZE) == 0);
}

static void take_record(const struct hmb_record_hdr *header)
{
	uint8_t before;
	uint64_t id;

	trace((const uint8_t *)(header + 1), hmb_align8(header->payload_len));
	if (header->payload_len < STAMP_SIZE || !stamped((const uint8_t *)(header + 1), &id))
		return;
	before = __atomic_load_n(&fate[id], __ATOMIC_RELAXED);
	CHECK(before & PUBLISHED);
	mark(id, DUMPED);
	if (before & (SPOILED | MAY_REPEAT))
		return;
	CHECK(!(before & DUMPED));
	check_content(header, id);
}

static void take_data(const uint8_t *data, uint64_t n)
{
	for (uint64_t at = 0; at < n;) {
		const struct hmb_record_hdr *header = (const void *)(data + at);
		int is_marker = header->flags & HMB_REC_FLAG_WRAP_MARKER;
		uint64_t span = HMB_RECORD_HDR_SIZE + hmb_align8(header->payload_len);

		CHECK(header->magic == HMB_RECORD_MAGIC && at + span <= n);
		CHECK(is_marker ? !header->payload_len
				: header->payload_len <= HMB_RECORD_MAX_PAYLOAD);
		walked_markers += !!is_marker;
		walked_records += !is_marker;
		if (!is_marker)
			take_record(header);
		at += span;
	}
	walked_bytes += n;
}

/* Rejects may come in pieces: a stamp that two of them share is looked for in both. */
static void take_reject(const struct hmb_event *event)
{
	static uint8_t joined[4 * 8];
	static uint64_t end;
	const uint8_t *bytes = (const void *)(event + 1);

	told.rejected_bytes += event->length;
	told.rejected_records += event->reason == HMB_REJECT_UNKNOWN_FLAGS;
	trace(bytes, event->length);
	if (event->reason == HMB_REJECT_MARKER)
		return;
	if (event->cursor != end)
		memset(joined, 0, sizeof(joined));
	for (uint64_t at = 0; at < event->length; at += 8) {
		memmove(joined, joined + 8, sizeof(joined) - 8);
		memcpy(joined + sizeof(joined) - 8, bytes + at, 8);
		if (at <= STAMP_SIZE)
			trace(joined, sizeof(joined));
	}
	end = event->cursor + event->length;
}

static void take_event(const struct hmb_event *event)
{
	CHECK_EQUAL(event->magic, HMB_EVENT_MAGIC);
	CHECK(event->host_ns != 0);
	told.gaps += event->kind == HMB_EV_GAP && event->c;
	told.lost += event->kind == HMB_EV_GAP ? event->c : 0;
	told.rejected_records += event->kind == HMB_EV_GAP ? event->d : 0;
	told.duplicates += event->kind == HMB_EV_DUPLICATE;
	told.sequence_resets += event->kind == HMB_EV_SEQ_RESET;
	told.seq_glitches += event->kind == HMB_EV_SEQ_GLITCH;
	told.overflow_episodes += event->kind == HMB_EV_OVERFLOW;
	told.overruns += event->kind == HMB_EV_OVERRUN;
	told.epochs += event->kind == HMB_EV_EPOCH;
	told.unknown_losses += event->kind == HMB_EV_LOSS_BEFORE ||
			       event->kind == HMB_EV_LOSS_UNKNOWN ||
			       (event->kind == HMB_EV_OVERFLOW_END && !event->c);
	if (event->kind == HMB_EV_REJECT)
		take_reject(event);
}

static uint64_t take_all(void)
{
	struct hmb_spool *spool = &rig->c.spool;
	struct hmb_writer_commit done;
	struct hmb_commit last;
	uint64_t at, n;

	hmb_spool_read_writer(spool, &done);
	hmb_spool_read_commit(spool, &last);
	for (at = done.journal_tail; at != last.journal_head;) {
		const struct hmb_event *event =
			(const void *)(spool->journal + at % spool->journal_size);

		take_event(event);
		at += sizeof(*event) + hmb_align8(event->length);
	}
	n = last.data_head - done.data_tail;
	CHECK(n <= spool->data_size);
	take_data(spool->data + done.data_tail % spool->data_size, n);
	done.journal_tail = last.journal_head;
	done.data_tail = last.data_head;
	hmb_spool_commit_writer(spool, &done);
	return n;
}

static void *run_writer(void *unused)
{
	uint32_t end;
	uint64_t n;

	do {
		end = __atomic_load_n(&collector_done, __ATOMIC_ACQUIRE);
		n = take_all();
		usleep((useconds_t)(n ? 100 : 1000));
	} while (n || !end);
	return unused;
}

/* ---- the account ---- */

static void check_account(void)
{
	const struct hmb_counters *counted = &rig->c.state.counters;

	CHECK_EQUAL(walked_records, counted->records);
	CHECK_EQUAL(walked_markers, counted->wrap_markers + counted->partial_markers);
	CHECK_EQUAL(walked_bytes, counted->bytes);
	CHECK_EQUAL(told.rejected_bytes, counted->rejected_bytes);
	CHECK_EQUAL(told.rejected_records, counted->rejected_records);
	CHECK_EQUAL(told.gaps, counted->gaps);
	CHECK_EQUAL(told.lost, counted->lost);
	CHECK_EQUAL(told.duplicates, counted->duplicates);
	CHECK_EQUAL(told.sequence_resets, counted->sequence_resets);
	CHECK_EQUAL(told.seq_glitches, counted->seq_glitches);
	CHECK_EQUAL(told.overflow_episodes, counted->overflow_episodes);
	CHECK_EQUAL(told.overruns, counted->overruns);
	CHECK_EQUAL(told.epochs, counted->epochs);
	CHECK_EQUAL(told.unknown_losses, counted->unknown_losses);
}

/* What firmware published and left alone is in the dump or in the rejects. */
static void check_ledger(void)
{
	uint64_t dumped = 0, traced = 0, spoiled = 0;

	for (uint64_t id = 1; id < next_id; id++) {
		int gone = (fate[id] & (SPOILED | TRACED | PUBLISHED)) == PUBLISHED;

		if (gone)
			fprintf(stderr, "record %ju of %ju is gone\n", (uintmax_t)id,
				(uintmax_t)next_id);
		CHECK(!gone);
		dumped += !!(fate[id] & DUMPED);
		spoiled += !!(fate[id] & SPOILED);
		traced += (fate[id] & (SPOILED | DUMPED)) == 0;
	}
	printf("published %ju: dumped %ju, in the rejects %ju, spoiled by firmware %ju; epochs %ju\n",
	       (uintmax_t)next_id - 1, (uintmax_t)dumped, (uintmax_t)traced, (uintmax_t)spoiled,
	       (uintmax_t)rig->c.state.counters.epochs);
	CHECK(dumped > next_id / 20);
}

/* With nothing to do the collector sleeps. */
static void check_idle(void)
{
	uint64_t before;

	usleep(200000);
	before = __atomic_load_n(&rig->c.passes, __ATOMIC_RELAXED);
	usleep(300000);
	CHECK(__atomic_load_n(&rig->c.passes, __ATOMIC_RELAXED) - before < 600);
}

static long resident_kb(void)
{
	struct rusage usage;

	CHECK_EQUAL(getrusage(RUSAGE_SELF, &usage), 0);
	return usage.ru_maxrss;
}

int main(int argc, char **argv)
{
	uint64_t seconds = argc > 2 ? strtoull(argv[2], NULL, 10) : 5;
	pthread_t collector, writer;
	long before;

	random_state = argc > 1 ? strtoull(argv[1], NULL, 10) * 7919 + 1 : 1;
	rig = rig_open(RING, SPOOL, 0);
	fate = rig_shared(IDS);
	shadow = *rig->hdr;
	rig->c.invalid_ns = 2 * RIG_MS;
	CHECK_EQUAL(hmb_collector_begin(&rig->c), 0);
	before = resident_kb();
	CHECK_EQUAL(pthread_create(&collector, NULL, run_collector, NULL), 0);
	CHECK_EQUAL(pthread_create(&writer, NULL, run_writer, NULL), 0);
	run_firmware(seconds);
	check_idle();
	__atomic_store_n(&rig->c.stop, 1, __ATOMIC_RELAXED);
	CHECK_EQUAL(pthread_join(collector, NULL), 0);
	CHECK_EQUAL(pthread_join(writer, NULL), 0);
	check_page();
	check_account();
	check_ledger();
	CHECK(resident_kb() - before < GROWTH_KB);
	return 0;
}
