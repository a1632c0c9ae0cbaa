// SPDX-License-Identifier: Apache-2.0
/*
 * Steps of the firmware's clock (SPEC R16).  Nearly all passes only compare two numbers; the
 * records of a pass are looked at one by one once it is known that the clock stepped in it.
 */
#include "clock.h"
#include "clock_watch.h"
#include "pass.h"
#include "sequence.h"

/* What two good clocks may differ by: crystals, and a host clock that is being slewed. */
#define DRIFT_DIVISOR 1000u
/* Cores write a little out of order; readers take less for no step either. */
#define JITTER_NS 1000000u
/* Steps written one by one between two index events: a firmware without a clock has no more. */
#define MAX_STEPS 256u

struct step {
	uint64_t offset; /* of the first record after it, in the pass's data */
	uint64_t before; /* times of the records around it */
	uint64_t after;
	uint64_t size; /* how far apart, in the direction that was looked for */
	uint32_t seq;
};

/* Where the time jumps furthest, backwards or forwards, among the records of a pass. */
static struct step find_jump(const struct hmb_clock_look *look, int backwards)
{
	struct step found = { .before = look->ts_ns };
	uint64_t previous = look->ts_ns, at = 0;
	int any = 0;

	while (at < look->data_len) {
		const struct hmb_record_hdr *hdr = (const void *)(look->data + at);
		uint64_t size = backwards ? previous - hdr->ts_ns : hdr->ts_ns - previous;

		if (!hmb_is_marker(hdr)) {
			int jump = (int64_t)size > 0 && size > found.size;

			if (!any || jump)
				found = (struct step){ at, previous, hdr->ts_ns, jump ? size : 0,
						       hdr->seq };
			previous = hdr->ts_ns;
			any = 1;
		}
		at += hmb_dumped_span(hdr);
	}
	return found;
}

/* How far the firmware's clock moved against the host's since the pair before. */
static int64_t moved(const struct hmb_clock_pair *from, const struct hmb_clock_pair *to)
{
	return (int64_t)((to->ts_ns - from->ts_ns) - (to->host_ns - from->host_ns));
}

static uint64_t error_bound(const struct hmb_clock_pair *from, const struct hmb_clock_pair *to)
{
	uint64_t between = to->host_ns - from->host_ns;

	/* A host clock that was set back is a step whatever the bound. */
	return from->error_ns + to->error_ns + ((int64_t)between > 0 ? between / DRIFT_DIVISOR : 0);
}

static void note_step(struct hmb_state *state, struct hmb_sink *sink,
		      const struct hmb_clock_look *look, const struct step *step, int64_t size,
		      uint64_t error)
{
	struct hmb_event *event;

	state->counters.clock_steps++;
	if (state->clock_events >= MAX_STEPS) {
		state->counters.events_suppressed++;
		return;
	}
	state->clock_events++;
	event = hmb_note(state, sink, HMB_EV_CLOCK_STEP);
	event->pos = look->pos + step->offset;
	event->ts_ns = step->after;
	event->seq = step->seq;
	event->a = step->before;
	event->c = (uint64_t)size;
	event->d = error;
}

/* Of the pass's first record; a backlog has its steps inside the first pass. */
static uint64_t first_time(const struct hmb_clock_look *look, uint64_t otherwise)
{
	uint64_t at = 0;

	while (at < look->data_len) {
		const struct hmb_record_hdr *hdr = (const void *)(look->data + at);

		if (!hmb_is_marker(hdr))
			return hdr->ts_ns;
		at += hmb_dumped_span(hdr);
	}
	return otherwise;
}

int hmb_watch_clock(struct hmb_state *state, struct hmb_sink *sink,
		    const struct hmb_clock_look *seen)
{
	struct hmb_clock_pair now = { state->last_ts_ns, realtime_ns(), seen->age_ns }, last;
	struct hmb_clock_look from = *seen, *look = &from;
	int backwards;
	struct step step;
	uint64_t bound = 0;
	int64_t size = 0;

	if (!look->had_record)
		look->ts_ns = first_time(look, state->last_ts_ns);
	backwards = hmb_time_went_back(look->ts_ns, state->last_ts_ns) &&
		    look->ts_ns - state->last_ts_ns > JITTER_NS;
	last = state->clock;
	if (look->age_ns && last.error_ns) {
		size = moved(&last, &now);
		bound = error_bound(&last, &now);
	}
	if (look->age_ns)
		state->clock = now;
	/*
	 * Behind without going backwards may be a record that firmware published late, and ahead may
	 * be the next one that was not: a step is a jump between two records as well.
	 */
	if (!backwards && (!look->had_record || size <= (int64_t)bound))
		return 0;
	step = find_jump(look, backwards);
	if (!backwards && step.size < (uint64_t)size / 2)
		return 0;
	/* Without a pair on either side all that is known is the jump itself. */
	if (!bound) {
		size = (int64_t)(step.after - step.before);
		bound = last.error_ns ? now.host_ns - last.host_ns : 0;
	}
	note_step(state, sink, look, &step, size, bound);
	return 1;
}
