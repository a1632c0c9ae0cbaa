/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring, a spool and a collector between them.  The ring's memory is mapped
 * twice: `hdr` is what firmware sees, `consumer` what we see of it, and there
 * all but the first page is read-only.  Everything is shared, so that a forked
 * process can be killed and another go on.
 */
#ifndef RIG_H
#define RIG_H

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "testpoint.h"

enum { RIG_JOURNAL = 1 << 18, RIG_MS = 1000000 };

struct rig {
	struct hmb_ring_hdr *hdr;
	uint8_t *consumer;
	uint64_t region;
	uint64_t ring_size;
	int spool_fd;
	uint64_t spool_bytes;
	struct hmb_collector c;
	/* firmware */
	uint64_t head;
	uint32_t seq;
	uint64_t ts_ns;
	uint8_t *dump; /* what a dump of all that was emitted must be */
	uint64_t dump_len;
	uint64_t dump_cap;
	/* writer */
	uint8_t *got;
	uint64_t got_len;
	uint64_t got_cap;
};

static inline void *rig_shared(uint64_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	return memory;
}

static inline void rig_reset_ring(struct rig *rig, uint64_t cursor)
{
	rig->head = cursor;
	rig->hdr->flags = 0;
	__atomic_store_n(&rig->hdr->tail, cursor, __ATOMIC_RELEASE);
	__atomic_store_n(&rig->hdr->head, cursor, __ATOMIC_RELEASE);
}

