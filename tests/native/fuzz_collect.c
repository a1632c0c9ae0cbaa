// SPDX-License-Identifier: Apache-2.0
/*
 * libFuzzer: any ring whatsoever.  The collector must neither read nor write a
 * byte beyond its buffers, must end, must write nothing but tail, and what it
 * calls a dump must be one.
 *
 * Input: SETTINGS bytes, then a script of what firmware, sane or not, wrote.
 */
#include "check.h"

enum { SETTINGS = 20, SINK = 1 << 20, MAX_PASSES = 100000 };

/* What the script is made of; every other byte value is one of these by modulo. */
enum op { OP_RECORD, OP_TINY, OP_MARKER, OP_RAW, OP_LIE, OP_FLAGS, OP_SKIP_SEQ, OP_LAP, OPS };

struct script {
	const uint8_t *data;
	size_t n;
	struct hmb_ring_hdr *hdr;
	uint64_t end; /* the ring is full here */
	uint32_t seq;
};

static uint8_t next(struct script *s)
{
	if (!s->n)
		return 0;
	s->n--;
	return *s->data++;
}

static uint64_t next64(struct script *s)
{
	uint64_t value = 0;

	for (int i = 0; i < 8; i++)
		value = value << 8 | next(s);
	return value;
}

/* Straddling the lap end like the producer that only guards the header (R3.3). */
static void write_ring(struct script *s, const void *data, uint64_t n)
{
	uint8_t *area = (uint8_t *)s->hdr + HMB_RECORD_AREA_OFF;

	for (uint64_t i = 0; i < n && s->hdr->head != s->end; i++)
		area[s->hdr->head++ & (s->hdr->ring_size - 1)] = ((const uint8_t *)data)[i];
}

static void write_record(struct script *s, uint32_t payload, uint32_t stated, uint8_t flags)
{
	uint8_t bytes[256] = { 0 };
	struct hmb_record_hdr header = check_header(s->seq, s->seq * 10, (uint16_t)stated);

	s->seq++;
	header.flags = flags;
	write_ring(s, &header, sizeof(header));
	for (uint32_t i = 0; i < payload; i++)
		bytes[i] = next(s);
	write_ring(s, bytes, hmb_align8(payload));
}

static void write_raw(struct script *s)
{
	for (int left = next(s) % 64; left >= 0; left--) {
		uint8_t byte = next(s);

		write_ring(s, &byte, 1);
	}
}

static void step(struct script *s)
{
	uint64_t lap = s->hdr->ring_size;
	uint32_t payload;

	switch (next(s) % OPS) {
	case OP_RECORD:
		payload = next(s);
		write_record(s, payload, payload, 0);
		break;
	case OP_TINY:
		write_record(s, 0, 0, 0);
		break;
	case OP_MARKER:
		write_record(s, 0, next(s) & 7 ? 0 : 40, HMB_REC_FLAG_WRAP_MARKER);
		s->seq--;
		break;
	case OP_RAW:
		write_raw(s);
		break;
	case OP_LIE:
		write_record(s, 16, next(s) * 17u, 0);
		break;
	case OP_FLAGS:
		write_record(s, 8, 8, next(s));
		break;
	case OP_SKIP_SEQ:
		s->seq += next(s) & 1 ? next(s) : (uint32_t)next64(s);
		break;
	case OP_LAP:
		while (s->hdr->head & (lap - 1) && s->hdr->head != s->end)
			s->hdr->head++;
		break;
	}
}

static struct hmb_ring_hdr *make_ring(const uint8_t *data, size_t n)
{
	uint32_t ring_size = 32u << (data[0] % 9);
	struct script script = { .data = data + 4, .n = n - 4 };
	uint64_t start = next64(&script) & ~7ull, skew = next64(&script);

	script.hdr = check_region(ring_size, start);
	script.end = start + ring_size;
	script.seq = data[2] & 0x80 ? 0xFFFFFFF0u : 1;
	while (script.n && script.hdr->head != script.end)
		step(&script);
	script.hdr->head &= ~7ull;
	script.hdr->flags = data[2] & 7;
	if ((data[1] & 15) == 15) /* rarely: cursors that are no cursors */
		script.hdr->head += skew;
	return script.hdr;
}

/* What was collected must be whole records with legal headers, whatever the ring held. */
static void check_dump(const struct hmb_sink *sink, const struct hmb_state *state)
{
	struct hmb_walk walk = { 0 };

	CHECK_EQUAL(hmb_walk(&walk, sink->data, sink->data_len, NULL, NULL, NULL), HMB_WALK_DONE);
	CHECK_EQUAL(walk.offset, sink->data_len);
	CHECK_EQUAL(walk.records, state->counters.records);
	CHECK_EQUAL(state->pos, sink->data_len);
	CHECK_EQUAL(state->counters.bytes, sink->data_len);
}

static void check_events(const struct hmb_sink *sink)
{
	uint64_t at = 0;

	while (at < sink->events_len) {
		const struct hmb_event *event = (const struct hmb_event *)(sink->events + at);

		CHECK(sink->events_len - at >= sizeof(*event));
		CHECK_EQUAL(event->magic, hmb_event_magic());
		at += sizeof(*event) + hmb_align8(event->length);
	}
	CHECK_EQUAL(at, sink->events_len);
}

static void drain(const struct hmb_ring *ring, const struct hmb_options *options,
		  struct hmb_sink *sink)
{
	struct hmb_ring_hdr *hdr = (struct hmb_ring_hdr *)ring->base;
	uint64_t begin = hdr->tail, consumed = 0;
	struct hmb_state state;
	int64_t result = hmb_state_begin(&state, ring);

	for (int pass = 0; result >= 0; pass++) {
		CHECK(pass < MAX_PASSES);
		result = hmb_collect(ring, &state, options, sink, NULL);
		/* The capture ends: what only waits for more is taken (R9). */
		if (result == 0 && hmb_collect_release(&state))
			continue;
		if (result <= 0)
			break;
		consumed += (uint64_t)result;
		CHECK(consumed <= hdr->head - begin);
		CHECK_EQUAL(state.tail, begin + consumed);
		CHECK_EQUAL(hmb_ring_store_tail(ring, state.tail - (uint64_t)result, state.tail),
			    0);
	}
	if (result == 0 && !hmb_collect_finish(&state, sink))
		CHECK(!state.episode_open && state.pending.state != HMB_PENDING_WAITS);
	if (hmb_cursors_valid(hdr->head, begin, ring->ring_size) && result != -ENOSPC) {
		check_dump(sink, &state);
		check_events(sink);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static uint8_t dump[SINK], events[SINK];
	struct hmb_sink sink = {
		.data = dump, .data_cap = SINK, .events = events, .events_cap = SINK
	};
	struct hmb_options options = { 0 };
	struct hmb_ring_hdr *hdr;
	struct hmb_ring ring;
	uint8_t *before;
	uint64_t size;

	if (n < SETTINGS)
		return 0;
	options.keep_unknown_flags = data[3] & 1;
	options.stop_on_corrupt = data[3] >> 1 & 1;
	options.index_bytes = data[3] & 4 ? 256 : 0;
	hdr = make_ring(data, n);
	size = HMB_RECORD_AREA_OFF + (uint64_t)hdr->ring_size;
	before = malloc(size);
	memcpy(before, hdr, size);
	ring = check_attach(hdr);
	drain(&ring, &options, &sink);
	((struct hmb_ring_hdr *)before)->tail = hdr->tail;
	CHECK(memcmp(before, hdr, size) == 0);
	free(before);
	free(hdr);
	return 0;
}
