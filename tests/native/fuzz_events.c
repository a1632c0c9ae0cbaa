// SPDX-License-Identifier: Apache-2.0
/*
 * libFuzzer: any bytes as a dump, and any catalog, to events (SPEC P6).  The answer must be the
 * same in one piece and through buffers and tables that are always too small, late durations
 * patched in; every record is an event or the end of a pair.
 */
#include "check.h"

enum { RULES = 5, TEXT = 32, SMALL_OUT = 80, SLOTS = 4096 };

struct catalog {
	uint32_t index[1 << 16];
	struct hmb_rule rules[RULES];
	uint8_t texts[TEXT];
};

struct output {
	struct hmb_event_maker maker;
	uint8_t *payload;
	int end;
};

static struct hmb_payload_int field(uint8_t byte)
{
	static const uint8_t sizes[] = { 0, 1, 2, 4, 8 };

	return (struct hmb_payload_int){ .offset = byte & 7,
					 .size = sizes[(byte >> 3) % 5],
					 .is_signed = byte >> 7 };
}

static void fill_catalog(struct catalog *catalog, const uint8_t seed[RULES * 4])
{
	for (int i = 0; i < RULES; i++, seed += 4) {
		catalog->rules[i] = (struct hmb_rule){
			.kind = i ? seed[0] % 4 : HMB_RULE_INSTANT,
			.event_type = seed[0] >> 2,
			.pair = seed[1] & 1,
			.key = field(seed[1] & 0x80 ? seed[2] : 0),
			.duration = field(seed[3]),
			.text_length = seed[3] & 15,
			.cycles_div = seed[2] & 1 ? 1 : 1000,
			.cycles_mul = 1000,
			.ns_div = seed[2] & 1 ? 1 : 800,
			.ns_mul = 1000,
		};
		if (catalog->rules[i].kind == HMB_RULE_COMPLETE && !catalog->rules[i].duration.size)
			catalog->rules[i].duration.size = 4;
	}
	if (catalog->index[1])
		return;
	for (int opcode = 0; opcode < 1 << 16; opcode++)
		catalog->index[opcode] = (uint32_t)(opcode % RULES);
}

static void begin(struct output *output, const struct catalog *catalog, uint32_t encoding,
		  uint64_t slots, uint64_t room)
{
	output->maker = (struct hmb_event_maker){
		.rules = { catalog->index, catalog->rules, catalog->texts },
		.open = { .slots = calloc(slots, sizeof(struct hmb_open)),
			  .size = slots,
			  .seed = 7 },
		.clock_mhz = 1500,
		.encoding = encoding,
	};
	output->payload = malloc(room);
}

static void grow(struct hmb_open_table *table)
{
	struct hmb_open_table bigger = *table;

	bigger.slots = calloc(table->size * 2, sizeof(struct hmb_open));
	bigger.size = table->size * 2;
	bigger.used = 0;

	CHECK_EQUAL(hmb_open_rehash(table, &bigger, 0), 0);
	CHECK_EQUAL(bigger.used, table->used);
	free(table->slots);
	*table = bigger;
}

static void take(struct output *output, struct hmb_step *step)
{
	uint64_t at = output->maker.position - step->out_len;

	memcpy(output->payload + at, step->out, step->out_len);
	for (uint64_t i = 0; i < step->patches_len; i++) {
		CHECK(step->patches[i].position + 8 <= at);
		memcpy(output->payload + step->patches[i].position, &step->patches[i].duration, 8);
	}
	step->out_len = step->patches_len = 0;
}

static void make(struct output *output, const uint8_t *data, uint64_t n, uint64_t out_cap,
		 uint64_t patches)
{
	struct hmb_step step = {
		.input = data,
		.input_len = n,
		.out = malloc(out_cap),
		.out_cap = out_cap,
		.patches = calloc(patches, sizeof(struct hmb_patch)),
		.patches_cap = patches,
	};

	do {
		output->end = hmb_make_events(&output->maker, &step);
		take(output, &step);
		if (output->end == HMB_STEP_TABLE)
			grow(&output->maker.open);
	} while (output->end > 0);
	CHECK(step.consumed <= n);
	free(step.patches);
	free(step.out);
}

static void check_same(const struct output *whole, const struct output *steps)
{
	const struct hmb_event_maker *a = &whole->maker, *b = &steps->maker;

	CHECK_EQUAL(whole->end, steps->end);
	CHECK_EQUAL(a->position, b->position);
	CHECK_EQUAL(a->events + a->pairs, a->records);
	CHECK_EQUAL(b->pairs, a->pairs);
	CHECK_EQUAL(b->unmatched_begins, a->unmatched_begins);
	CHECK_EQUAL(b->unmatched_ends, a->unmatched_ends);
	CHECK_EQUAL(b->open.used, a->open.used);
	CHECK_EQUAL(b->cycles, a->cycles);
	CHECK(!memcmp(whole->payload, steps->payload, a->position));
}

/* Random bytes hardly ever make a record: put magic and a short payload_len where one is due. */
static void make_records(uint8_t *data, uint64_t n)
{
	struct hmb_record_hdr hdr;

	for (uint64_t at = 0; n - at >= sizeof(hdr);
	     at += sizeof(hdr) + hmb_align8(hdr.payload_len)) {
		memcpy(&hdr, data + at, sizeof(hdr));
		hdr.magic = HMB_RECORD_MAGIC;
		hdr.payload_len &= 31;
		if (hdr.flags & HMB_REC_FLAG_WRAP_MARKER)
			hdr.payload_len = 0;
		memcpy(data + at, &hdr, sizeof(hdr));
		if (n - at < sizeof(hdr) + hmb_align8(hdr.payload_len))
			break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	static struct catalog catalog;
	struct output whole, steps;
	uint64_t room;
	uint8_t *exact;

	if (n < 1 + RULES * 4)
		return 0;
	fill_catalog(&catalog, data + 1);
	exact = malloc(n);
	n -= 1 + RULES * 4;
	memcpy(exact, data + 1 + RULES * 4, n);
	if (data[0] & 2)
		make_records(exact, n);
	room = n * 2 + 64;
	begin(&whole, &catalog, data[0] & 1, SLOTS, room);
	begin(&steps, &catalog, data[0] & 1, 4, room);
	make(&whole, exact, n, room, SLOTS);
	make(&steps, exact, n, SMALL_OUT, 1);
	check_same(&whole, &steps);
	free(whole.maker.open.slots);
	free(steps.maker.open.slots);
	free(whole.payload);
	free(steps.payload);
	free(exact);
	return 0;
}
