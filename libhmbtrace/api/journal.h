/* SPDX-License-Identifier: Apache-2.0 */
/* Everything about a capture that is not a record: counters, and the events of the journal. */

/* Cumulative over the life of a capture. Every drop has a counter. */
struct hmb_counters {
	uint64_t records; /* in the dump, wrap markers not counted */
	uint64_t bytes; /* in the dump, wrap markers included */
	uint64_t ring_bytes; /* consumed from the ring */
	uint64_t wrap_markers; /* whole markers dumped */
	uint64_t partial_markers; /* completed to 32 bytes and dumped */
	uint64_t plain_gaps; /* fewer than 32 bytes at the lap end, no marker in them */
	uint64_t straddled; /* records that cross the ring end */
	uint64_t truncated; /* records with HMB_REC_FLAG_TRUNCATED */
	uint64_t gaps;
	uint64_t lost; /* records, rejects subtracted */
	uint64_t duplicates;
	uint64_t sequence_resets;
	uint64_t
		rejected_records; /* known one by one, or missing in seq where bytes were rejected */
	uint64_t rejected_bytes;
	uint64_t resyncs; /* R9 episodes */
	uint64_t lying_lengths; /* R8 */
	uint64_t unknown_flags; /* R10 records, kept or rejected */
	uint64_t markers_cleaned; /* R4 */
	uint64_t overruns; /* R7 */
	uint64_t overflow_episodes;
	uint64_t unknown_losses; /* episodes whose extent nobody can tell */
	uint64_t epochs; /* re-initialisations survived (R6) */
	uint64_t events_suppressed; /* counted, but not written one by one */
	uint64_t seq_glitches; /* R12: records in the dump whose seq field alone is wrong */
	uint64_t clock_steps; /* R16 */
};

enum hmb_event_kind {
	HMB_EV_INDEX = 1, /* a boundary; seq, ts_ns: of the record BEFORE pos; bytes: hmb_state */
	/*
	 * Breaks of the sequence (R12).  pos, cursor, ts_ns, host_ns: of the record after the
	 * break.  They are written once the record behind that one has come, so pos may lie
	 * before that of events written earlier, but never before the last HMB_EV_INDEX.
	 * reason: enum hmb_gap_reason (gaps only) | HMB_UNCONFIRMED
	 */
	HMB_EV_GAP, /* a: seq before, b: seq after, c: lost, d: missing but in the rejects */
	HMB_EV_DUPLICATE, /* a: seq */
	HMB_EV_SEQ_RESET, /* a: seq before, b: seq after */
	HMB_EV_REJECT, /* reason, cursor, length, bytes follow */
	HMB_EV_OVERFLOW, /* episode opened; a: last seq before (b: 1 if there is one) */
	HMB_EV_OVERFLOW_END, /* a: last seq before, b: first seq after, c: lost (0: unknown, >= 1) */
	HMB_EV_LOSS_BEFORE, /* OVERFLOWED found set at attach: extent unknown */
	HMB_EV_LOSS_UNKNOWN, /* R2: cursors given up; a: old tail, b: new tail */
	HMB_EV_OVERRUN, /* R7; a: head seen, b: records quarantined */
	HMB_EV_FROZEN, /* a: head */
	HMB_EV_UNFROZEN, /* a: head */
	HMB_EV_EPOCH, /* begins at pos; a: tail, b: head, c: previous tail; bytes: hmb_state */
	HMB_EV_UNKNOWN_RING_FLAGS, /* a: the bits */
	HMB_EV_RESERVED_SET, /* a: which reserved field (0..3), b: its value */
	HMB_EV_CLOCK, /* ts_ns: firmware clock, host_ns: taken when the record was seen; a: error bound */
	HMB_EV_STATE, /* written by the daemon: a: state, b: cause */
	HMB_EV_SEQ_GLITCH, /* a: seq before, b: the wrong seq; pos, ts_ns: of the record that has it */
	/*
	 * R16: ts_ns went backwards, or moved against the host clock by more than the error
	 * bound.  pos, seq, ts_ns: of the first record after the step; host_ns: when the step was
	 * seen; a: ts_ns before; c: the step against the host clock (int64_t, two's complement);
	 * d: its error bound.  An HMB_EV_CLOCK follows it.
	 */
	HMB_EV_CLOCK_STEP,
};

/* Why records are missing at a gap, as far as the ring shows it. */
enum hmb_gap_reason {
	HMB_GAP_REJECTS = 1, /* nothing is lost: all that is missing may lie in the rejects */
	HMB_GAP_OVERFLOW, /* the ring was full, or may have been, or OVERFLOWED was set */
	HMB_GAP_SKIPPED, /* it had room for any record: firmware left the numbers out */
};

/* In `reason` of a gap, duplicate or reset, beside the above. */
enum hmb_break_flags {
	/* R12: nothing followed, or what followed fits a wrong seq field as well as a real break. */
	HMB_UNCONFIRMED = 0x100,
};

enum hmb_reject_reason {
	HMB_REJECT_DAMAGED = 1, /* R9: no valid record here */
	HMB_REJECT_LYING_LENGTH, /* R8: a legal length that swallows the next record */
	HMB_REJECT_UNKNOWN_FLAGS, /* R10 */
	HMB_REJECT_MARKER, /* R4: the marker as it was before it was cleaned */
	HMB_REJECT_OVERRUN, /* R7: may have been overwritten while it was copied */
};

/* 96 bytes, then `length` bytes, then zeros up to a multiple of 8. */
struct hmb_event {
	uint32_t magic; /* HMB_EVENT_MAGIC, "HMEV" */
	uint16_t kind;
	uint16_t reason;
	uint32_t length;
	uint32_t epoch;
	uint64_t pos; /* bytes of dump stream before this event */
	uint64_t cursor; /* ring cursor */
	uint64_t host_ns; /* CLOCK_REALTIME */
	uint64_t ts_ns;
	uint64_t seq;
	uint64_t a;
	uint64_t b;
	uint64_t c;
	uint64_t d;
	uint64_t reserved;
};
