// SPDX-License-Identifier: Apache-2.0
/*
 * The reference producer alone: every byte that it writes, and none that it
 * must not.  Run under ASan and UBSan by test_firmware.py; the region is a heap
 * block of exactly the ring's size.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expect.h"
#include "hmb_producer.h"

#define STALE 0xa5

struct rig {
	struct hmb_producer p;
	struct hmb_ring_hdr *hdr;
	uint8_t *area;
};

static struct rig start(uint32_t size, uint64_t cursor, uint32_t seq)
{
	struct rig rig = { .hdr = malloc(HMB_RECORD_AREA_OFF + (size_t)size) };

	CHECK(rig.hdr != NULL);
	memset(rig.hdr, STALE, HMB_RECORD_AREA_OFF + (size_t)size);
	CHECK(hmb_producer_init(&rig.p, rig.hdr, size, cursor, seq) == 0);
	rig.area = (uint8_t *)rig.hdr + HMB_RECORD_AREA_OFF;
	return rig;
}

static void finish(struct rig *rig)
{
	free(rig->hdr);
}

static struct hmb_record_hdr record_at(const struct rig *rig, uint64_t offset)
{
	struct hmb_record_hdr hdr;

	memcpy(&hdr, rig->area + offset, sizeof(hdr));
	return hdr;
}

static void read_all(struct rig *rig)
{
	rig->hdr->tail = rig->hdr->head;
}

static void emit(struct rig *rig, uint32_t length)
{
	uint8_t payload[HMB_RECORD_MAX_PAYLOAD];

	memset(payload, 0x5a, sizeof(payload));
	CHECK(hmb_producer_emit(&rig->p, 1000 + rig->p.seq, 7, 2, payload, length) == 0);
}

static void test_header_r1(void)
{
	struct rig rig = start(4096, 0xfffffffffffff000u, 5);

	CHECK(rig.hdr->magic == HMB_RING_MAGIC && rig.hdr->version == HMB_TRACE_ABI_VERSION);
	CHECK(rig.hdr->ring_size == 4096 && rig.hdr->record_area_off == HMB_RECORD_AREA_OFF);
	CHECK(rig.hdr->head == 0xfffffffffffff000u && rig.hdr->tail == rig.hdr->head);
	CHECK(!rig.hdr->flags && !rig.hdr->reserved0 && !rig.hdr->reserved1);
	CHECK(!rig.hdr->reserved2 && !rig.hdr->reserved3);
	CHECK(rig.area[0] == STALE); /* the area is the host's to clear, or nobody's */
	finish(&rig);
}

static void test_bad_geometry_writes_nothing(void)
{
	uint8_t *block = calloc(1, 8192 + 1);
	struct hmb_producer p;

	CHECK(hmb_producer_init(&p, block, 0, 0, 0) == -1);
	CHECK(hmb_producer_init(&p, block, 16, 0, 0) == -1);
	CHECK(hmb_producer_init(&p, block, 4097, 0, 0) == -1);
	CHECK(hmb_producer_init(&p, block, 4096, 4, 0) == -1);
	CHECK(hmb_producer_init(&p, block + 4, 4096, 0, 0) == -1);
	for (int i = 0; i < 8193; i++)
		CHECK(block[i] == 0);
	free(block);
}

static void test_record_bytes_and_padding_r11(void)
{
	struct rig rig = start(4096, 0, 41);
	struct hmb_record_hdr hdr;

	emit(&rig, 13);
	hdr = record_at(&rig, 0);
	CHECK(hdr.magic == HMB_RECORD_MAGIC && hdr.seq == 41 && hdr.ts_ns == 1041);
	CHECK(hdr.opcode == 7 && hdr.cpu == 2 && hdr.flags == 0 && hdr.payload_len == 13);
	CHECK(hdr.reserved0 == 0 && hdr.reserved1 == 0);
	for (int i = 0; i < 13; i++)
		CHECK(rig.area[32 + i] == 0x5a);
	for (int i = 13; i < 16; i++)
		CHECK(rig.area[32 + i] == 0);
	CHECK(rig.area[48] == STALE);
	CHECK(rig.hdr->head == 48 && rig.p.seq == 42);
	finish(&rig);
}

