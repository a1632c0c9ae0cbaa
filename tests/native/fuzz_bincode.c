// SPDX-License-Identifier: Apache-2.0
/*
 * libFuzzer: any bytes whatsoever as a bincode payload (SPEC P5, P6).  The reader must stay
 * inside them, and must give the same answer in one piece and event by event.
 */
#include "check.h"

enum { MANY = 512 };

struct result {
	struct hmb_bincode state;
	struct hmb_flat_event events[MANY];
	uint64_t count;
	int64_t end;
};

static void check_strings(const struct hmb_bincode *state, const struct hmb_event_strings *strings,
			  uint64_t n)
{
	for (uint64_t i = 0; i < state->strings_len; i++) {
		const struct hmb_event_strings *one = &strings[i];

		CHECK(one->type_offset + one->type_length <= n);
		if (one->has_api)
			CHECK(one->api_offset + one->api_length <= n);
	}
}

static void read_in_steps(struct result *result, const uint8_t *payload, uint64_t n, uint64_t cap)
{
	struct hmb_event_strings strings[MANY];

	result->state = (struct hmb_bincode){ .left = MANY };
	do {
		uint64_t done = 0;

		result->end =
			hmb_bincode_read(&result->state, payload, n, result->events + result->count,
					 cap, cap == 1 ? NULL : strings, &done);
		if (cap > 1)
			check_strings(&result->state, strings, n);
		result->count += done;
		CHECK(result->state.position <= n);
	} while (result->end > 0 && !result->state.last);
}

enum { FIXED = 20, LENGTH = 8 };

/* Cut a random length to 0..15; returns where the string ends. */
static uint64_t shorten(uint8_t *data, uint64_t n, uint64_t at)
{
	if (n - at < LENGTH)
		return n;
	data[at] &= 15;
	memset(data + at + 1, 0, LENGTH - 1);
	return HMB_MIN(n, at + LENGTH + data[at]);
}

/* Random bytes hardly ever make an event: put short strings and good tags where they are due. */
static void make_events(uint8_t *data, uint64_t n)
{
	uint64_t at = 0;

	while (n - at > FIXED) {
		at = shorten(data, n, at + FIXED);
		if (at == n)
			return;
		data[at] &= 1;
		at = data[at] ? shorten(data, n, at + 1) : at + 1;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct result *whole = calloc(2, sizeof(*whole)), *steps = whole + 1;
	uint8_t *exact = malloc(n + !n), *again = malloc(MANY * hmb_bincode_most());

	memcpy(exact, data, n);
	if (n && data[n - 1] & 1)
		make_events(exact, n);
	read_in_steps(whole, exact, n, MANY);
	read_in_steps(steps, exact, n, 1);
	CHECK_EQUAL(whole->count, steps->count);
	CHECK_EQUAL(whole->end < 0, steps->end < 0);
	CHECK_EQUAL(whole->state.fault, steps->state.fault);
	CHECK_EQUAL(whole->state.fault_offset, steps->state.fault_offset);
	CHECK(!memcmp(whole->events, steps->events, whole->count * sizeof(whole->events[0])));
	CHECK(hmb_bincode_write(whole->events, whole->count, again) <=
	      whole->count * hmb_bincode_most());
	free(again);
	free(exact);
	free(whole);
	return 0;
}
