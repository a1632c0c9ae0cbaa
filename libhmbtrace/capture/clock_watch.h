/* SPDX-License-Identifier: Apache-2.0 */
/* The firmware's clock against ours, pass by pass (SPEC R16). */
#ifndef HMB_CLOCK_WATCH_H
#define HMB_CLOCK_WATCH_H

#include "core.h"

/* What is known of a pass that took records, beside the state that it left. */
struct hmb_clock_look {
	uint64_t pos; /* of the pass's first dump byte, which is data[0] */
	uint64_t ts_ns; /* of the last record before */
	const uint8_t *data;
	uint64_t data_len;
	/*
	 * Its last record was published at most so long ago; 0: nobody can tell, since the pass did
	 * not drain the ring.
	 */
	uint64_t age_ns;
	uint32_t had_record; /* ts_ns means something */
};

/*
 * Note a step of the firmware's clock in this pass, if there is one.  Needs room for an event.
 * Returns 1 if there was: a pair of clocks right behind it is worth having.
 */
int hmb_watch_clock(struct hmb_state *state, struct hmb_sink *sink,
		    const struct hmb_clock_look *look);

#endif