static void test_nothing_is_visible_before_commit_r2(void)
{
	struct rig rig = start(4096, 0, 0);
	uint8_t *payload = hmb_producer_begin(&rig.p, 1, 2, 3, 0, 5);

	CHECK(payload == rig.area + 32 && rig.hdr->head == 0);
	CHECK(rig.area[37] == 0 && rig.area[38] == 0 && rig.area[39] == 0); /* R11 */
	memcpy(payload, "hello", 5);
	hmb_producer_end(&rig.p);
	CHECK(rig.hdr->head == 0);
	CHECK(hmb_producer_begin(&rig.p, 2, 2, 3, 0, 0) != NULL);
	hmb_producer_commit(&rig.p);
	CHECK(rig.hdr->head == 72 && record_at(&rig, 40).seq == 1);
	finish(&rig);
}

static void test_clipped_payload_is_flagged(void)
{
	struct rig rig = start(16384, 0, 0);
	uint8_t *big = calloc(1, 9000);

	CHECK(hmb_producer_emit(&rig.p, 1, 2, 3, big, 9000) == 0);
	CHECK(record_at(&rig, 0).payload_len == HMB_RECORD_MAX_PAYLOAD);
	CHECK(record_at(&rig, 0).flags == HMB_REC_FLAG_TRUNCATED);
	CHECK(hmb_producer_begin(&rig.p, 1, 2, 3, 0, HMB_RECORD_MAX_PAYLOAD + 1) == NULL);
	CHECK(rig.p.refused == 1 && rig.p.dropped == 0 && rig.hdr->flags == 0);
	free(big);
	finish(&rig);
}

/* left: bytes of the lap when a record of 40 comes that does not fit. */
static void check_wrap(uint64_t left)
{
	struct rig rig = start(4096, 4096 - left, 9);
	struct hmb_record_hdr marker = { 0 };
	uint64_t whole = left < 32 ? left : 32;

	emit(&rig, 8);
	memcpy(&marker, rig.area + 4096 - left, whole);
	CHECK(marker.magic == HMB_RECORD_MAGIC && marker.seq == 9);
	CHECK(left < 16 || marker.ts_ns == 1009);
	CHECK(left < 24 || (marker.flags == HMB_REC_FLAG_WRAP_MARKER && !marker.payload_len));
	CHECK(left <= 32 || rig.area[4096 - left + 32] == STALE);
	CHECK(record_at(&rig, 0).seq == 9 && rig.p.seq == 10); /* the marker took no seq */
	CHECK(rig.hdr->head == 4096 + 40);
	finish(&rig);
}

static void test_wrap_r3_markers(void)
{
	struct rig exact = start(4096, 4096 - 40, 0);

	check_wrap(8);
	check_wrap(16);
	check_wrap(24);
	check_wrap(32);
	emit(&exact, 8); /* fits to the byte: no marker */
	CHECK(exact.hdr->head == 4096 && exact.p.markers == 0);
	finish(&exact);
}

static void test_space_check_r3_covers_skip_and_record(void)
{
	/* 64 bytes left of the lap, 128 bytes free: a record of 96 needs 160. */
	struct rig rig = start(4096, 4096 - 64, 0);

	rig.p.tail = rig.hdr->tail = 4096 - 64 + 128 - 4096;
	CHECK(!hmb_producer_has_room(&rig.p, 0, 64));
	CHECK(hmb_producer_begin(&rig.p, 1, 2, 3, 0, 64) == NULL);
	CHECK(rig.p.head == 4096 - 64 && rig.p.markers == 0); /* and no marker that promises */
	CHECK(rig.area[4096 - 64] == STALE);
	rig.hdr->tail += 32;
	CHECK(hmb_producer_has_room(&rig.p, 0, 64));
	finish(&rig);
}

