/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface of the simulator's engine.  No preprocessor line may stand in
 * this file: cffi reads the very text that C compiles (C includes sim_core.h).
 *
 * Sizes and cursors are bytes, times nanoseconds.
 */

enum hmb_sim_wrap {
	HMB_SIM_WRAP_MARKER, /* the reference producer (R3) */
	HMB_SIM_WRAP_STRADDLE, /* only the header is guarded: a payload may cross the ring end */
	HMB_SIM_WRAP_SEQ_MARKER, /* markers consume a sequence number */
};

enum hmb_sim_source {
	HMB_SIM_TABLE, /* weighted events with typed fields */
	HMB_SIM_FTL, /* a flash translation layer, event by event */
	HMB_SIM_REPLAY, /* the records of a dump */
};

enum hmb_sim_field_kind {
	HMB_SIM_FIELD_RANDOM, /* min..max, uniform */
	HMB_SIM_FIELD_COUNTER, /* min, then one more each time, up to max and again */
	HMB_SIM_FIELD_SKEWED, /* min..max, small values far more often */
	HMB_SIM_FIELD_KEY, /* pairs end with the value that their begin had */
	HMB_SIM_FIELD_ELAPSED, /* of an end: nanoseconds since its begin */
	HMB_SIM_FIELD_FLOAT, /* min..max as integers, stored as a float of this size */
	HMB_SIM_FIELD_TEXT, /* letters, zero-filled */
};

/* A field of a payload, little-endian. Bytes not covered by a field are random. */
struct hmb_sim_field {
	uint16_t offset;
	uint16_t size; /* 1, 2, 4 or 8; text: any */
	uint32_t kind;
	uint64_t min;
	uint64_t max;
};

struct hmb_sim_event {
	uint16_t opcode;
	uint8_t flags; /* HMB_REC_FLAG_TRUNCATED or 0 */
	uint8_t cpus; /* cpu is drawn from 0..cpus-1 */
	uint32_t weight; /* 0: only as the end of a pair */
	uint32_t payload_min;
	uint32_t payload_max;
	uint32_t first_field;
	uint32_t fields;
	int32_t end; /* index of the event that ends this one, or -1 */
	uint32_t reserved;
	uint64_t duration_min; /* until the end event */
	uint64_t duration_max;
};

struct hmb_sim_config {
	uint8_t *base; /* of the region: header and record area, 8-byte aligned */
	const struct hmb_sim_event *events;
	const struct hmb_sim_field *fields;
	const uint8_t *replay; /* a dump */
	uint64_t replay_size;
	uint64_t start_cursor;
	uint64_t start_ts_ns;
	uint64_t seed;
	uint64_t rate; /* records per second, 0: as fast as it goes */
	uint64_t gap_ns; /* firmware clock between records when rate is 0 */
	uint64_t burst; /* records that come together, 0 or 1: evenly */
	uint32_t ring_size;
	uint32_t start_seq;
	uint32_t source; /* enum hmb_sim_source */
	uint32_t wrap; /* enum hmb_sim_wrap */
	uint32_t event_count;
	uint32_t field_count;
	uint32_t block; /* 1: wait for room; 0: drop */
	uint32_t drops_keep_seq;
	uint32_t hash; /* 1: FNV-1a of the dump bytes */
	uint32_t real_clock; /* 1: ts_ns is CLOCK_MONOTONIC */
	uint32_t keep_log; /* 1: remember what was written up to where (hmb_sim_discard) */
	uint32_t keep_unknown_flags; /* 1: a consumer with --unknown-flags keep is expected */
	uint32_t renumber; /* replay: 1: own sequence numbers; 0: those of the dump */
	uint32_t by_clock; /* 1: records come when the firmware clock says so, rate is 0 */
};

/* What a dump must hold, and what a consumer must have counted. */
struct hmb_sim_counts {
	uint64_t records; /* wrap markers not counted */
	uint64_t bytes; /* wrap markers included */
	uint64_t fnv64;
	uint64_t markers; /* whole ones, 32 bytes */
	uint64_t partial_markers; /* completed to 32 bytes in the dump */
	uint64_t plain_gaps; /* lap ends without a marker */
	uint64_t straddled;
	uint64_t truncated;
	uint64_t dropped; /* between two published records */
	uint64_t dropped_unseen; /* before the first or after the last */
	uint64_t drop_gaps; /* runs of drops that a gap in seq shows */
	uint64_t duplicates;
	uint64_t sequence_resets;
	uint64_t rejected_records; /* written, but spoilt on purpose */
	uint64_t rejected_bytes;
	uint64_t resyncs;
	uint64_t lying_lengths;
	uint64_t unknown_flags;
	uint64_t markers_cleaned;
	uint64_t first_ts_ns;
	uint64_t last_ts_ns;
	uint32_t first_seq;
	uint32_t last_seq;
};

struct hmb_sim_stats {
	uint64_t produced; /* records generated: published, dropped or spoilt */
	uint64_t published; /* records now in, or through, the ring */
	uint64_t drops; /* all of this epoch, seen or not */
	uint64_t blocked_ns; /* waited for room */
	uint64_t head;
	uint64_t tail;
	uint64_t now_ns; /* firmware clock */
	uint32_t ring_flags;
	uint32_t blocked; /* waiting for room right now */
	uint32_t seq; /* of the next record */
	uint32_t epoch;
};

