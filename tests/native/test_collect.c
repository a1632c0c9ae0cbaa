// SPDX-License-Identifier: Apache-2.0
/*
 * hmb_collect() where its window cuts the stream: a capture in the smallest
 * sinks must come to the same as one in a large sink, whatever stands in the
 * ring.  And a pass keeps to its buffers, and either takes something or says
 * why not.
 */
#include "check.h"

enum { RING = 1 << 16, LARGE = 1 << 22, CANARY = 64, SEEDS = 400, MAX_PASSES = 10000 };

static uint64_t random_state;

static uint32_t below(uint32_t n)
{
	random_state = random_state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(random_state >> 33) % n;
}

/* ---- a ring full of whatever firmware, sane or not, leaves ---- */

struct firmware {
	struct hmb_ring_hdr *hdr;
	uint64_t end;
	uint32_t seq;
};

static uint64_t left(const struct firmware *f)
{
	return RING - (f->hdr->head & (RING - 1));
}

static void put(struct firmware *f, const void *bytes, uint64_t n)
{
	uint8_t *area = (uint8_t *)f->hdr + HMB_RECORD_AREA_OFF;

	for (uint64_t i = 0; i < n && f->hdr->head != f->end; i++)
		area[f->hdr->head++ & (RING - 1)] = ((const uint8_t *)bytes)[i];
}

static uint16_t some_length(void)
{
	return (uint16_t)below(below(8) ? 100 : HMB_RECORD_MAX_PAYLOAD + 1);
}

static void put_record(struct firmware *f, uint16_t length, uint16_t stated, uint8_t flags)
{
	struct hmb_record_hdr header = check_header(f->seq, f->seq * 10ull, stated);
	uint8_t payload[4096];

	header.flags = flags;
	memset(payload, (int)(0x80 | f->seq), sizeof(payload));
	put(f, &header, sizeof(header));
	put(f, payload, hmb_align8(length));
	f->seq++;
}

static void put_wrap(struct firmware *f)
{
	struct hmb_record_hdr marker = check_header(f->seq, f->seq * 10ull, (uint16_t)below(2));
	uint8_t nothing[RING] = { 0 };
	uint64_t n = left(f);

	marker.flags = (uint8_t)(HMB_REC_FLAG_WRAP_MARKER | below(2) << 4);
	put(f, &marker, HMB_MIN(n, sizeof(marker)));
	put(f, nothing, n - HMB_MIN(n, sizeof(marker)));
}

static void put_garbage(struct firmware *f)
{
	uint64_t words[64];
	uint32_t n = 1 + below(64);

	for (uint32_t i = 0; i < n; i++)
		words[i] = below(4) ? below(1u << 30) : HMB_RECORD_MAGIC;
	put(f, words, 8 * n);
}

static void put_something(struct firmware *f)
{
	uint16_t length = some_length();

	if (left(f) < 400 && below(2)) {
		put_wrap(f);
		return;
	}
	switch (below(40)) {
	case 0:
		put_garbage(f);
		break;
	case 1:
		put_record(f, length, some_length(), 0); /* a length that lies */
		break;
	case 2:
		put_record(f, length, length, (uint8_t)below(256) & 0xFE);
		break;
	case 3:
		f->seq += below(5) - 2;
		break;
	default:
		put_record(f, length, length, below(8) ? 0 : HMB_REC_FLAG_TRUNCATED);
	}
}

static void fill(struct hmb_ring_hdr *hdr, uint32_t seed)
{
	struct firmware f = { .hdr = hdr, .seq = seed * 977u };

	random_state = seed;
	hdr->head = hdr->tail = 8ull * below(RING / 8) - (seed % 3 ? 0 : RING);
	f.end = hdr->head + RING;
	while (hdr->head != f.end)
		put_something(&f);
}

/* ---- a capture ---- */

struct capture {
	struct hmb_ring ring;
	struct hmb_state state;
	struct hmb_options options;
	uint8_t *dump;
	uint64_t dump_len;
	uint8_t *rejects; /* {cursor, length, reason} and bytes; neighbours joined */
	uint64_t rejects_len;
	uint64_t last_reject;
};

static uint64_t word_at(const struct capture *c, uint64_t at)
{
	uint64_t word;

	memcpy(&word, c->rejects + at, sizeof(word));
	return word;
}

static void keep_reject(struct capture *c, const struct hmb_event *event)
{
	uint64_t head[3] = { event->cursor, 0, event->reason }, length;

	if (!c->rejects_len || event->reason == HMB_REJECT_MARKER ||
	    word_at(c, c->last_reject) + word_at(c, c->last_reject + 8) != event->cursor ||
	    word_at(c, c->last_reject + 16) != event->reason) {
		c->last_reject = c->rejects_len;
		memcpy(c->rejects + c->rejects_len, head, sizeof(head));
		c->rejects_len += sizeof(head);
	}
	length = word_at(c, c->last_reject + 8) + event->length;
	memcpy(c->rejects + c->last_reject + 8, &length, sizeof(length));
	memcpy(c->rejects + c->rejects_len, event + 1, event->length);
	c->rejects_len += event->length;
}

