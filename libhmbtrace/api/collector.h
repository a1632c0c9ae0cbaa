/* SPDX-License-Identifier: Apache-2.0 */
/* The loop that runs without the GIL. */

enum hmb_stop {
	HMB_STOP_ASKED = 1, /* stop was set */
	HMB_STOP_DRAINED, /* once: head reached (or a wrap that waits, or FROZEN and drained) */
	HMB_STOP_FROZEN, /* FROZEN and drained */
	HMB_STOP_REINIT, /* R6: header or tail rewritten, or cursors invalid for invalid_ns */
	HMB_STOP_INVALID, /* R2: cursors stayed invalid for invalid_ns under a valid header */
	HMB_STOP_CORRUPT, /* stop_on_corrupt */
	HMB_STOP_HANGUP, /* POLLHUP: the region went away */
	HMB_STOP_DEVICE, /* the tail call failed; error holds -errno */
};

struct hmb_collector {
	/* set before the run */
	struct hmb_ring ring;
	struct hmb_spool spool;
	struct hmb_options options;
	uint64_t latency_ns; /* longest wait while records come */
	uint64_t idle_ns; /* longest wait when none came for a while */
	uint64_t invalid_ns; /* R2: 100 ms */
	uint64_t batch_bytes; /* ring bytes a pass at most */
	uint32_t once;
	uint32_t keep_frozen; /* 1: FROZEN was already reported, wait for a change */
	/* set while it runs */
	uint32_t stop; /* by the other side: 1 drain to the head seen next, return; 2 return now */
	uint32_t wake; /* free for the writer */
	/* published while it runs, relaxed */
	uint64_t passes;
	uint64_t ring_head;
	uint64_t max_fill; /* most unread ring bytes seen */
	uint64_t max_spool_fill;
	uint64_t stalls; /* passes that found the spool full */
	uint64_t stalled_ns;
	uint32_t ring_flags; /* as the last pass found them */
	int32_t error;
	struct hmb_state state;
};

/* Run until something that the caller must decide: enum hmb_stop. */
int hmb_collector_run(struct hmb_collector *collector);
/*
 * R6: go on in a new epoch at the ring's own tail, after the caller ran R1
 * again (collector->ring is fresh).  give_up != 0 (R2): if its cursors are
 * invalid, at head & ~7, loss unknown.  A pass that was committed while its
 * tail could not be stored is handed back first, not taken again.
 * Commits HMB_EV_EPOCH.  0, -EILSEQ (cursors invalid, or head moves),
 * -ENOSPC (no room in the journal yet: try again), -HMB_STOP_REINIT
 * (re-initialised once more meanwhile) or -HMB_STOP_DEVICE.
 */
int hmb_collector_new_epoch(struct hmb_collector *collector, int give_up);
/*
 * Begin a fresh spool at the ring's own tail: fills collector->state and makes
 * the first commit.  -EILSEQ when the cursors are invalid.
 */
int hmb_collector_begin(struct hmb_collector *collector);
/* Go on from a spool that continues this ring (hmb_spool_continues): loads the state. */
void hmb_collector_resume(struct hmb_collector *collector);
/* The capture ends: close what is open (hmb_collect_finish) and commit. 0 or -ENOSPC. */
int hmb_collector_finish(struct hmb_collector *collector);
