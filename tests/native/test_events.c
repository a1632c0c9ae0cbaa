// SPDX-License-Identifier: Apache-2.0
/* Sorting and merging events: stable, complete, and inside their buffers (SPEC P6). */
#include "check.h"

enum { MOST = 3000, ROUNDS = 60, RUNS = 7 };

static uint64_t dice_state = 7;

static uint64_t dice(void)
{
	dice_state ^= dice_state << 13;
	dice_state ^= dice_state >> 7;
	dice_state ^= dice_state << 17;
	return dice_state;
}

static uint64_t start_of(const struct hmb_flat_event *event)
{
	uint64_t start;

	memcpy(&start, event->start_cycle, sizeof(start));
	return start;
}

static uint32_t number_of(const struct hmb_flat_event *event)
{
	uint32_t number;

	memcpy(&number, event->core_id, sizeof(number));
	return number;
}

/* Events numbered by core_id; spread 0 makes all of them start together. */
static struct hmb_flat_event *some_events(uint64_t n, uint64_t slope, uint64_t spread)
{
	struct hmb_flat_event *events = calloc(n + !n, sizeof(*events));

	for (uint64_t i = 0; i < n; i++) {
		uint64_t start = i * slope + (spread ? dice() % spread : 0);
		uint32_t number = (uint32_t)i;

		memcpy(events[i].core_id, &number, sizeof(number));
		memcpy(events[i].start_cycle, &start, sizeof(start));
	}
	return events;
}

static void check_sorted(const struct hmb_flat_event *events, uint64_t n)
{
	uint8_t *seen = calloc(1, n + 1);

	CHECK_EQUAL(hmb_events_sorted(events, n), n);
	for (uint64_t i = 0; i < n; i++) {
		CHECK(number_of(&events[i]) < n && !seen[number_of(&events[i])]);
		seen[number_of(&events[i])] = 1;
		if (i && start_of(&events[i]) == start_of(&events[i - 1]))
			CHECK(number_of(&events[i]) > number_of(&events[i - 1]));
	}
	free(seen);
}

static void check_sort(uint64_t n, uint64_t slope, uint64_t spread)
{
	struct hmb_flat_event *events = some_events(n, slope, spread);
	struct hmb_flat_event *scratch = calloc(n / 2 + !(n / 2), sizeof(*scratch));

	hmb_events_sort(events, n, scratch);
	check_sorted(events, n);
	free(scratch);
	free(events);
}

/* Runs in memory a few events at a time, output a few at a time. */
static void check_merge(uint64_t n, uint64_t slope, uint64_t spread)
{
	struct hmb_flat_event *events = some_events(n, slope, spread);
	struct hmb_flat_event *scratch = calloc(n + 1, sizeof(*scratch));
	struct hmb_flat_event *out = calloc(n + 1, sizeof(*out));
	uint64_t order[RUNS], size = n / RUNS + 1, done = 0, refill;
	struct hmb_run runs[RUNS];

	for (uint64_t i = 0; i < RUNS; i++) {
		uint64_t from = HMB_MIN(i * size, n), to = HMB_MIN(from + size, n);

		hmb_events_sort(events + from, to - from, scratch);
		runs[i] = (struct hmb_run){ events + from, events + from, to - from };
	}
	while (done < n) {
		done += hmb_events_merge(runs, RUNS, order, out + done, HMB_MIN(n - done, 5),
					 &refill);
		if (refill < RUNS && runs[refill].more) {
			uint64_t more = HMB_MIN(runs[refill].more, 3);

			CHECK(runs[refill].next == runs[refill].end);
			runs[refill].end += more;
			runs[refill].more -= more;
		}
	}
	check_sorted(out, n);
	free(out);
	free(scratch);
	free(events);
}

int main(void)
{
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t n = i < 30 ? (uint64_t)i : dice() % MOST, spread = dice() % 2000;

		check_sort(n, dice() % 3, spread);
		check_merge(n, dice() % 3, spread);
	}
	return 0;
}