static void keep(struct capture *c, const struct hmb_sink *sink)
{
	const struct hmb_event *event;

	memcpy(c->dump + c->dump_len, sink->data, sink->data_len);
	c->dump_len += sink->data_len;
	for (uint64_t at = 0; at != sink->events_len;
	     at += sizeof(*event) + hmb_align8(event->length)) {
		event = (const void *)(sink->events + at);
		CHECK_EQUAL(event->magic, HMB_EVENT_MAGIC);
		CHECK(event->pos <= c->state.pos);
		if (event->kind == HMB_EV_REJECT)
			keep_reject(c, event);
	}
}

static void check_canary(const uint8_t *end)
{
	for (int i = 0; i < CANARY; i++)
		CHECK_EQUAL(end[i], 0xC5);
}

/* One pass into buffers of exactly this size. */
static int64_t pass(struct capture *c, uint64_t data_cap, uint64_t events_cap)
{
	static uint8_t data[LARGE + CANARY] __attribute__((aligned(8)));
	static uint8_t events[LARGE + CANARY] __attribute__((aligned(8)));
	struct hmb_sink sink = {
		.data = data, .data_cap = data_cap, .events = events, .events_cap = events_cap
	};
	struct hmb_state before = c->state;
	int64_t result;

	memset(data + data_cap, 0xC5, CANARY);
	memset(events + events_cap, 0xC5, CANARY);
	result = hmb_collect(&c->ring, &c->state, &c->options, &sink, NULL);
	check_canary(data + data_cap);
	check_canary(events + events_cap);
	CHECK(result >= 0);
	CHECK_EQUAL(c->state.tail, before.tail + (uint64_t)result);
	CHECK_EQUAL(c->state.pos, before.pos + sink.data_len);
	CHECK_EQUAL(c->state.counters.ring_bytes, before.counters.ring_bytes + (uint64_t)result);
	keep(c, &sink);
	if (result)
		CHECK_EQUAL(hmb_ring_store_tail(&c->ring, before.tail, c->state.tail), 0);
	return result;
}

static void drain(struct capture *c, struct hmb_ring_hdr *hdr, uint64_t data_cap,
		  uint64_t events_cap)
{
	uint32_t passes = 0;

	c->ring = check_attach(hdr);
	CHECK_EQUAL(hmb_state_begin(&c->state, &c->ring), 0);
	while (pass(c, data_cap, events_cap))
		CHECK(++passes < MAX_PASSES);
	CHECK_EQUAL(pass(c, LARGE, LARGE), 0); /* it waits for head, not for room */
}

static void check_same(const struct capture *small, const struct capture *large)
{
	CHECK_EQUAL(small->dump_len, large->dump_len);
	CHECK(memcmp(small->dump, large->dump, small->dump_len) == 0);
	CHECK_EQUAL(small->rejects_len, large->rejects_len);
	CHECK(memcmp(small->rejects, large->rejects, small->rejects_len) == 0);
	CHECK_EQUAL(small->state.tail, large->state.tail);
	CHECK_EQUAL(small->state.last_seq, large->state.last_seq);
	CHECK_EQUAL(small->state.resync, large->state.resync);
	CHECK(memcmp(&small->state.counters, &large->state.counters, sizeof(struct hmb_counters)) ==
	      0);
}

/* What came out is a dump: it walks to its end. */
static void check_walks(const struct capture *c)
{
	struct hmb_walk walk = { 0 };

	CHECK_EQUAL(hmb_walk(&walk, c->dump, c->dump_len, NULL, NULL, NULL), HMB_WALK_DONE);
	CHECK_EQUAL(walk.records, c->state.counters.records);
	CHECK_EQUAL(walk.truncated, c->state.counters.truncated);
}

static void free_capture(struct capture *c)
{
	free(c->dump);
	free(c->rejects);
	*c = (struct capture){ 0 };
}

static void compare_sinks(struct hmb_ring_hdr *hdr, uint32_t seed)
{
	struct capture large = { .options.keep_unknown_flags = seed & 1 }, small = large;
	uint64_t data_cap, events_cap, tail;

	large.dump = malloc(LARGE), large.rejects = malloc(LARGE);
	small.dump = malloc(LARGE), small.rejects = malloc(LARGE);
	CHECK(large.dump && large.rejects && small.dump && small.rejects);
	fill(hdr, seed);
	tail = hdr->tail;
	data_cap = hmb_collect_min_data() + 8 * below(100);
	events_cap = hmb_collect_min_events() + 8 * below(100);
	drain(&large, hdr, LARGE, LARGE);
	hdr->tail = tail;
	drain(&small, hdr, seed & 2 ? data_cap : LARGE, seed & 4 ? events_cap : LARGE);
	check_same(&small, &large);
	check_walks(&large);
	free_capture(&large);
	free_capture(&small);
}

int main(void)
{
	struct hmb_ring_hdr *hdr = check_region(RING, 0);

	for (uint32_t seed = 1; seed <= SEEDS; seed++)
		compare_sinks(hdr, seed);
	free(hdr);
	return 0;
}
