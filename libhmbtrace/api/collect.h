/* SPDX-License-Identifier: Apache-2.0 */
/* Ring bytes to dump bytes (SPEC R3-R12). */

/* Wrap markers since the last record, as far as their seq goes forward (R3.4). */
struct hmb_marker_run {
	uint32_t seen; /* 1: the others mean something */
	uint32_t seq; /* of the last of them */
	uint32_t missing; /* records missing before it, if it is to be believed */
	uint32_t pad;
};

/* R12: a break of the sequence whose meaning the next good record tells. */
struct hmb_pending_break {
	uint64_t pos; /* of the record after the break, like the next four */
	uint64_t cursor;
	uint64_t ts_ns;
	uint64_t host_ns;
	uint64_t rejected_bytes; /* before it */
	uint32_t seq_before; /* of the last record in order: R9 measures from here */
	uint32_t seq; /* of the record after the break */
	struct hmb_marker_run markers_before; /* between the two */
	struct hmb_marker_run markers; /* since the record before the break */
	uint8_t state; /* enum hmb_pending_state */
	uint8_t reason; /* enum hmb_gap_reason, if it is a gap with a loss */
	uint8_t in_episode; /* an overflow episode was open */
	uint8_t pad[5];
};

enum hmb_pending_state {
	HMB_PENDING_NONE,
	HMB_PENDING_WAITS,
	HMB_PENDING_TOLD, /* accounted for without waiting; the next good record may still deny it */
};

/* A head that was seen, and the tail that was stored in the ring then. */
struct hmb_look {
	uint64_t head;
	uint64_t tail;
};

/* When a record was published, by both clocks (R16). */
struct hmb_clock_pair {
	uint64_t ts_ns;
	uint64_t host_ns;
	uint64_t error_ns; /* 0: no pair yet */
};

/* Where a consumer stands. Plain data: it is committed and recovered as it is. */
struct hmb_state {
	uint64_t tail; /* ring cursor of the next byte to consume */
	uint64_t pos; /* bytes of dump stream produced */
	uint64_t last_ts_ns; /* of the last record seen, not of markers */
	uint64_t first_ts_ns; /* of the first record */
	uint32_t last_seq; /* of the last good record */
	uint32_t first_seq;
	uint32_t epoch;
	uint8_t have_seq; /* last_seq means something */
	uint8_t resync; /* inside damage: its reject reason; scan for the next header (R9) */
	uint8_t have_first;
	uint8_t overflow_seen; /* OVERFLOWED as last seen; 2: not looked yet */
	uint8_t frozen_seen;
	uint8_t episode_open;
	uint8_t chain; /* R9: records of a chain that ended at head, at tail; wait for more */
	uint8_t chain_may_end; /* nothing more will come: take it as it is */
	uint32_t episode_seq; /* last seq before the episode */
	uint64_t episode_head; /* a record from here on without a gap: extent unknown */
	uint64_t damaged_bytes; /* rejected since the last good record */
	uint32_t ring_flags_logged; /* unknown bits already logged */
	uint32_t reserved_logged; /* reserved fields already logged, a bit each */
	uint64_t index_pos; /* pos of the last HMB_EV_INDEX */
	uint32_t anomalies; /* events since the last HMB_EV_INDEX */
	uint32_t clock_events; /* HMB_EV_CLOCK_STEP since the last HMB_EV_INDEX */
	struct hmb_marker_run markers;
	struct hmb_pending_break pending;
	struct hmb_look
		look[2]; /* the newer first: how full the ring was when a record was written */
	struct hmb_clock_pair clock; /* kept by the collector */
	struct hmb_counters counters;
};

struct hmb_options {
	uint64_t index_bytes; /* an HMB_EV_INDEX after so many dump bytes; 0: never */
	uint32_t keep_unknown_flags; /* R10: 1 puts such records into the dump */
	uint32_t stop_on_corrupt; /* R9: 1 stops with -EBADMSG, tail untouched */
};

/* Two flat buffers that collect() appends to. */
struct hmb_sink {
	uint8_t *data;
	uint64_t data_cap;
	uint64_t data_len;
	uint8_t *events;
	uint64_t events_cap;
	uint64_t events_len;
};

/* Fresh state at the ring's own tail; -EILSEQ when its cursors are invalid (R2). */
int hmb_state_begin(struct hmb_state *state, const struct hmb_ring *ring);

/*
 * One pass: take what lies between state->tail and head, as far as the sink
 * has room, up to one wrap.  Stores nothing in the ring: the caller commits
 * the sink, then stores state->tail by hmb_ring_store_tail().
 * *head (may be NULL) is the head that the pass went by.  Events may be noted even if
 * nothing is consumed.  Returns the ring bytes consumed (0: nothing to do yet), or
 *   -EILSEQ   cursors invalid (R2)
 *   -ESTALE   `tail`, magic or size is not what we left there (R6); nothing taken
 *   -ENOSPC   no room in the sink for the next step
 *   -EBADMSG  damage, and stop_on_corrupt is set
 * The sink needs at least hmb_collect_min_data() / hmb_collect_min_events() bytes of room.
 */
int64_t hmb_collect(const struct hmb_ring *ring, struct hmb_state *state,
		    const struct hmb_options *options, struct hmb_sink *sink, uint64_t *head);
/* R6: keep the books, forget the sequence; the next epoch begins at tail. */
void hmb_state_next_epoch(struct hmb_state *state, uint64_t tail);

/* The least room that hmb_collect() asks of a sink, bytes. */
uint64_t hmb_collect_min_data(void);
uint64_t hmb_collect_min_events(void);
uint32_t hmb_event_magic(void);

/*
 * Nothing more will come for now (once, stop, FROZEN): whether records are left in the ring
 * that only wait for their successors (R9's chain of 4).  If 1, the next pass takes them; a
 * collector commits *state before that pass, so that it can be repeated.
 */
int hmb_collect_release(struct hmb_state *state);
/*
 * The capture, or the epoch, ends here: a break of the sequence that still waits is told as
 * unconfirmed (R12), an overflow episode still open is closed as unknown (R5).
 * Needs hmb_collect_min_events() of room; 0 or -ENOSPC.
 */
int hmb_collect_finish(struct hmb_state *state, struct hmb_sink *sink);
