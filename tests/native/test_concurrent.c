// SPDX-License-Identifier: Apache-2.0
/*
 * Firmware, collector and writer at once, each on its own thread: every byte
 * arrives once, in order, and ThreadSanitizer finds each access ordered by the
 * barriers that the comments claim.
 */
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

enum { RECORDS = 60000, RING = 16384, SPOOL = 1 << 16, MAX_PAYLOAD = 200 };

struct firmware {
	struct hmb_ring_hdr *hdr;
	uint64_t head;
	uint64_t fnv; /* of everything as it must appear in the dump */
	uint64_t bytes;
	uint64_t dumped;
};

static uint64_t mix(uint64_t n)
{
	n = (n ^ (n >> 31)) * 0x9E3779B97F4A7C15u;
	return n ^ (n >> 29);
}

static void wait_for_room(struct firmware *f, uint64_t need)
{
	/* Pairs with the consumer's release store of tail. */
	while (f->head + need - __atomic_load_n(&f->hdr->tail, __ATOMIC_ACQUIRE) > RING)
		sched_yield();
}

static void put(struct firmware *f, const void *data, uint64_t n)
{
	memcpy((uint8_t *)f->hdr + HMB_RECORD_AREA_OFF + (f->head & (RING - 1)), data, n);
	f->head += n;
}

static void account(struct firmware *f, const void *data, uint64_t n)
{
	f->fnv = hmb_fnv1a_64(data, n, f->fnv);
	f->bytes += n;
}

/* R3: a marker, or as much of it as fits, before a record that does not fit in the lap. */
static void wrap_if_needed(struct firmware *f, uint32_t seq, uint64_t ts_ns, uint64_t size)
{
	struct hmb_record_hdr marker = check_header(seq, ts_ns, 0);
	uint64_t left = RING - (f->head & (RING - 1));
	struct hmb_record_hdr dumped = marker;

	if (size <= left)
		return;
	marker.flags = dumped.flags = HMB_REC_FLAG_WRAP_MARKER;
	if (left < 16)
		dumped.ts_ns = seq ? ts_ns - 1 : 0; /* R4: that of the record before */
	wait_for_room(f, left + size);
	put(f, &marker, HMB_MIN(left, sizeof(marker)));
	f->head += left - HMB_MIN(left, sizeof(marker));
	account(f, &dumped, sizeof(dumped));
}

static void *produce(void *arg)
{
	struct firmware *f = arg;
	uint8_t record[sizeof(struct hmb_record_hdr) + MAX_PAYLOAD + 8];

	for (uint32_t seq = 0; seq < RECORDS; seq++) {
		uint16_t length = (uint16_t)(mix(seq) % MAX_PAYLOAD);
		struct hmb_record_hdr header = check_header(seq, seq, length);
		uint64_t size = sizeof(header) + hmb_align8(length);

		memset(record, 0, sizeof(record));
		memcpy(record, &header, sizeof(header));
		memset(record + sizeof(header), (int)(seq & 0xFF), length);
		wrap_if_needed(f, seq, seq, size);
		wait_for_room(f, size);
		put(f, record, size);
		account(f, record, size);
		/* Pairs with the consumer's acquire load of head. */
		__atomic_store_n(&f->hdr->head, f->head, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void *collect(void *arg)
{
	struct hmb_collector *c = arg;

	CHECK_EQUAL(hmb_collector_run(c), HMB_STOP_ASKED);
	return NULL;
}

/* What the daemon's writer does, without a file: take, hash, give the room back. */
static uint64_t take(struct hmb_collector *c, struct hmb_writer_commit *done, uint64_t *fnv)
{
	static uint8_t piece[SPOOL];
	uint64_t n;

	n = hmb_spool_wait(&c->spool, done->data_tail, 4096, done->journal_tail, 20000000,
			   &c->wake);
	CHECK(n <= SPOOL);
	hmb_spool_copy(&c->spool, piece, done->data_tail, n);
	*fnv = hmb_fnv1a_64(piece, n, *fnv);
	done->data_tail += n;
	done->journal_tail = hmb_spool_journal_head(&c->spool);
	hmb_spool_commit_writer(&c->spool, done);
	return n;
}

static void open_spool(struct hmb_collector *c)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), journal = 16 * page;
	uint64_t size = hmb_spool_file_size(SPOOL, journal);
	int fd = memfd_create("spool", 0);

	CHECK(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
	CHECK_EQUAL(hmb_spool_map(&c->spool, fd, size, SPOOL, journal, "test", 1), 0);
	close(fd);
}

int main(void)
{
	struct firmware firmware = { .fnv = hmb_fnv1a_64_basis() };
	struct hmb_collector c = { .latency_ns = 50000,
				   .idle_ns = 1000000,
				   .invalid_ns = 100000000 };
	struct hmb_writer_commit done = { 0 };
	uint64_t fnv = hmb_fnv1a_64_basis();
	pthread_t producer, collector;

	firmware.hdr = check_region(RING, 0);
	c.ring = check_attach(firmware.hdr);
	c.batch_bytes = RING;
	open_spool(&c);
	CHECK_EQUAL(hmb_collector_begin(&c), 0);
	hmb_spool_commit_writer(&c.spool, &done);
	pthread_create(&collector, NULL, collect, &c);
	pthread_create(&producer, NULL, produce, &firmware);
	while (done.data_tail < 1000000)
		take(&c, &done, &fnv);
	/* From here on the writer lags: the spool fills, and then the ring. */
	usleep(20000);
	while (pthread_tryjoin_np(producer, NULL) != 0)
		take(&c, &done, &fnv);
	__atomic_store_n(&c.stop, 1, __ATOMIC_RELAXED);
	while (pthread_tryjoin_np(collector, NULL) != 0)
		take(&c, &done, &fnv);
	while (take(&c, &done, &fnv))
		;
	CHECK_EQUAL(c.state.counters.records, RECORDS);
	CHECK_EQUAL(c.state.counters.lost, 0);
	CHECK_EQUAL(c.state.counters.rejected_bytes, 0);
	CHECK_EQUAL(done.data_tail, firmware.bytes);
	CHECK_EQUAL(fnv, firmware.fnv);
	CHECK_EQUAL(firmware.hdr->tail, firmware.hdr->head);
	hmb_spool_unmap(&c.spool);
	free(firmware.hdr);
	return 0;
}