static inline void rig_map_ring(struct rig *rig, uint64_t cursor)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	int fd = memfd_create("ring", 0);

	rig->region = (HMB_RECORD_AREA_OFF + rig->ring_size + page - 1) / page * page;
	CHECK(fd >= 0 && ftruncate(fd, (off_t)rig->region) == 0);
	rig->hdr = mmap(NULL, rig->region, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	rig->consumer = mmap(NULL, rig->region, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(rig->hdr != MAP_FAILED && rig->consumer != MAP_FAILED);
	if (rig->region > page)
		CHECK_EQUAL(mprotect(rig->consumer + page, rig->region - page, PROT_READ), 0);
	close(fd);
	rig->hdr->magic = HMB_RING_MAGIC;
	rig->hdr->version = HMB_TRACE_ABI_VERSION;
	rig->hdr->ring_size = (uint32_t)rig->ring_size;
	rig->hdr->record_area_off = HMB_RECORD_AREA_OFF;
	rig_reset_ring(rig, cursor);
}

static inline void rig_attach(struct rig *rig)
{
	struct hmb_refusal refusal;

	CHECK_EQUAL(hmb_ring_attach(&rig->c.ring, rig->consumer, rig->region, &refusal), 0);
}

/* In shared memory, so that forked processes see one rig. */
static inline struct rig *rig_open(uint64_t ring_size, uint64_t spool_size, uint64_t cursor)
{
	struct rig *rig = rig_shared(sizeof(*rig));

	rig->ring_size = ring_size;
	rig_map_ring(rig, cursor);
	rig_attach(rig);
	rig->spool_fd = memfd_create("spool", 0);
	rig->spool_bytes = hmb_spool_file_size(spool_size, RIG_JOURNAL);
	CHECK(rig->spool_fd >= 0 && ftruncate(rig->spool_fd, (off_t)rig->spool_bytes) == 0);
	CHECK_EQUAL(hmb_spool_map(&rig->c.spool, rig->spool_fd, rig->spool_bytes, spool_size,
				  RIG_JOURNAL, "rig", 1),
		    0);
	rig->c.latency_ns = 100000;
	rig->c.idle_ns = 2 * RIG_MS;
	rig->c.invalid_ns = 100 * RIG_MS;
	rig->c.batch_bytes = 32768;
	rig->dump_cap = rig->got_cap = 32 << 20;
	rig->dump = rig_shared(rig->dump_cap);
	rig->got = rig_shared(rig->got_cap);
	return rig;
}

static inline void rig_close(struct rig *rig)
{
	hmb_spool_unmap(&rig->c.spool);
	close(rig->spool_fd);
	munmap(rig->dump, rig->dump_cap);
	munmap(rig->got, rig->got_cap);
	munmap(rig->hdr, rig->region);
	munmap(rig->consumer, rig->region);
	munmap(rig, sizeof(*rig));
}

/* ---- firmware ---- */

static inline void rig_publish(struct rig *rig)
{
	/* Pairs with the consumer's acquire load of head. */
	__atomic_store_n(&rig->hdr->head, rig->head, __ATOMIC_RELEASE);
}

static inline int rig_has_room(const struct rig *rig, uint64_t need)
{
	/* Pairs with the consumer's release store of tail. */
	return rig->head + need - __atomic_load_n(&rig->hdr->tail, __ATOMIC_ACQUIRE) <=
	       rig->ring_size;
}

static inline void rig_put(struct rig *rig, const void *bytes, uint64_t n)
{
	memcpy((uint8_t *)rig->hdr + HMB_RECORD_AREA_OFF + (rig->head & (rig->ring_size - 1)),
	       bytes, n);
	rig->head += n;
}

static inline void rig_expect(struct rig *rig, const void *bytes, uint64_t n)
{
	CHECK(rig->dump_len + n <= rig->dump_cap);
	memcpy(rig->dump + rig->dump_len, bytes, n);
	rig->dump_len += n;
}

static inline uint64_t rig_left(const struct rig *rig)
{
	return rig->ring_size - (rig->head & (rig->ring_size - 1));
}

/* R3: a marker, or as much of one as fits; not published by itself. */
static inline void rig_wrap(struct rig *rig, uint64_t left)
{
	struct hmb_record_hdr marker = check_header(rig->seq, rig->ts_ns, 0), dumped;

	marker.flags = HMB_REC_FLAG_WRAP_MARKER;
	dumped = marker;
	if (left < 16)
		dumped.ts_ns = rig->seq ? rig->ts_ns - 1 : 0; /* R4: that of the record before */
	rig_put(rig, &marker, HMB_MIN(left, sizeof(marker)));
	rig->head += left - HMB_MIN(left, sizeof(marker));
	rig_expect(rig, &dumped, sizeof(dumped));
}

/* Emit one record with these flags, unless the ring is full. `dumped`: it belongs in the dump. */
static inline int rig_emit_flags(struct rig *rig, uint16_t length, uint8_t flags, int dumped)
{
	uint8_t record[4096] = { 0 };
	uint64_t span = HMB_RECORD_HDR_SIZE + hmb_align8(length), left = rig_left(rig);
	uint64_t skip = span > left ? left : 0;
	struct hmb_record_hdr header = check_header(rig->seq, rig->ts_ns, length);

	if (!rig_has_room(rig, skip + span))
		return 0;
	if (skip)
		rig_wrap(rig, left);
	header.flags = flags;
	memcpy(record, &header, sizeof(header));
	memset(record + sizeof(header), (int)(rig->seq * 7 + 1), length);
	rig_put(rig, record, span);
	if (dumped)
		rig_expect(rig, record, span);
	rig->seq++;
	rig->ts_ns++;
	rig_publish(rig);
	return 1;
}

static inline int rig_emit(struct rig *rig, uint16_t length)
{
	return rig_emit_flags(rig, length, 0, 1);
}

static inline void rig_fill(struct rig *rig, uint16_t length)
{
	while (rig_emit(rig, length))
		;
}

/* ---- writer ---- */

/* Take what the spool holds and free it. */
static inline uint64_t rig_take(struct rig *rig, struct hmb_spool *spool)
{
	struct hmb_writer_commit done;
	uint64_t n;

	hmb_spool_read_writer(spool, &done);
	n = hmb_spool_data_head(spool) - done.data_tail;
	CHECK(n <= spool->data_size && rig->got_len + n <= rig->got_cap);
	hmb_spool_copy(spool, rig->got + rig->got_len, done.data_tail, n);
	rig->got_len += n;
	done.data_tail += n;
	done.journal_tail = hmb_spool_journal_head(spool);
	hmb_spool_commit_writer(spool, &done);
	return n;
}

static inline void rig_check_dump(const struct rig *rig)
{
	CHECK_EQUAL(rig->got_len, rig->dump_len);
	CHECK(memcmp(rig->got, rig->dump, rig->dump_len) == 0);
}

/* How many events of a kind stand in the journal, and the last of them. */
static inline uint32_t rig_events(const struct rig *rig, uint16_t kind, struct hmb_event *last)
{
	const struct hmb_spool *spool = &rig->c.spool;
	uint64_t at = hmb_spool_journal_tail(spool), end = hmb_spool_journal_head(spool);
	const struct hmb_event *event;
	uint32_t count = 0;

	for (; at != end; at += sizeof(*event) + hmb_align8(event->length)) {
		event = (const void *)(spool->journal + at % spool->journal_size);
		CHECK_EQUAL(event->magic, HMB_EVENT_MAGIC);
		if (event->kind != kind)
			continue;
		count++;
		if (last)
			*last = *event;
	}
	return count;
}

/* ---- processes that are killed ---- */

static uint32_t rig_kill_at, rig_kill_after; /* at a step of the n-th commit from now */

/* What the library calls at its test points (capture/testpoint.h). */
void hmb_testpoint(enum hmb_testpoint point)
{
	if (point == rig_kill_at && rig_kill_after == 1)
		raise(SIGKILL);
	if (point == HMB_TESTPOINT_AFTER_TAIL && rig_kill_after > 1)
		rig_kill_after--;
}

/* Like a fresh daemon: map the spool anew, decide, go on. Returns the decision. */
static inline int rig_restart(struct rig *rig)
{
	struct hmb_commit last;
	int continues;

	hmb_spool_unmap(&rig->c.spool);
	CHECK_EQUAL(hmb_spool_map(&rig->c.spool, rig->spool_fd, rig->spool_bytes, 0, 0, NULL, 0),
		    0);
	rig_attach(rig);
	continues = hmb_spool_continues(&rig->c.spool, &rig->c.ring, &rig->c.options);
	if (!continues)
		return 0;
	hmb_spool_read_commit(&rig->c.spool, &last);
	if (continues == 2)
		CHECK_EQUAL(hmb_ring_store_tail(&rig->c.ring, last.tail_before, last.tail_after),
			    0);
	hmb_collector_resume(&rig->c);
	return continues;
}

/* Run the collector in a process of its own that dies at the n-th commit from now. */
static inline void rig_run_and_die(struct rig *rig, uint32_t kill_at, uint32_t kill_after)
{
	pid_t child = fork();
	int status;

	CHECK(child >= 0);
	if (!child) {
		struct hmb_collector c = rig->c; /* what dies with the process */

		rig_kill_at = kill_at;
		rig_kill_after = kill_after;
		hmb_collector_run(&c);
		_exit(1);
	}
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

#endif