enum hmb_sim_reason {
	HMB_SIM_SLICE, /* time is up, call again */
	HMB_SIM_REACHED, /* so many records were produced */
	HMB_SIM_STOPPED, /* hmb_sim_stop() was called */
	HMB_SIM_END, /* the replay has no more records */
};

enum hmb_sim_twist {
	HMB_SIM_NO_TWIST,
	HMB_SIM_CORRUPT_MAGIC,
	HMB_SIM_OVERSIZE_LENGTH, /* payload_len 65535 */
	HMB_SIM_LYING_LENGTH, /* legal, but reaches into the next record */
	HMB_SIM_TORN_RECORD, /* its first 8 bytes never arrived */
	HMB_SIM_UNKNOWN_FLAGS, /* bits 2 and 7 */
	HMB_SIM_DUPLICATE_SEQ,
	HMB_SIM_BACKWARD_SEQ,
	HMB_SIM_DAMAGED_MARKER, /* of the next lap end: no magic */
	HMB_SIM_DIRTY_MARKER, /* of the next whole one: payload_len and unknown bits set */
};

struct hmb_sim;

/* The binding checks that it speaks of the same structs. */
uint32_t hmb_sim_sizeof_config(void);

/* Write the ring header and get ready. A null pointer: the geometry is wrong, or no memory. */
struct hmb_sim *hmb_sim_new(const struct hmb_sim_config *config);
void hmb_sim_free(struct hmb_sim *sim);

/* Write records until `until` of them were produced, or slice_ns passed: enum hmb_sim_reason. */
int hmb_sim_run(struct hmb_sim *sim, uint64_t until, uint64_t slice_ns);
void hmb_sim_stop(struct hmb_sim *sim);

void hmb_sim_stats(struct hmb_sim *sim, struct hmb_sim_stats *stats);
void hmb_sim_total(const struct hmb_sim *sim, struct hmb_sim_counts *counts);
void hmb_sim_epoch(const struct hmb_sim *sim, struct hmb_sim_counts *counts);
/* Drops that nothing followed become unseen ones. Call before the last look at the counts. */
void hmb_sim_close_epoch(struct hmb_sim *sim);

/* ---- a ring in memory that a host lends and takes back (lend.c) ---- */

/* The ring moves into the shadow: the host's memory is not touched from here on. */
void hmb_sim_park(struct hmb_sim *sim);
/*
 * A new, empty ring at base; shadow is as large (header and record area) and stays the
 * caller's. A new epoch, unless nothing was written so far. 0, -ENOMEM, -EINVAL.
 */
int hmb_sim_settle(struct hmb_sim *sim, uint8_t *base, uint8_t *shadow, uint32_t ring_size,
		   uint32_t seq);
/* Offset of the first byte in the ring, tail not counted, that is not ours; -1: none. */
int64_t hmb_sim_foreign(struct hmb_sim *sim);
/* The size of the ring that a slice with this mark holds, 0: no slice (hmb_slice.h). */
uint32_t hmb_sim_slice_ring(const uint8_t *mark, uint64_t slice_size, uint64_t dma_addr);
void hmb_sim_make_mark(uint8_t *mark, uint64_t slice_size, uint64_t dma_addr);

/* ---- faults (producer_sim/README.md says what each does to seq and ledger) ---- */

/* Spoil the next record (or marker) that stands where the outcome is certain. */
void hmb_sim_twist(struct hmb_sim *sim, uint32_t twist, uint64_t argument);
/* 1 until the twist has happened. */
int hmb_sim_twist_pending(const struct hmb_sim *sim);
/*
 * Where the last fault was put: its ring cursor, its seq, the bytes that must be rejected, the
 * number of its record (a marker's: of the record behind it).
 */
void hmb_sim_last_fault(const struct hmb_sim *sim, uint64_t *cursor, uint32_t *seq, uint64_t *bytes,
			uint64_t *record);
void hmb_sim_drop(struct hmb_sim *sim, uint64_t records);
void hmb_sim_set_flags(struct hmb_sim *sim, uint32_t set, uint32_t clear);
/* -EAGAIN: no room, or a place where a consumer would not look for a header. */
int hmb_sim_garbage(struct hmb_sim *sim, uint64_t bytes);
/* Firmware starts again: header, cursors, seq and clock as at power-on; a new epoch. */
void hmb_sim_reset(struct hmb_sim *sim, uint32_t version);
/* Take back from the counts what no consumer has read yet (needs keep_log): records. */
uint64_t hmb_sim_discard(struct hmb_sim *sim);
/* Move head without writing; go_on: keep writing from there, in a new epoch. */
void hmb_sim_move_head(struct hmb_sim *sim, int64_t by, uint32_t go_on);
/* Write records over what is unread, until so many bytes went out. Records written. */
uint64_t hmb_sim_overrun(struct hmb_sim *sim, uint64_t bytes);
void hmb_sim_shift_clock(struct hmb_sim *sim, int64_t by_ns);