static void test_drop_r5_sets_overflowed_and_takes_a_seq(void)
{
	struct rig rig = start(64, 0, 0);

	emit(&rig, 0);
	emit(&rig, 0);
	CHECK(hmb_producer_emit(&rig.p, 1, 2, 3, "", 0) == -1);
	CHECK(rig.hdr->flags == HMB_RING_FLAG_OVERFLOWED && rig.p.dropped == 1);
	read_all(&rig);
	emit(&rig, 0);
	CHECK(record_at(&rig, 0).seq == 3);
	rig.p.drops_keep_seq = 1;
	emit(&rig, 0);
	CHECK(hmb_producer_emit(&rig.p, 1, 2, 3, "", 0) == -1);
	read_all(&rig);
	emit(&rig, 0);
	CHECK(record_at(&rig, 0).seq == 5 && rig.p.dropped == 2);
	finish(&rig);
}

static void test_tail_that_makes_no_sense_means_no_room_r2(void)
{
	struct rig rig = start(4096, 0, 0);

	rig.p.tail = rig.hdr->tail = 8; /* ahead of head */
	CHECK(!hmb_producer_fits(&rig.p, 8));
	rig.hdr->tail = (uint64_t)-8192; /* more than a ring behind */
	CHECK(!hmb_producer_fits(&rig.p, 8));
	rig.hdr->tail = 0;
	CHECK(hmb_producer_fits(&rig.p, 4096) && !hmb_producer_fits(&rig.p, 4104));
	finish(&rig);
}

static void test_freeze_and_flags(void)
{
	struct rig rig = start(4096, 0, 0);

	hmb_producer_set_flags(&rig.p, HMB_RING_FLAG_FROZEN, 0);
	CHECK(rig.hdr->flags == HMB_RING_FLAG_FROZEN);
	hmb_producer_set_flags(&rig.p, HMB_RING_FLAG_OVERFLOWED, HMB_RING_FLAG_FROZEN);
	CHECK(rig.hdr->flags == HMB_RING_FLAG_OVERFLOWED);
	finish(&rig);
}

/* A ring of one largest record: skip and record never fit together. */
static void test_marker_goes_ahead_in_a_tiny_ring(void)
{
	struct rig rig = start(4096, 0, 3);

	emit(&rig, 100);
	read_all(&rig);
	CHECK(hmb_producer_emit(&rig.p, 1, 2, 3, "", 0) == 0);
	read_all(&rig);
	CHECK(hmb_producer_begin(&rig.p, 9, 2, 3, 0, HMB_RECORD_MAX_PAYLOAD) == NULL);
	CHECK(rig.hdr->head == 4096); /* the marker alone */
	CHECK(record_at(&rig, 168).flags == HMB_REC_FLAG_WRAP_MARKER);
	CHECK(record_at(&rig, 168).seq == 4); /* of the record before: no reader counts it */
	read_all(&rig);
	emit(&rig, HMB_RECORD_MAX_PAYLOAD);
	CHECK(record_at(&rig, 0).seq == 6 && rig.hdr->head == 8192);
	finish(&rig);
}

/* Many laps near 2^64 and 2^32: sanitizers watch the edges. */
static void test_long_run_wraps_cursor_and_seq(void)
{
	struct rig rig = start(8192, 0xffffffffffff0000u, 0xfffff000u);

	for (uint32_t i = 0; i < 20000; i++) {
		if (i % 3 == 0)
			read_all(&rig);
		emit(&rig, i * 37 % 700);
		CHECK(rig.hdr->head - rig.hdr->tail <= 8192 && rig.hdr->head % 8 == 0);
	}
	CHECK(rig.hdr->head < 0x1000000u && rig.p.seq == 0xfffff000u + 20000u);
	CHECK(rig.p.dropped == 0);
	finish(&rig);
}

int main(void)
{
	test_header_r1();
	test_bad_geometry_writes_nothing();
	test_record_bytes_and_padding_r11();
	test_nothing_is_visible_before_commit_r2();
	test_clipped_payload_is_flagged();
	test_wrap_r3_markers();
	test_space_check_r3_covers_skip_and_record();
	test_drop_r5_sets_overflowed_and_takes_a_seq();
	test_tail_that_makes_no_sense_means_no_room_r2();
	test_freeze_and_flags();
	test_marker_goes_ahead_in_a_tiny_ring();
	test_long_run_wraps_cursor_and_seq();
	return 0;
}
